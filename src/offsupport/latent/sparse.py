"""The sparse half of the extrapolator: Theorem 2 made operational.

Find the observed dimensions that only c can explain, and predict from them. A mixture says how well the source explains
what a set of distrusted dimensions leaves; two networks predict y from what is left (one sees it with the rest hidden,
the other with the rest moved to the edge of the source); nearest neighbours that may ignore as many dimensions vote
beside them, because they need no model where the influenced dimensions change from sample to sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.base import finish
from offsupport.latent.density import Mixture, fit_mixture
from offsupport.latent.inputs import Source
from offsupport.latent.masks import Weighed, weigh
from offsupport.latent.networks import Params, adam, batches, init_mlp, mlp, supervised_loss
from offsupport.latent.trimmed import neighbour_vote


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
    sets: int = 16
    """Likeliest sets of distrusted dimensions that are averaged over."""
    neighbours: int = 15
    """Neighbours that vote."""
    edge: float = 0.005
    """Quantile of a source column that counts as its edge."""
    width: int = 64
    """Hidden units of the network."""
    epochs: int = 25
    """Passes over the source."""
    batch_size: int = 256
    """Samples per step."""
    lr: float = 4e-3
    """Step size of Adam."""


@dataclass(frozen=True)
class SparseModel:
    """What is fitted per run, and how it predicts."""

    source: Source
    config: SparseConfig
    largest: int
    mixture: Mixture
    network: Params
    low: Tensor
    high: Tensor

    def weigh(self, x: Tensor) -> Weighed:
        """Weigh sets of distrusted dimensions for standardised samples (R, m, d)."""
        return weigh(self.mixture, x, self.largest, self.config.log_prior)

    def output(self, x: Tensor) -> Tensor:
        """Return probabilities (R, m, K) or standardised predictions (R, m): the mean of the three predictors."""
        top = self.weigh(x).top(self.config.sets)
        masked = self._network(torch.where(top.masks, 0.0, x[:, :, None]), ~top.masks)
        weight = top.weight.to(x.dtype)
        hidden = (masked * weight.view(*weight.shape, *[1] * (masked.ndim - 3))).sum(2)
        inside = x.clamp(self.low, self.high)[:, :, None]
        moved = self._network(inside, torch.ones_like(inside, dtype=torch.bool))[:, :, 0]
        vote = neighbour_vote(self.source, x, self.largest, self.config.neighbours)
        return (hidden + moved + vote) / 3

    def _network(self, x: Tensor, kept: Tensor) -> Tensor:
        """Predict from (R, m, S, d) samples and what is kept of them."""
        inputs = torch.cat([x, kept.to(x.dtype).expand_as(x)], -1)
        return finish(mlp(self.network, inputs.flatten(1, 2)).unflatten(1, x.shape[1:3]), self.source)


def fit_sparse(
    source: Source, largest: int, config: SparseConfig, rng: Callable[[str], torch.Generator]
) -> SparseModel:
    """Fit the density, the network and the edges of the source."""
    x, y = source.x, source.y
    runs, n, d = x.shape
    components = max(1, min(config.components, n // (4 * d)))
    mixture = fit_mixture(x, components, config.iterations, config.ridge, rng("mixture"))
    network = init_mlp([2 * d, *[config.width] * 3, source.n_classes or 1], runs, rng("network"), x.dtype)
    hide = rng("hide")

    def loss(index: Tensor) -> Tensor:
        kept = random_kept(len(index), d, largest, hide).to(x.dtype)
        seen = x[:, index] * kept
        return supervised_loss(mlp(network, torch.cat([seen, kept.expand_as(seen)], -1)), y[:, index])

    adam(network, loss, batches(n, config.batch_size, config.epochs, rng("order")), config.lr)
    low, high = (torch.stack([run.quantile(q, 0) for run in x])[:, None] for q in (config.edge, 1 - config.edge))
    return SparseModel(source, config, largest, mixture, network, low, high)


def random_kept(count: int, d: int, largest: int, rng: torch.Generator) -> Tensor:
    """Return (count, d) booleans that hide 0 to ``largest`` dimensions, every size and every set of a size alike."""
    size = torch.randint(0, largest + 1, (count, 1), generator=rng)
    return torch.rand(count, d, generator=rng).argsort(-1) >= size
