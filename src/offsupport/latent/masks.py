"""Which observed dimensions of a target to distrust: sets of them, weighed by how well the source explains the rest."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.latent.beam import beam_search
from offsupport.latent.density import Mixture

ENUMERATED = 400  # sets are all weighed up to this many, and searched (`beam`) beyond


@dataclass(frozen=True)
class Weighed:
    """Sets of distrusted dimensions and their posterior.

    Attributes:
        masks: (R, m, S, d) booleans, true where a dimension is distrusted.
        weight: (R, m, S) posterior weights, summing to 1 over S.
        kept_density: (R, m, S) log density of the dimensions each set keeps.
        largest: How many dimensions a set may hold.
    """

    masks: Tensor
    weight: Tensor
    kept_density: Tensor
    largest: int

    def top(self, count: int) -> Weighed:
        """Return the ``count`` likeliest sets of every sample, weights summing to 1 again."""
        weight, index = self.weight.topk(min(count, self.weight.shape[-1]), dim=-1)
        masks = self.masks.gather(2, index[..., None].expand(-1, -1, -1, self.masks.shape[-1]))
        return Weighed(masks, weight / weight.sum(-1, keepdim=True), self.kept_density.gather(2, index), self.largest)

    def likeliest(self) -> Tensor:
        """Return the (R, m, d) likeliest set of every sample."""
        return self.top(1).masks[:, :, 0]

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

    All sets are weighed while there are few; otherwise a beam search grows them one dimension at a time, as long as
    larger sets pay, so the cost is of order d * largest at most rather than d choose largest.

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
        masks, density = beam_search(mixture, x, largest, log_prior)
    return Weighed(masks, (density + log_prior * masks.sum(-1)).softmax(-1), density, largest)
