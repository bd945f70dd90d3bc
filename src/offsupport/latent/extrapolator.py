"""The estimator for users: fit on the source, ask about samples outside its support."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from offsupport.core.errors import ConfigError, ModelError
from offsupport.latent.base import Array, LatentEstimator
from offsupport.latent.code import Code, fit_code
from offsupport.latent.dense import DenseModel, fit_dense
from offsupport.latent.dimension import intrinsic_dimension
from offsupport.latent.flow_fit import FlowConfig
from offsupport.latent.inputs import Source
from offsupport.latent.manifold import fit_manifolds
from offsupport.latent.masks import typical
from offsupport.latent.sparse import SparseConfig, SparseModel, fit_sparse


@dataclass(frozen=True)
class Finding:
    """What kind of shift a run's targets show, and why."""

    shift: Literal["dense", "sparse", "undecided"]
    reason: str

    def __str__(self) -> str:
        return f"{self.shift}: {self.reason}"


@dataclasses.dataclass(kw_only=True)
class Extrapolator(LatentEstimator):
    """Predicts on samples outside the source support by finding what in them is invariant.

    Sparse shifts: the dimensions that left the source are found and distrusted (`sparse`). Dense shifts: an invertible
    model of the source is carried beyond its support (`dense`), or, where every class is a thin manifold (finite C, as
    in Theorem 1), the manifolds' tangent planes are (`manifold`). With ``shift="auto"`` both halves are fitted, and the
    targets of a run decide: where the source explains all but a few dimensions of most of them the shift is sparse.
    """

    shift: Literal["auto", "dense", "sparse"] = "auto"
    """The kind of shift, if known."""
    d_c: int | None = None
    """Dimensions of the invariant variable; None: estimated (see ``d_c_``)."""
    d_s: int | None = None
    """Dimensions of the changing variable, the most a sparse shift may move; None: a third of the columns."""
    flow: FlowConfig = dataclasses.field(default_factory=FlowConfig)
    """How the dense model is fitted."""
    masked: SparseConfig = dataclasses.field(default_factory=SparseConfig)
    """How the sparse model is fitted."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        if self.shift not in ("auto", "dense", "sparse"):
            raise ConfigError(f"The shift is {self.shift!r}.", "Use 'auto', 'dense' or 'sparse'.")
        d = source.x.shape[-1]
        for name, value in (("d_c", self.d_c), ("d_s", self.d_s)):
            if value is not None and not 1 <= value < max(d, 2):
                raise ConfigError(f"{name} is {value} for {d} varying columns.", f"It must be from 1 to {d - 1}.")
        self.d_s_ = self.d_s or max(1, d // 3)
        self.d_c_ = self.d_c or max(1, round(float(intrinsic_dimension(source.x).mean())) - self.d_s_)
        self.code_: Code | None = None
        self.sparse_: SparseModel | None = None
        self.dense_: DenseModel | None = None
        if self.shift != "dense":
            self.sparse_ = fit_sparse(source, self.d_s_, self.masked, lambda part: self._rng("sparse", part))
        self._findings = [self._given()] * len(source.x)
        needed = self.shift != "sparse"
        if x_tgt is not None and self.shift == "auto":
            self._decide(x_tgt)
            needed = any(finding.shift == "dense" for finding in self._findings)
        if self.shift != "sparse":
            self.manifolds_, self.thin_ = fit_manifolds(source)
        if needed and not self.thin_.all():
            self._fit_dense()

    @property
    def shift_(self) -> Finding | list[Finding]:
        """What was found about the shift of the targets seen last; a list when there are several runs."""
        if not hasattr(self, "_findings"):
            raise ModelError("This Extrapolator is not fitted.", "Call fit(X, y) first.")
        return self._findings if self.source_.batched else self._findings[0]

    @torch.no_grad()
    def distrust(self, X: Any) -> Array:
        """Return the probability that each column of each sample left the source, columns as in fit."""
        source, x = self._ready(X)
        if self.sparse_ is None:
            raise ModelError("A dense shift moves every column.", "Fit with shift='sparse' or 'auto'.")
        full = torch.zeros(*x.shape[:2], source.width, dtype=torch.float64)
        full[..., source.columns] = self.sparse_.weigh(x).distrust().double()
        return self._out(full.numpy())

    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return the estimated invariant and changing variables (c_hat, s_hat) of every sample.

        Sparse shifts: c_hat is a code of the trusted columns, fitted at the first call on the columns that its samples
        mostly trust, so ask for the targets first; s_hat is, per column, what a distrusted value has beyond the code.
        Dense shifts: c_hat and s_hat are the flow's latents, the directions that the label moves first.
        """
        return super().latents(X)

    def confidence(self, X: Any) -> Array:
        """Return how sure the prediction of each sample is: the probability of its class."""
        return np.asarray(self.predict_proba(X).max(-1))

    def _output(self, x: Tensor) -> Tensor:
        if self.shift == "auto":
            self._decide(x)
        dense = torch.tensor([finding.shift == "dense" for finding in self._findings])
        if not dense.any():
            assert self.sparse_ is not None  # noqa: S101 - told to the type checker
            return self.sparse_.output(x)
        posterior = self._dense_output(x)
        if dense.all() or self.sparse_ is None:
            return posterior
        return torch.where(dense.view(-1, *[1] * (posterior.ndim - 1)), posterior, self.sparse_.output(x))

    def _dense_output(self, x: Tensor) -> Tensor:
        if self.thin_.all():
            return self.manifolds_.posterior(x)
        model = self._fit_dense()
        posterior = model.posterior(x)
        if self.source_.task == "regression":
            return (posterior * model.values[:, None]).sum(-1)
        if self.thin_.any():
            posterior = torch.where(self.thin_[:, None, None], self.manifolds_.posterior(x), posterior)
        return posterior

    def _latents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.shift == "auto":
            self._decide(x)
        if all(finding.shift == "dense" for finding in self._findings):
            return self._fit_dense().latents(x, min(self.d_c_, x.shape[-1] - 1))
        assert self.sparse_ is not None  # noqa: S101 - told to the type checker
        mask = self.sparse_.weigh(x).top(1).masks[:, :, 0]
        code = self._fit_code(mask)
        return code.encode(x, ~mask), torch.where(mask, x - code.decode(x, ~mask), 0.0)

    def _fit_code(self, masks: Tensor) -> Code:
        """Fit the code at its first use, on the columns that the samples at hand mostly trust."""
        if self.code_ is None:
            trusted = masks.double().mean(1) < 0.5
            with torch.enable_grad():
                self.code_ = fit_code(self.source_, trusted, self.d_c_, self.d_s_, lambda part: self._rng("code", part))
        return self.code_

    def _decide(self, x: Tensor) -> None:
        assert self.sparse_ is not None  # noqa: S101 - told to the type checker
        top = self.sparse_.weigh(x).top(1)
        explained = typical(self.sparse_.mixture, self.source_.x, top.masks[:, :, 0], top.kept_density[..., 0])
        moved = top.masks[:, :, 0].sum(-1).double().mean(-1)
        self._findings = [
            _finding(float(share), float(count), self.d_s_)
            for share, count in zip(explained.double().mean(-1), moved, strict=True)
        ]

    def _given(self) -> Finding:
        if self.shift == "auto":
            return Finding("undecided", "no target seen yet.")
        return Finding(self.shift, "given.")

    def _fit_dense(self) -> DenseModel:
        if self.dense_ is None:
            with torch.enable_grad():
                self.dense_ = fit_dense(self.source_, self.flow, lambda part: self._rng("dense", part))
        return self.dense_


def _finding(share: float, moved: float, largest: int) -> Finding:
    """Put the share of targets that a sparse shift explains into words."""
    if share >= 0.5:
        return Finding(
            "sparse", f"without {moved:.1f} columns on average, {share:.0%} of the targets look like the source."
        )
    return Finding(
        "dense",
        f"even without their worst {largest} columns, {1 - share:.0%} of the targets do not look like the source.",
    )
