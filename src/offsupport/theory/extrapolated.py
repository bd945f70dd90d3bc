"""What a fitted `Extrapolator` says about the generator: its latents and decoder, in the mode it chose for the targets.

Dense: the decoder is the inverse of the flow, with sharp kinks. Sparse: x is the decoded code of the trusted columns
plus s on the columns the target distrusts; those columns are the same for source and target, so s_hat is comparable.
Observations are standardised like the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offsupport.core.errors import InputError
from offsupport.latent.extrapolator import Extrapolator
from offsupport.latent.networks import mlp

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DenseView:
    """Latents and decoder of the flow."""

    estimator: Extrapolator
    name: str = "Extrapolator, dense shift"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat)."""
        model, x = self.estimator.dense_, self.estimator.source_.standardise(X)
        assert model is not None  # noqa: S101 - `view` fitted it
        c, s = model.latents(x, min(self.estimator.d_c_, x.shape[-1] - 1))
        return c[0].numpy(), s[0].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] (n, d) to standardised observations: the flow backwards."""
        model = self.estimator.dense_
        assert model is not None  # noqa: S101 - `view` fitted it
        flows, means = model.flows, (model.flows.means @ model.features)[0]
        basis = torch.linalg.svd(means - means.mean(-1, keepdim=True), full_matrices=True)[0].to(z)
        h = basis @ z.T
        for layer in range(len(flows.A) - 1, -1, -1):
            if layer < len(flows.rho):
                h = torch.where(h < 0, h * torch.exp(-flows.rho[layer][0].to(z)), h)
            h = torch.linalg.solve(flows.A[layer][0].to(z), h - flows.b[layer][0].to(z))
        x: Tensor = torch.linalg.solve(model.white[0].to(z).T, h).T
        return x


@dataclass(frozen=True)
class SparseView:
    """Code of the trusted columns, and how far the distrusted ones are from what it explains.

    Attributes:
        estimator: The fitted estimator.
        moved: (d,) the columns the target distrusts, among those that vary on the source.
    """

    estimator: Extrapolator
    moved: Tensor
    name: str = "Extrapolator, sparse shift"

    @torch.no_grad()
    def latents(self, X: Any) -> tuple[Array, Array]:
        """Return (c_hat, s_hat); s_hat has one coordinate per distrusted column."""
        code, x = self.estimator.code_, self.estimator.source_.standardise(X)
        assert code is not None  # noqa: S101 - `view` fitted it
        kept = (~self.moved).expand_as(x)
        residual = x - code.decode(x, kept)
        return code.encode(x, kept)[0].numpy(), residual[0][:, self.moved].numpy()

    def decode(self, z: Tensor) -> Tensor:
        """Map [c_hat, s_hat] to standardised observations."""
        code = self.estimator.code_
        assert code is not None  # noqa: S101 - `view` fitted it
        d_s = int(self.moved.sum())
        place = torch.eye(len(self.moved), dtype=z.dtype)[self.moved]
        explained = mlp(_double(code.decoder), z[None, :, :-d_s])[0]
        return explained + z[:, -d_s:] @ place


def view(estimator: Extrapolator, x_tgt: Any) -> DenseView | SparseView:
    """Return the estimator in the mode it chooses for a target (d_x,)."""
    x = np.asarray(x_tgt).reshape(1, -1)
    estimator.latents(x)  # decides on the shift unless it is given, and fits what that needs
    if estimator.source_.batched:
        raise InputError("A diagnosis is about one run.", "Fit the Extrapolator on (n, d) arrays.")
    found = estimator.shift_
    if not isinstance(found, list) and found.shift == "dense":
        return DenseView(estimator)
    chance = torch.from_numpy(estimator.distrust(x))[0, estimator.source_.columns]
    moved = chance > 0.5
    if not bool(moved.any()):
        moved = chance == chance.max()
    return SparseView(estimator, moved)


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
