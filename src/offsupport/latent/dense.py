"""The dense half of the extrapolator: a flow fitted by maximum likelihood, and Bayes' rule in its latent space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.flow import FlowShape, FlowViews, log_density, transform, views
from offsupport.latent.flow_fit import SHARP, FlowConfig, whitening
from offsupport.latent.inputs import Source
from offsupport.latent.memory import fitted_flow

GRID = 65  # values of y a regression posterior is computed on: quantiles of the source


@dataclass(frozen=True)
class DenseModel:
    """A flow per run and the label values it can explain a target with.

    Attributes:
        flat: (R, count) parameters of the flows.
        white: (R, d, d) whitening that precedes them.
        features: (R, q, v) features of the v label values; values: (R, v) those values; log_prior: (R, v).
    """

    flat: Tensor
    shape: FlowShape
    white: Tensor
    features: Tensor
    values: Tensor
    log_prior: Tensor

    @property
    def flows(self) -> FlowViews:
        """The parameters by name."""
        return views(self.flat, self.shape)

    def posterior(self, x: Tensor) -> Tensor:
        """Return p(y | x) over the label values, (R, m, v), for standardised samples (R, m, d)."""
        white = (x @ self.white).mT
        terms = []
        for feature, log_prior in zip(self.features.unbind(-1), self.log_prior.unbind(-1), strict=True):
            labels = feature[..., None].expand(-1, -1, white.shape[-1])
            terms.append(log_density(self.flows, white, labels, self._widths()) + log_prior[:, None])
        return torch.stack(terms, -1).softmax(-1)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (R, m) of the posterior of a regression."""
        posterior = self.posterior(x)
        mean = (posterior * self.values[:, None]).sum(-1)
        square = (posterior * (self.values[:, None] - mean[..., None]).square()).sum(-1)
        return mean, square.sqrt()

    def latents(self, x: Tensor, d_c: Tensor) -> tuple[Tensor, Tensor]:
        """Return z in a basis whose first axes are those the label moves, cut into c_hat and s_hat.

        Args:
            x: (R, m, d) standardised samples.
            d_c: (R,) how many axes are c_hat; where runs differ, the missing coordinates are zero.
        """
        z, _ = transform(self.flows, (x @ self.white).mT, self._widths())
        z = z.mT @ self.basis()
        d = z.shape[-1]
        c = z[..., : int(d_c.max())] * (torch.arange(int(d_c.max())) < d_c[:, None, None])
        rest = d - int(d_c.min())
        s = torch.stack([functional.pad(z[r, :, int(k) :], (0, rest - d + int(k))) for r, k in enumerate(d_c)])
        return c, s

    def basis(self) -> Tensor:
        """Return the (R, d, d) orthogonal basis whose first axes span the means of the labels."""
        means = self.flows.means @ self.features
        basis: Tensor = torch.linalg.svd(means - means.mean(-1, keepdim=True), full_matrices=True)[0]
        return basis

    def _widths(self) -> list[float]:
        return [SHARP] * (self.shape.layers - 1)


def fit_dense(
    source: Source, config: FlowConfig, rng: Callable[[str], torch.Generator], memory: str | None = None
) -> DenseModel:
    """Fit the flow of every run (`flow_fit`), or read it from the folder ``memory``."""
    white = whitening(source.x.mT @ source.x / source.x.shape[1])
    x = (source.x @ white).mT.contiguous()
    if source.task == "classification":
        labels = functional.one_hot(source.y, source.n_classes).to(x.dtype).mT.contiguous()
        features = torch.eye(source.n_classes, dtype=x.dtype).expand(len(x), -1, -1)
        values = torch.arange(source.n_classes).expand(len(x), -1).to(x.dtype)
        log_prior = labels.mean(-1).log()
    else:
        labels = torch.stack([torch.ones_like(source.y), source.y], 1)
        values = source.y.quantile(torch.linspace(0, 1, GRID, dtype=x.dtype), dim=1).T.contiguous()
        features = torch.stack([torch.ones_like(values), values], 1)
        log_prior = torch.zeros_like(values)
    flat = fitted_flow(memory, x, labels, config, rng)
    return DenseModel(flat, FlowShape(x.shape[1], config.layers, labels.shape[1]), white, features, values, log_prior)
