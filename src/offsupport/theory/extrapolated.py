"""What a fitted `Extrapolator` says about the generator: latents and decoder of the half that answers for a target.

Flow: the decoder is the inverse of the flow, with sharp kinks. Manifold: the classes' planes, mixed by the class
weights. Sparse: x is the decoded code of the trusted columns plus s on the columns the target distrusts; those columns
are the same for source and target, so s_hat is comparable. Observations are standardised like the source. A view
depends on the fit and on the one target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from offsupport.core.errors import InputError
from offsupport.latent.code import Code
from offsupport.latent.extrapolator import Extrapolator
from offsupport.latent.networks import mlp

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DenseView:
    """Latents and decoder of the flow, of which ``d_c`` are c_hat."""

    estimator: Extrapolator
    d_c: int
    name: str = "Extrapolator, dense shift"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat)."""
        model, x = self.estimator.dense_, self.estimator.source_.standardise(X)
        assert model is not None  # noqa: S101 - `view` fitted it
        c, s = model.latents(x, torch.tensor([self.d_c]))
        return c[0].numpy(), s[0].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] (n, d) to standardised observations: the flow backwards."""
        model = self.estimator.dense_
        assert model is not None  # noqa: S101 - `view` fitted it
        flows = model.flows
        h = model.basis()[0].to(z) @ z.T
        for layer in range(len(flows.A) - 1, -1, -1):
            if layer < len(flows.rho):
                h = torch.where(h < 0, h * torch.exp(-flows.rho[layer][0].to(z)), h)
            h = torch.linalg.solve(flows.A[layer][0].to(z), h - flows.b[layer][0].to(z))
        x: Tensor = torch.linalg.solve(model.white[0].to(z).T, h).T
        return x


@dataclass(frozen=True)
class ManifoldView:
    """Class weights, coordinates along the class manifolds, and the manifolds' planes."""

    estimator: Extrapolator
    name: str = "Extrapolator, dense shift of class manifolds"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat)."""
        c, s = self.estimator.manifolds_.latents(self.estimator.source_.standardise(X))
        return c[0].numpy(), s[0].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] to standardised observations."""
        classes = self.estimator.source_.n_classes
        return self.estimator.manifolds_.decode(z[:, :classes], z[:, classes:], 0)


@dataclass(frozen=True)
class SparseView:
    """Code of the trusted columns, and how far the distrusted ones are from what it explains.

    Attributes:
        estimator: The fitted estimator.
        moved: (d,) the columns the target distrusts, among those that vary on the source.
        code: Of the other columns.
    """

    estimator: Extrapolator
    moved: Tensor
    code: Code
    name: str = "Extrapolator, sparse shift"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat); s_hat has one coordinate per distrusted column."""
        x = self.estimator.source_.standardise(X)
        kept = (~self.moved).expand_as(x)
        c_hat = self.code.encode(x, kept)[0, :, : self._d_c()]
        return c_hat.numpy(), (x - self.code.decode(x, kept))[0][:, self.moved].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] to standardised observations."""
        d_c = self._d_c()
        place = torch.eye(len(self.moved), dtype=z.dtype)[self.moved]
        c_hat = functional.pad(z[None, :, :d_c], (0, len(self.moved) - d_c))
        return mlp(_double(self.code.decoder), c_hat)[0] + z[:, d_c:] @ place

    def _d_c(self) -> int:
        return int(self.code.used.sum())


def view(estimator: Extrapolator, x_tgt: Any) -> DenseView | ManifoldView | SparseView:
    """Return the estimator in the half it chooses for a target (d_x,)."""
    if estimator.source_.batched:
        raise InputError("A diagnosis is about one run.", "Fit the Extrapolator on (n, d) arrays.")
    x = np.asarray(x_tgt).reshape(1, -1)
    estimator.predict(x)  # decides on the shift unless it is given, and fits what that needs
    if estimator.half_ == "manifold":
        return ManifoldView(estimator)
    if estimator.half_ == "flow":
        return DenseView(estimator, int(estimator.d_c_))
    chance = torch.from_numpy(estimator.distrust(x))[0, estimator.source_.columns]
    moved = chance > 0.5
    if not bool(moved.any()):
        moved = chance == chance.max()
    return SparseView(estimator, moved, estimator.code(~moved[None]))


def source_of(estimator: Extrapolator) -> tuple[Array, Array]:
    """Return the source the estimator was fitted on; columns that do not vary are zero."""
    source = estimator.source_
    X = torch.zeros(source.x.shape[1], source.width, dtype=torch.float64)
    X[:, source.columns] = (source.x * source.scale + source.mean)[0].double()
    if source.classes is not None:
        return X.numpy(), np.asarray(source.classes)[source.y[0].numpy()]
    return X.numpy(), (source.y * source.y_scale + source.y_mean)[0].double().numpy()


def _double(params: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach().double() for p in params]
