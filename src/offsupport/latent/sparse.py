"""The sparse half of the extrapolator: Theorem 2 made operational.

Find the observed dimensions that only c can explain, and predict from them. A mixture says how well the source explains
what a set of distrusted dimensions leaves; the prediction is a linear regression on those dimensions among the source
samples nearest to the target, where nearness ignores each pair's worst dimensions. Neighbours need no model of where
the influence of s goes, so it may change from sample to sample; the regression removes the bias of their plain vote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.density import Mixture, fit_mixture
from offsupport.latent.inputs import Source
from offsupport.latent.masks import Weighed, weigh
from offsupport.latent.trimmed import trimmed_sum


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """How the sparse model is fitted; chosen on development seeds."""

    components: int = 40
    """Gaussians of the source density; fewer when samples are few."""
    iterations: int = 30
    """Steps of expectation-maximisation."""
    ridge: float = 1e-3
    """Variance added to every component, in units of the columns' variances."""
    log_prior: float = -4.6
    """Log prior, as a density, of a distrusted dimension: about one in a hundred per standard deviation."""
    sets: int = 4
    """Likeliest sets of distrusted dimensions that are averaged over."""
    neighbours: int = 120
    """Source samples of the local regression; at most a quarter of all."""
    shrink: float = 0.001
    """Ridge of the local regression, relative to the weight of the neighbours."""


@dataclass(frozen=True)
class SparseModel:
    """What is fitted per run, and how it predicts."""

    source: Source
    config: SparseConfig
    largest: int
    mixture: Mixture

    def weigh(self, x: Tensor) -> Weighed:
        """Weigh sets of distrusted dimensions for standardised samples (R, m, d)."""
        return weigh(self.mixture, x, self.largest, self.config.log_prior)

    def output(self, x: Tensor) -> Tensor:
        """Return probabilities (R, m, K) or standardised predictions (R, m)."""
        source, top = self.source, self.weigh(x).top(self.config.sets)
        labels = source.y[..., None]
        if source.task == "classification":
            labels = functional.one_hot(source.y, source.n_classes)
        predicted = [
            local_linear(
                source.x, labels.to(x.dtype), x[:, j], ~top.masks[:, j], self._neighbours(), self.config.shrink
            )
            for j in range(x.shape[1])
        ]
        mean = (torch.stack(predicted, 1) * top.weight[..., None].to(x.dtype)).sum(2)
        if source.task == "regression":
            return mean[..., 0].clamp(source.y.amin(1, keepdim=True), source.y.amax(1, keepdim=True))
        floor = 1 / (2 * self._neighbours()[0])  # k neighbours cannot tell a rarer class from none
        return functional.normalize(mean.clamp_min(floor), p=1.0, dim=-1)

    def _neighbours(self) -> tuple[int, int]:
        """Return how many neighbours there are and how many dimensions decide who they are."""
        _, n, d = self.source.x.shape
        return max(2, min(self.config.neighbours, n // 4)), max(1, d - self.largest)


def fit_sparse(
    source: Source, largest: int, config: SparseConfig, rng: Callable[[str], torch.Generator]
) -> SparseModel:
    """Fit the density of the source."""
    _, n, d = source.x.shape
    components = max(1, min(config.components, n // (4 * d)))
    mixture = fit_mixture(source.x, components, config.iterations, config.ridge, rng("mixture"))
    return SparseModel(source, config, largest, mixture)


def local_linear(
    x: Tensor, labels: Tensor, target: Tensor, kept: Tensor, neighbours: tuple[int, int], shrink: float
) -> Tensor:
    """Regress labels on the kept dimensions around one target per run, and evaluate at the target.

    Args:
        x: (R, n, d) source samples.
        labels: (R, n, q) what is predicted.
        target: (R, d) samples to predict for.
        kept: (R, S, d) booleans: the dimensions each of S regressions may use.
        neighbours: How many neighbours, and how many best-matching dimensions their distance counts.
        shrink: Ridge on the slopes, relative to the total weight.

    Returns:
        (R, S, q) predictions.
    """
    gap = x - target[:, None]
    distance, index = trimmed_sum(gap.square(), neighbours[1]).topk(neighbours[0], largest=False)
    reach = distance[:, -1:].clamp_min(1e-12)
    weight = (1 - (distance / reach) ** 1.5) ** 3 + 1e-3  # tricube in the distance, not its square
    near = gap.gather(1, index[..., None].expand(-1, -1, gap.shape[-1])) / reach.sqrt()[..., None]
    design = torch.cat([torch.ones_like(near[..., :1]), near], -1)[:, None].repeat(1, kept.shape[1], 1, 1)
    design[..., 1:] *= kept[:, :, None].to(x.dtype)
    weighted = (design * weight[:, None, :, None]).mT
    gram = (weighted @ design).double()
    slopes = torch.ones(gram.shape[-1], dtype=torch.float64).index_fill(0, torch.tensor(0), 0.0)
    gram = gram + shrink * weight.sum(1).double()[:, None, None, None] * torch.diag(slopes)
    near_labels = labels.gather(1, index[..., None].expand(-1, -1, labels.shape[-1]))[:, None]
    solution: Tensor = torch.linalg.solve(gram, (weighted @ near_labels).double())
    return solution[:, :, 0].to(x.dtype)
