"""The estimator for users: fit on the source, ask about samples outside its support."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from offsupport.core.errors import ConfigError, ModelError
from offsupport.latent.base import LatentEstimator
from offsupport.latent.extrapolator.code import Code, fit_code
from offsupport.latent.extrapolator.decision import (
    FULL,
    KEPT_OUT,
    SOURCE_LOOKED_AT,
    Explanation,
    Finding,
    Found,
    Half,
    changing_dimension,
    decide,
    flow_multiple,
    intrinsic_dimension,
    sparse_multiple,
    supports_flow,
)
from offsupport.latent.extrapolator.dense import DenseModel, FlowConfig, fit_dense
from offsupport.latent.extrapolator.manifold import fit_manifolds
from offsupport.latent.extrapolator.sparse import SparseConfig, SparseModel, fit_sparse
from offsupport.latent.inputs import Array, Source

T = TypeVar("T")


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Extrapolator(LatentEstimator):
    """Predicts on samples outside the source support by finding what in them is invariant.

    Sparse shifts: the dimensions that left the source are found and distrusted (`sparse`). Dense shifts: an invertible
    model of the source is carried beyond its support (`dense`), or, where every class is a thin manifold (finite C, as
    in Theorem 1), the manifolds' tangent planes are (`manifold`). With ``shift="auto"`` the targets of a call decide:
    by whether a few moved columns explain them better than a shift of all columns (`decision`). How many columns a
    sparse shift moves is found in the same targets, unless ``d_s`` is given.

    ``fit`` fits everything. With ``shift="auto"`` that includes the dense model, which takes seconds to minutes, where
    the source has ten samples per parameter of it (``dense_note_`` says so), and unless targets are given to ``fit``
    that need none. An answer depends on the fit and on the targets of its call alone, and `explain` says how it came
    about.

    It is a scikit-learn estimator: ``task`` says whether it is a classifier before it has seen y, and
    ``together=False`` lets every sample decide for itself, as scikit-learn's tools take for granted.

    Attributes:
        dense_: The dense model; None where there is none.
        dense_note_: Whether there is one, and why or why not, as a sentence.
        sparse_: The sparse model; None where the shift is said to be dense.
        manifolds_: The class manifolds; thin_: (R,) runs whose classes are thin ones.
        feature_names_in_: Names of the columns, where fit was given a frame; another order is refused.
    """

    shift: Literal["auto", "dense", "sparse"] = "auto"
    """The kind of shift, if known."""
    d_c: int | None = None
    """Dimensions of the invariant variable; None: estimated (see `Explanation`)."""
    d_s: int | None = None
    """Dimensions of the changing variable, the most a sparse shift may move; None: found in the targets."""
    flow: FlowConfig | None = None
    """How the dense model is fitted; None: as by default."""
    masked: SparseConfig | None = None
    """How the sparse model is fitted; None: as by default."""
    memory: str | None = None
    """Folder where fitted flows are kept; a later fit of the same flow to the same data is read from there."""
    together: bool = True
    """Whether the targets of one call share their shift and decide on it together; else each decides for itself."""

    SEEDED_AS: ClassVar[str] = "Extrapolator"  # a subclass draws the same

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        d = source.x.shape[-1]
        self._check(d)
        self._most = self.d_s or max(1, d // 2)  # a sparse shift leaves at least half of the columns alone
        self._dimension = intrinsic_dimension(source.x)
        self._codes: dict[bytes, Code] = {}
        self.sparse_: SparseModel | None = None
        self.dense_: DenseModel | None = None
        if self.shift != "dense":
            config = self.masked or SparseConfig()
            self.sparse_ = fit_sparse(source, self._most, config, lambda part: self._rng("sparse", part))
        self.manifolds_, self.thin_ = fit_manifolds(source)
        flow = self.flow or FlowConfig()
        enough, counted = supports_flow(source, flow)
        self._prefers = (self.thin_ | (self._dimension >= FULL * d)) & enough
        self._could = self.thin_ | (enough or self.shift == "dense")  # runs that could have a dense model
        self._able = self._could
        self._oddest = torch.zeros(len(self.thin_), dtype=torch.float64)
        self._at_fit = self._find(None)
        seen = self._at_fit if x_tgt is None else self._find(x_tgt)
        wanted, self.dense_note_ = self._plan(enough, counted, x_tgt is None or "flow" in seen.halves)
        if wanted:
            with torch.enable_grad():  # fit may be called inside torch.no_grad()
                self.dense_ = fit_dense(source, flow, lambda part: self._rng("dense", part), self.memory)
        else:
            self._able = self.thin_
        if self.shift == "auto" and self.sparse_ is not None and not bool(self._able.all()):
            self._oddest = self.sparse_.look(source.x[:, :SOURCE_LOOKED_AT]).log_odds.amin(-1)
        if x_tgt is not None and self.together:
            self._at_fit = self._find(x_tgt)

    def _plan(self, enough: bool, counted: str, needed: bool) -> tuple[bool, str]:
        """Say whether the flow is fitted, and why, as a sentence."""
        if self.shift == "sparse":
            return False, "No dense model: the shift was said to be sparse."
        if bool(self.thin_.all()):
            return False, "No flow: the classes are thin manifolds, which their tangent planes continue."
        if self.shift == "dense":
            return True, f"A dense model, as asked for: {counted}."
        if not enough:
            return False, f"No dense model: {counted}."
        if not needed:
            return False, "No dense model: the targets given to fit need none."
        return True, f"A dense model: {counted}."

    @torch.no_grad()
    def needs_flow(self, X: Any) -> bool:
        """Say whether these targets would be answered by a flow, if there is one or could be one of this source."""
        return "flow" in self._find(self._ready(X)[1], self._could).halves

    @torch.no_grad()
    def explain(self, X: Any) -> Explanation | list[Explanation]:
        """Return what was found about these samples: their shift, the columns that left, which half answers, how sure.

        It is what `predict` acts on, for the same samples. One explanation for samples that decide together, a list
        with one for each run where there are several; with ``together=False`` a list with one for each sample.
        """
        source, x = self._ready(X)
        found = self._find(x)
        output = self._answer(x, found, self._outputs)
        sure = output.amax(-1) if source.task == "classification" else self._answer(x, found, self._spreads)
        sure = sure if source.task == "classification" else sure * source.y_scale
        off = None if self.sparse_ is None else self._distrust(x, found)

        def explained(i: int) -> Explanation:
            at = i if self.together else (0, slice(i, i + 1))
            distrust, how_sure = None if off is None else off[at].numpy(), sure[at].numpy()
            classes = source.task == "classification"
            return Explanation(
                **dataclasses.asdict(found.findings[i]),
                half=found.halves[i],
                d_s=found.d_s[i],
                d_c=found.d_c[i],
                dense=self.dense_note_,
                distrust=distrust,
                columns=() if distrust is None else self._names(distrust.mean(0) > 0.5),
                confidence=how_sure if classes else None,
                spread=None if classes else how_sure,
            )

        explanations = [explained(i) for i in range(len(found.findings))]
        return explanations[0] if self.together and not source.batched else explanations

    @torch.no_grad()
    def distrust(self, X: Any) -> Array:
        """Return the probability that each column of each sample left the source, columns as in fit."""
        _, x = self._ready(X)
        if self.sparse_ is None:
            raise ModelError("A dense shift moves every column.", "Fit with shift='sparse' or 'auto'.")
        return self._out(self._distrust(x, self._find(x)).numpy())

    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return the estimated invariant and changing variables (c_hat, s_hat) of every sample.

        They depend on the fit and on the samples of this call, which are taken to share their shift.
        Sparse shifts: c_hat is a code of the columns these samples mostly trust (a code is fitted once for each such
        set of columns); s_hat is, per column, what a distrusted value has beyond what the code explains. Dense shifts:
        the flow's latents, the directions that the label moves first; for classes that are thin manifolds, the class
        weights and the coordinates along the manifolds. Runs with fewer coordinates than others get zeros.
        """
        return super().latents(X)

    def confidence(self, X: Any) -> Array:
        """Return how sure the prediction of each sample is: the probability of its class; numbers have intervals."""
        if self._ready(X)[0].task == "regression":
            raise ModelError("A regression has no class probabilities.", "Use predict_interval.")
        return np.asarray(self.predict_proba(X).max(-1))

    @torch.no_grad()
    def predict_interval(self, X: Any, level: float = 0.9) -> Array:
        """Return an interval (m, 2) around every predicted number.

        It holds the number for about ``level`` of samples like the source, and where the sparse model answers, of
        samples some of whose columns left it; a flow's intervals off the support are those of the flow, if it is right.
        """
        source, x = self._ready(X)
        if source.task == "classification":
            raise ModelError("Classes have no interval.", "Use predict_proba or confidence.")
        if not 0 < level < 1:
            raise ConfigError(f"The level is {level}.", "It lies between 0 and 1.")
        found = self._find(x)
        centre = self._answer(x, found, self._outputs)
        half = self._answer(x, found, lambda x, found: self._spreads(x, found, level))
        ends = torch.stack([centre - half, centre + half], -1)
        return self._out((ends * source.y_scale[..., None] + source.y_mean[..., None]).numpy())

    def code(self, trusted: Tensor, d_c: Tensor, largest: int, runs: Tensor | None = None) -> Code:
        """Return the code of d_c (R,) dimensions of the trusted columns (R, d), of all runs or of these; fitted once.

        Which columns are trusted is known only once targets are, so this is the one thing that `fit` cannot fit. What
        is kept here saves time alone: the same columns give the same code, whatever was asked before.
        """
        runs = torch.arange(len(trusted)) if runs is None else runs
        key = b"".join(part.numpy().tobytes() for part in (trusted, runs, d_c, torch.tensor(largest)))
        if key not in self._codes:
            with torch.enable_grad():
                self._codes[key] = fit_code(
                    self.source_.select(runs), trusted, d_c, largest, lambda part: self._rng("code", part)
                )
        return self._codes[key]

    def _find(self, x: Tensor | None, able: Tensor | None = None) -> Found:
        """Return what targets decide: one decision per run, or one per sample if each decides for itself.

        Args:
            x: The targets; None: what is known before any were seen.
            able: (R,) runs that have a dense model, if not those that do.
        """
        count = len(self.source_.x) if self.together or x is None else x.shape[1]
        able = self._able if able is None else able
        prefers, able, oddest, thin, dimension = (
            part.expand(count) for part in (self._prefers, able, self._oddest, self.thin_, self._dimension)
        )
        findings, size = [self._given()] * count, None
        if x is not None and self.sparse_ is not None and self.shift == "auto":
            look = self.sparse_.look(x) if self.together else self.sparse_.look(x).alone()
            findings, size = decide(look, self._most, prefers, able, oddest), look.size
        elif x is not None and self.sparse_ is not None and self.shift == "sparse" and self.d_s is None:
            size = self.sparse_.sizes(x) if self.together else self.sparse_.sizes(x).mT
        halves: list[Half] = []
        for finding, can, is_thin in zip(findings, able, thin, strict=True):
            halves.append(("manifold" if is_thin else "flow") if finding.shift == "dense" and can else "sparse")
        most = [self._most] * count
        moved = most if size is None or self.d_s is not None else changing_dimension(size)
        d_s = [moved[i] if half == "sparse" else most[i] for i, half in enumerate(halves)]
        return Found(findings, halves, d_s, self._d_c(halves, d_s, dimension))

    def _d_c(self, halves: Sequence[Half], d_s: Sequence[int], dimension: Tensor) -> list[int]:
        if self.d_c is not None:
            return [self.d_c] * len(halves)
        d = self.source_.x.shape[-1]
        found: list[int] = dimension.round().long().tolist()
        total = [d if half == "flow" else count for half, count in zip(halves, found, strict=True)]
        return [max(1, count - moved) for count, moved in zip(total, d_s, strict=True)]

    def _answer(self, x: Tensor, found: Found, answer: Callable[[Tensor, Found], Tensor]) -> Tensor:
        """Ask about all targets at once, or about those that decided alike, and put the answers in order."""
        if self.together:
            return answer(x, found)
        rows = found.alike()
        parts = [answer(x[:, row], found.only(int(row[0]))) for row in rows]
        return torch.cat(parts, 1)[:, torch.cat(rows).argsort()]

    def _output(self, x: Tensor) -> Tensor:
        return self._answer(x, self._find(x), self._outputs)

    def _outputs(self, x: Tensor, found: Found) -> Tensor:
        return _by_run(found.halves, lambda half: self._half_output(half, x, found))

    def _half_output(self, half: Half, x: Tensor, found: Found) -> Tensor:
        if half == "sparse":
            assert self.sparse_ is not None  # noqa: S101 - told to the type checker
            return self.sparse_.output(x, found.d_s)
        if half == "manifold":
            return self.manifolds_.posterior(x)
        assert self.dense_ is not None  # noqa: S101 - told to the type checker
        return self.dense_.moments(x)[0] if self.source_.task == "regression" else self.dense_.posterior(x)

    def _spreads(self, x: Tensor, found: Found, level: float | None = None) -> Tensor:
        """Return the standard deviations (R, m) of predicted numbers, or as many of them as hold them at a level."""
        return _by_run(found.halves, lambda half: self._half_spread(half, x, found, level))

    def _half_spread(self, half: Half, x: Tensor, found: Found, level: float | None) -> Tensor:
        if half == "sparse":
            assert self.sparse_ is not None  # noqa: S101 - told to the type checker

            def spread(model: SparseModel, runs: Tensor) -> Tensor:
                wide = model.spread(x[runs])
                return wide if level is None else sparse_multiple(model, level, self._rng("interval")) * wide

            return self.sparse_.by_size(found.d_s, spread)
        assert self.dense_ is not None  # noqa: S101 - told to the type checker; class manifolds are no regression
        source, wide = self.source_, self.dense_.moments(x)[1]
        if level is None:
            return wide
        return flow_multiple(self.dense_, source.x[:, :KEPT_OUT], source.y[:, :KEPT_OUT], level) * wide

    def _distrust(self, x: Tensor, found: Found) -> Tensor:
        sparse = self.sparse_
        assert sparse is not None  # noqa: S101 - told to the type checker
        full = torch.zeros(*x.shape[:2], self.source_.width, dtype=torch.float64)
        full[..., self.source_.columns] = self._answer(x, found, lambda x, found: sparse.distrust(x, found.d_s))
        return full

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self._find(x)
        if self.together:
            return self._run_latents(x, found)
        # One by one: a code is about the columns that its samples trust on average.
        parts = [self._run_latents(x[:, i : i + 1], found.only(i)) for i in range(x.shape[1])]
        c_hat, s_hat = zip(*parts, strict=True)
        return torch.cat(_align(c_hat), 1), torch.cat(_align(s_hat), 1)

    def _run_latents(self, x: Tensor, found: Found) -> tuple[Tensor, Tensor]:
        parts = {half: self._half_latents(half, x, found) for half in set(found.halves)}
        c_hat, s_hat = (dict(zip(parts, _align([part[i] for part in parts.values()]), strict=True)) for i in (0, 1))
        return _by_run(found.halves, c_hat.__getitem__), _by_run(found.halves, s_hat.__getitem__)

    def _half_latents(self, half: Half, x: Tensor, found: Found) -> tuple[Tensor, Tensor]:
        if half == "manifold":
            return self.manifolds_.latents(x)
        if half == "flow":
            assert self.dense_ is not None  # noqa: S101 - told to the type checker
            return self.dense_.latents(x, torch.tensor(found.d_c))
        assert self.sparse_ is not None  # noqa: S101 - told to the type checker
        coded = self.sparse_.by_size(found.d_s, lambda model, runs: self._coded(model, runs, x[runs], found))
        c_hat, s_hat = coded.unbind(1)
        return c_hat[..., : max(found.d_c)], s_hat

    def _coded(self, model: SparseModel, runs: Tensor, x: Tensor, found: Found) -> Tensor:
        """Return c_hat, zeros beyond d_c, and s_hat of runs that share d_s, (R, 2, m, d)."""
        weighed = model.weigh(x)
        mask = weighed.likeliest()
        d_c, largest = torch.tensor(found.d_c)[runs], found.d_s[int(runs[0])]
        code = self.code(weighed.distrust().mean(1) <= 0.5, d_c, largest, runs)
        return torch.stack([code.encode(x, ~mask), torch.where(mask, x - code.decode(x, ~mask), 0.0)], 1)

    def _names(self, chosen: Array) -> tuple[str | int, ...]:
        """Return the names of the chosen columns, or their numbers where fit saw no names."""
        names = self.feature_names_in_ if "feature_names_in_" in vars(self) else range(len(chosen))
        return tuple(name for name, here in zip(names, chosen, strict=True) if here)

    def _given(self) -> Finding:
        if self.shift == "auto":
            return Finding("undecided", "no target seen yet.")
        return Finding(self.shift, "given.")

    def _check(self, d: int) -> None:
        if self.shift not in ("auto", "dense", "sparse"):
            raise ConfigError(f"The shift is {self.shift!r}.", "Use 'auto', 'dense' or 'sparse'.")
        if self.source_.batched and not self.together:
            raise ConfigError("Several runs are answered together.", "Leave together=False out, or fit one run.")
        for name, value in (("d_c", self.d_c), ("d_s", self.d_s)):
            if value is not None and not 1 <= value < max(d, 2):
                raise ConfigError(f"{name} is {value} for {d} varying columns.", f"It must be from 1 to {d - 1}.")

    # What predict used to leave behind; until 0.4.

    @property
    def shift_(self) -> Finding | list[Finding]:
        """Deprecated: what the targets given to `fit` showed. Use ``explain(x_tgt).shift``."""
        return self._left("shift_", "shift", self._at_fit.findings)

    @property
    def half_(self) -> Half | list[Half]:
        """Deprecated: what would answer for the targets given to `fit`. Use ``explain(x_tgt).half``."""
        return self._left("half_", "half", self._at_fit.halves)

    @property
    def d_c_(self) -> int | list[int]:
        """Deprecated: d_c for the targets given to `fit`. Use ``explain(x_tgt).d_c``."""
        return self._left("d_c_", "d_c", self._at_fit.d_c)

    @property
    def d_s_(self) -> int | list[int]:
        """Deprecated: d_s for the targets given to `fit`. Use ``explain(x_tgt).d_s``."""
        return self._left("d_s_", "d_s", self._at_fit.d_s)

    def _left(self, old: str, new: str, values: Sequence[T]) -> T | list[T]:
        warnings.warn(
            f"{old} says what the targets given to fit showed; predict no longer changes it, and it goes with version "
            f"0.4. Ask explain(x_tgt).{new}.",
            DeprecationWarning,
            stacklevel=3,
        )
        return list(values) if self.source_.batched else values[0]


def _by_run(halves: Sequence[Half], answer: Callable[[Half], Tensor]) -> Tensor:
    """Ask every half that is needed once, and take every run from the one that answers for it."""
    found = {half: answer(half) for half in set(halves)}
    return torch.stack([found[half][r] for r, half in enumerate(halves)])


def _align(parts: Sequence[Tensor]) -> list[Tensor]:
    """Give all parts (R, m, q) as many coordinates as the widest has, zeros at the end."""
    width = max(part.shape[-1] for part in parts)
    return [functional.pad(part, (0, width - part.shape[-1])) for part in parts]
