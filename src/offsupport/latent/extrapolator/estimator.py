"""The estimator for users: fit on the source, ask about samples outside its support."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from offsupport.core.errors import ConfigError, ModelError
from offsupport.latent.base import Array, LatentEstimator
from offsupport.latent.extrapolator.code import Code, fit_code
from offsupport.latent.extrapolator.decision import (
    KEPT_OUT,
    Finding,
    changing_dimension,
    decide,
    flow_multiple,
    intrinsic_dimension,
    sparse_multiple,
)
from offsupport.latent.extrapolator.dense import DenseModel, FlowConfig, fit_dense
from offsupport.latent.extrapolator.manifold import fit_manifolds
from offsupport.latent.extrapolator.sparse import SparseConfig, SparseModel, fit_sparse
from offsupport.latent.inputs import Source

Half = Literal["sparse", "flow", "manifold"]


@dataclasses.dataclass(kw_only=True)
class Extrapolator(LatentEstimator):
    """Predicts on samples outside the source support by finding what in them is invariant.

    Sparse shifts: the dimensions that left the source are found and distrusted (`sparse`). Dense shifts: an invertible
    model of the source is carried beyond its support (`dense`), or, where every class is a thin manifold (finite C, as
    in Theorem 1), the manifolds' tangent planes are (`manifold`). With ``shift="auto"`` the targets of a run decide,
    all together: by whether a few moved columns explain them better than a shift of all columns (`evidence`). How many
    columns a sparse shift moves is found in the same targets, unless ``d_s`` is given (`dimension`).
    """

    shift: Literal["auto", "dense", "sparse"] = "auto"
    """The kind of shift, if known."""
    d_c: int | None = None
    """Dimensions of the invariant variable; None: estimated (see ``d_c_``)."""
    d_s: int | None = None
    """Dimensions of the changing variable, the most a sparse shift may move; None: found in the targets (``d_s_``)."""
    flow: FlowConfig = dataclasses.field(default_factory=FlowConfig)
    """How the dense model is fitted."""
    masked: SparseConfig = dataclasses.field(default_factory=SparseConfig)
    """How the sparse model is fitted."""
    memory: str | None = None
    """Folder where fitted flows are kept; a later fit of the same flow to the same data is read from there."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        d = source.x.shape[-1]
        self._check(d)
        self._most = self.d_s or max(1, d // 2)  # a sparse shift leaves at least half of the columns alone
        self._d_s = [self._most] * len(source.x)
        self._dimension = intrinsic_dimension(source.x)
        self._codes: dict[bytes, Code] = {}
        self.sparse_: SparseModel | None = None
        self.dense_: DenseModel | None = None
        if self.shift != "dense":
            self.sparse_ = fit_sparse(source, self._most, self.masked, lambda part: self._rng("sparse", part))
        self.manifolds_, self.thin_ = fit_manifolds(source)
        self._findings = [self._given()] * len(source.x)
        if x_tgt is not None:
            self._look(x_tgt)
        for half in set(self._halves()):
            self._needed(half)

    @property
    def shift_(self) -> Finding | list[Finding]:
        """What was found about the shift of the targets seen last; a list when there are several runs."""
        self._fitted()
        return self._findings if self.source_.batched else self._findings[0]

    @property
    def half_(self) -> Half | list[Half]:
        """What answers for the targets seen last: ``sparse``, ``flow`` or ``manifold``; a list for several runs."""
        self._fitted()
        return self._halves() if self.source_.batched else self._halves()[0]

    @property
    def d_c_(self) -> int | Array:
        """Dimensions of the invariant variable: as given, or the intrinsic dimension of the run's source minus d_s.

        At least 1. Where the flow answers, which has as many latents as columns, the columns minus d_s. An array with
        one number per run when there are several runs.
        """
        self._fitted()
        d_c = self._d_c()
        return np.array(d_c) if self.source_.batched else d_c[0]

    @property
    def d_s_(self) -> int | Array:
        """Dimensions of the changing variable: as given, or as many columns as the targets seen last moved.

        That is the largest of their likeliest sets of distrusted columns, one in ten of the moved targets aside. It is
        half of the columns, the most a sparse shift may move, before any target is seen and where the shift is dense:
        all columns move then, nothing says how many latents stand behind that, and d_s only cuts the flow's latents
        in two. An array with one number per run when there are several runs.
        """
        self._fitted()
        return np.array(self._d_s) if self.source_.batched else self._d_s[0]

    @torch.no_grad()
    def distrust(self, X: Any) -> Array:
        """Return the probability that each column of each sample left the source, columns as in fit."""
        source, x = self._ready(X)
        if self.sparse_ is None:
            raise ModelError("A dense shift moves every column.", "Fit with shift='sparse' or 'auto'.")
        self._look(x)
        full = torch.zeros(*x.shape[:2], source.width, dtype=torch.float64)
        full[..., source.columns] = self._sparsely(lambda model, runs: model.weigh(x[runs]).distrust().double())
        return self._out(full.numpy())

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
        if hasattr(self, "source_") and self.source_.task == "regression":
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
        centre = self._output(x)
        half = self._choose({half: self._half_width(half, x, level) for half in set(self._halves())})
        ends = torch.stack([centre - half, centre + half], -1)
        return self._out((ends * source.y_scale[..., None] + source.y_mean[..., None]).numpy())

    def _half_width(self, half: Half, x: Tensor, level: float) -> Tensor:
        if half == "sparse":
            return self._sparsely(
                lambda model, runs: sparse_multiple(model, level, self._rng("interval")) * model.spread(x[runs])
            )
        assert self.dense_ is not None  # noqa: S101 - told to the type checker; class manifolds are no regression
        source = self.source_
        multiple = flow_multiple(self.dense_, source.x[:, :KEPT_OUT], source.y[:, :KEPT_OUT], level)
        return multiple * self.dense_.moments(x)[1]

    def code(self, trusted: Tensor, runs: Tensor | None = None) -> Code:
        """Return the code of the trusted columns (R, d) of all runs, or of these, which share d_s; fitted once."""
        runs = torch.arange(len(trusted)) if runs is None else runs
        d_c, largest = torch.tensor(self._d_c())[runs], self._d_s[int(runs[0])]
        key = b"".join(part.numpy().tobytes() for part in (trusted, runs, d_c, torch.tensor(largest)))
        if key not in self._codes:
            with torch.enable_grad():
                self._codes[key] = fit_code(
                    self.source_.select(runs), trusted, d_c, largest, lambda part: self._rng("code", part)
                )
        return self._codes[key]

    def _output(self, x: Tensor) -> Tensor:
        self._look(x)
        return self._choose({half: self._half_output(half, x) for half in set(self._halves())})

    def _half_output(self, half: Half, x: Tensor) -> Tensor:
        self._needed(half)
        if half == "sparse":
            return self._sparsely(lambda model, runs: model.output(x[runs]))
        if half == "manifold":
            return self.manifolds_.posterior(x)
        assert self.dense_ is not None  # noqa: S101 - told to the type checker
        return self.dense_.moments(x)[0] if self.source_.task == "regression" else self.dense_.posterior(x)

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self._look(x)
        found = {half: self._half_latents(half, x) for half in set(self._halves())}
        c_hat, s_hat = (_align({half: parts[i] for half, parts in found.items()}) for i in (0, 1))
        return self._choose(c_hat), self._choose(s_hat)

    def _half_latents(self, half: Half, x: Tensor) -> tuple[Tensor, Tensor]:
        self._needed(half)
        if half == "manifold":
            return self.manifolds_.latents(x)
        if half == "flow":
            assert self.dense_ is not None  # noqa: S101 - told to the type checker
            return self.dense_.latents(x, torch.tensor(self._d_c()))
        c_hat, s_hat = self._sparsely(lambda model, runs: self._coded(model, runs, x[runs])).unbind(1)
        return c_hat[..., : max(self._d_c())], s_hat

    def _coded(self, model: SparseModel, runs: Tensor, x: Tensor) -> Tensor:
        """Return c_hat, zeros beyond d_c, and s_hat of runs that share d_s, (R, 2, m, d)."""
        weighed = model.weigh(x)
        mask = weighed.likeliest()
        code = self.code(weighed.distrust().mean(1) <= 0.5, runs)
        return torch.stack([code.encode(x, ~mask), torch.where(mask, x - code.decode(x, ~mask), 0.0)], 1)

    def _sparsely(self, answer: Callable[[SparseModel, Tensor], Tensor]) -> Tensor:
        assert self.sparse_ is not None  # noqa: S101 - told to the type checker
        return self.sparse_.by_size(self._d_s, answer)

    def _choose(self, found: Mapping[Half, Tensor]) -> Tensor:
        """Take every run from the half that answers for it."""
        return torch.stack([found[half][r] for r, half in enumerate(self._halves())])

    def _halves(self) -> list[Half]:
        dense: list[Half] = ["manifold" if thin else "flow" for thin in self.thin_]
        return [dense[r] if finding.shift == "dense" else "sparse" for r, finding in enumerate(self._findings)]

    def _look(self, x: Tensor) -> None:
        """Find the shift and d_s of the targets, as far as they are not given."""
        if self.sparse_ is None or (self.shift == "sparse" and self.d_s is not None):
            return
        weighed = self.sparse_.weigh(x)
        if self.shift == "auto":
            self._findings = decide(self.sparse_, weighed, x, self._dimension, self.thin_, self.flow)
        if self.d_s is None:
            found = zip(changing_dimension(weighed), self._halves(), strict=True)
            self._d_s = [d_s if half == "sparse" else self._most for d_s, half in found]

    def _d_c(self) -> list[int]:
        if self.d_c is not None:
            return [self.d_c] * len(self._d_s)
        d = self.source_.x.shape[-1]
        found: list[int] = self._dimension.round().long().tolist()
        total = [d if half == "flow" else count for half, count in zip(self._halves(), found, strict=True)]
        return [max(1, count - d_s) for count, d_s in zip(total, self._d_s, strict=True)]

    def _needed(self, half: Half) -> None:
        """Fit the flow if it is what answers for some run, once."""
        if half == "flow" and self.dense_ is None and not self.thin_.all():
            with torch.enable_grad():
                self.dense_ = fit_dense(self.source_, self.flow, lambda part: self._rng("dense", part), self.memory)

    def _given(self) -> Finding:
        if self.shift == "auto":
            return Finding("undecided", "no target seen yet.")
        return Finding(self.shift, "given.")

    def _fitted(self) -> None:
        if not hasattr(self, "_findings"):
            raise ModelError("This Extrapolator is not fitted.", "Call fit(X, y) first.")

    def _check(self, d: int) -> None:
        if self.shift not in ("auto", "dense", "sparse"):
            raise ConfigError(f"The shift is {self.shift!r}.", "Use 'auto', 'dense' or 'sparse'.")
        for name, value in (("d_c", self.d_c), ("d_s", self.d_s)):
            if value is not None and not 1 <= value < max(d, 2):
                raise ConfigError(f"{name} is {value} for {d} varying columns.", f"It must be from 1 to {d - 1}.")


def _align(parts: Mapping[Half, Tensor]) -> dict[Half, Tensor]:
    """Give all parts (R, m, q) as many coordinates as the widest has, zeros at the end."""
    width = max(part.shape[-1] for part in parts.values())
    return {half: functional.pad(part, (0, width - part.shape[-1])) for half, part in parts.items()}
