"""The sparse half of the extrapolator: Theorem 2 made operational.

Find the observed dimensions that only c can explain, and predict from them. A mixture says how well the source explains
what a set of distrusted dimensions leaves; the prediction is a linear regression on those dimensions among the source
samples nearest to the target, where nearness ignores each pair's worst dimensions. Neighbours need no model of where
the influence of s goes, so it may change from sample to sample; the regression removes the bias of their plain vote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

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

    def select(self, runs: Tensor, largest: int) -> SparseModel:
        """Return the model of some of the runs, with sets of at most ``largest`` dimensions."""
        if len(runs) == len(self.source.x):
            return replace(self, largest=largest)
        return SparseModel(self.source.select(runs), self.config, largest, self.mixture.select(runs))

    def by_size(self, d_s: Sequence[int], answer: Callable[[SparseModel, Tensor], Tensor]) -> Tensor:
        """Ask about every run with sets of its own largest size, and stack the answers.

        Args:
            d_s: Largest size of every run.
            answer: Gets the model of the runs that share a size, and which these are; answers run by run.
        """
        sizes, found = torch.tensor(d_s), dict[int, Tensor]()
        for largest in set(d_s):
            runs = (sizes == largest).nonzero()[:, 0]
            found |= zip(runs.tolist(), answer(self.select(runs, largest), runs), strict=True)
        return torch.stack([found[r] for r in range(len(d_s))])

    def weigh(self, x: Tensor) -> Weighed:
        """Weigh sets of distrusted dimensions for standardised samples (R, m, d)."""
        return weigh(self.mixture, x, self.largest, self.config.log_prior)

    def output(self, x: Tensor) -> Tensor:
        """Return probabilities (R, m, K) or standardised predictions (R, m)."""
        source, top = self.source, self.weigh(x).top(self.config.sets)
        values = [fit.value() for fit in self._fits(x, top)]
        mean = (torch.stack(values, 1) * top.weight[..., None].to(x.dtype)).sum(2)
        if source.task == "regression":
            return mean[..., 0].clamp(source.y.amin(1, keepdim=True), source.y.amax(1, keepdim=True))
        floor = 1 / (2 * self._neighbours()[0])  # k neighbours cannot tell a rarer class from none
        return functional.normalize(mean.clamp_min(floor), p=1.0, dim=-1)

    def spread(self, x: Tensor) -> Tensor:
        """Return the predictive standard deviation (R, m) of a regression: of the neighbours and over the sets."""
        top = self.weigh(x).top(self.config.sets)
        weight = top.weight.to(x.dtype)
        both = [torch.cat([fit.value(), fit.variance()], -1) for fit in self._fits(x, top)]
        value, inner = torch.stack(both, 1).unbind(-1)
        mean = (value * weight).sum(2, keepdim=True)
        return ((inner + (value - mean).square()) * weight).sum(2).sqrt()

    def _fits(self, x: Tensor, top: Weighed) -> Iterator[LocalFit]:
        """Yield the regressions of one sample per run at a time, which keeps the table of differences small."""
        labels = self.source.y[..., None]
        if self.source.task == "classification":
            labels = functional.one_hot(self.source.y, self.source.n_classes)
        near, shrink = self._neighbours(), self.config.shrink
        for j in range(x.shape[1]):
            yield local_linear(self.source.x, labels.to(x.dtype), x[:, j], ~top.masks[:, j], near, shrink)

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


@dataclass(frozen=True)
class LocalFit:
    """S regressions around one target per run: solution (R, S, 1 + d, q), and what they were fitted to.

    Attributes:
        design: (R, S, k, 1 + d); labels: (R, 1, k, q); weight: (R, k).
    """

    solution: Tensor
    design: Tensor
    labels: Tensor
    weight: Tensor

    def value(self) -> Tensor:
        """Return the (R, S, q) predictions."""
        return self.solution[:, :, 0].to(self.design.dtype)

    def variance(self) -> Tensor:
        """Return the (R, S, q) weighted variances of the neighbours about the regressions."""
        residual = self.labels - (self.design.double() @ self.solution).to(self.labels.dtype)
        weight = (self.weight / self.weight.sum(-1, keepdim=True))[:, None, :, None]
        return (residual.square() * weight).sum(2)


def local_linear(
    x: Tensor, labels: Tensor, target: Tensor, kept: Tensor, neighbours: tuple[int, int], shrink: float
) -> LocalFit:
    """Regress labels on the kept dimensions around one target per run.

    Args:
        x: (R, n, d) source samples.
        labels: (R, n, q) what is predicted.
        target: (R, d) samples to predict for.
        kept: (R, S, d) booleans: the dimensions each of S regressions may use.
        neighbours: How many neighbours, and how many best-matching dimensions their distance counts.
        shrink: Ridge on the slopes, relative to the total weight.
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
    return LocalFit(solution, design, near_labels, weight)
