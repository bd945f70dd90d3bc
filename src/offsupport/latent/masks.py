"""Which observed dimensions of a target to distrust: sets of them, weighed by how well the source explains the rest."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.density import Mixture

ENUMERATED = 400  # sets are all weighed up to this many, and searched greedily beyond
BEAM = 12  # sets per size that the greedy search keeps and extends


@dataclass(frozen=True)
class Weighed:
    """Sets of distrusted dimensions and their posterior.

    Attributes:
        masks: (R, m, S, d) booleans, true where a dimension is distrusted.
        weight: (R, m, S) posterior weights, summing to 1 over S.
        kept_density: (R, m, S) log density of the dimensions each set keeps.
    """

    masks: Tensor
    weight: Tensor
    kept_density: Tensor

    def top(self, count: int) -> Weighed:
        """Return the ``count`` likeliest sets of every sample, weights summing to 1 again."""
        weight, index = self.weight.topk(min(count, self.weight.shape[-1]), dim=-1)
        masks = self.masks.gather(2, index[..., None].expand(-1, -1, -1, self.masks.shape[-1]))
        return Weighed(masks, weight / weight.sum(-1, keepdim=True), self.kept_density.gather(2, index))

    def distrust(self) -> Tensor:
        """Return the (R, m, d) posterior probability that each dimension is off."""
        return (self.masks * self.weight[..., None]).sum(2)


def all_masks(d: int, largest: int) -> list[Tensor]:
    """Return the sets of at most ``largest`` of d dimensions as booleans, one tensor per size."""
    sizes = []
    for size in range(largest + 1):
        rows = torch.tensor(list(itertools.combinations(range(d), size)), dtype=torch.long)
        sizes.append(torch.zeros(len(rows), d, dtype=torch.bool).scatter(1, rows, True))
    return sizes


def set_count(d: int, largest: int) -> int:
    """Return how many sets of at most ``largest`` of d dimensions there are."""
    return sum(math.comb(d, size) for size in range(largest + 1))


def weigh(mixture: Mixture, x: Tensor, largest: int, log_prior: float) -> Weighed:
    """Weigh sets M by p(x_kept) times exp(log_prior) per distrusted dimension.

    All sets are weighed while there are few; otherwise a beam search grows them one dimension at a time, so the cost is
    of order d * largest rather than d choose largest.

    Args:
        mixture: Density of the source.
        x: (R, m, d) samples.
        largest: Size of the largest set.
        log_prior: Log prior odds of a dimension being off, as a density over where it then lies.
    """
    d = x.shape[-1]
    if set_count(d, largest) <= ENUMERATED:
        parts = [(masks, mixture.log_density(x, masks)) for masks in all_masks(d, largest)]
        masks = torch.cat([masks for masks, _ in parts]).expand(*x.shape[:2], -1, -1)
        density = torch.cat([density for _, density in parts], -1)
    else:
        masks, density = _beam_search(mixture, x, largest)
    return Weighed(masks, (density + log_prior * masks.sum(-1)).softmax(-1), density)


def _beam_search(mixture: Mixture, x: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Grow sets sample by sample: the best of one size, each extended by every dimension it lacks."""
    runs = [[_grow(_select(mixture, r), sample[None, None], largest) for sample in x[r]] for r in range(len(x))]
    masks = torch.stack([torch.stack([masks for masks, _ in run]) for run in runs])
    return masks, torch.stack([torch.stack([density for _, density in run]) for run in runs])


def _grow(mixture: Mixture, x: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    d = x.shape[-1]
    beam = torch.zeros(1, d, dtype=torch.bool)
    masks, densities = [beam], [mixture.log_density(x, beam)[0, 0]]
    for size in range(1, largest + 1):
        grown = (beam[:, None] | torch.eye(d, dtype=torch.bool)).flatten(0, 1)
        grown = _distinct(grown[grown.sum(-1) == size])
        density = mixture.log_density(x, grown)[0, 0]
        kept = density.topk(min(BEAM, d - size + 1, len(grown)))
        beam = grown[kept.indices]
        masks.append(beam)
        densities.append(kept.values)
    return torch.cat(masks), torch.cat(densities)


def _select(mixture: Mixture, r: int) -> Mixture:
    return Mixture(*(t[r : r + 1] for t in (mixture.log_weight, mixture.mean, mixture.precision, mixture.log_det)))


def _distinct(masks: Tensor) -> Tensor:
    rows: Tensor = torch.unique(masks, dim=0)
    return rows
