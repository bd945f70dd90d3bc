"""Beam search for sets of distrusted dimensions, where there are too many to weigh all of them.

Sets grow by one dimension at a time. Hiding a dimension of a Gaussian is one step of elimination in its precision
matrix, and the pivots on the diagonal give the density without every further dimension at once; so a set costs d^2
operations per component, whatever its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.density import MOST_ENTRIES, Mixture

BEAM = 12  # sets per size that are kept and extended
FAR, TWICE = 10.0, 2  # the search ends once the best set is this many nats below a smaller one, at two sizes in a row


@dataclass(frozen=True)
class Beam:
    """Sets of one size for each of N samples, and the mixtures without the dimensions they hide.

    Attributes:
        masks: (N, B, d) booleans, true where a dimension is hidden.
        terms: (N, B, K) log densities of the components over the other dimensions, weights included.
        precision: (N, B, K, d, d) after elimination of the hidden dimensions; pulled: (N, B, K, d) precision times
            deviation from the mean, likewise.
    """

    masks: Tensor
    terms: Tensor
    precision: Tensor
    pulled: Tensor

    def extended(self) -> Tensor:
        """Return the log densities (N, B, K, d) without one more dimension each; of no use where it is hidden."""
        pivot = self.precision.diagonal(dim1=-2, dim2=-1).masked_fill(self.masks[:, :, None], 1.0)
        return self.terms[..., None] + 0.5 * (self.pulled.square() / pivot - pivot.log() + math.log(2 * math.pi))

    def hide(self, parent: Tensor, column: Tensor, terms: Tensor) -> Beam:
        """Return the beam of sets (N, B'), each a parent of this beam and one column more, with their terms."""
        samples, K = torch.arange(len(parent))[:, None], self.terms.shape[-1]
        precision, pulled = self.precision[samples, parent], self.pulled[samples, parent]
        at = column[..., None, None].expand(-1, -1, K, -1)
        row = precision.gather(-2, at[..., None].expand(-1, -1, -1, -1, precision.shape[-1]))[..., 0, :]
        step = row / row.gather(-1, at)
        masks = self.masks[samples, parent].scatter(-1, column[..., None], True)
        precision = precision - step[..., :, None] * row[..., None, :]
        return Beam(masks, terms, precision, pulled - step * pulled.gather(-1, at))


def beam_search(mixture: Mixture, x: Tensor, largest: int, log_prior: float) -> tuple[Tensor, Tensor]:
    """Return sets of at most ``largest`` dimensions (R, m, S, d) and the log densities (R, m, S) of what they keep.

    Samples whose search ended before others' have empty sets of density zero at the end.

    Args:
        mixture: Density of the source.
        x: (R, m, d) samples.
        largest: Size of the largest set.
        log_prior: What a dimension costs when sizes are compared.
    """
    runs, m, d = x.shape
    room = max(1, MOST_ENTRIES // (BEAM * mixture.mean.shape[1] * d * d))
    run, flat = torch.arange(runs).repeat_interleave(m), x.flatten(0, 1)
    parts = [
        _grow(_start(mixture, one, which), largest, log_prior)
        for one, which in zip(torch.split(flat, room), torch.split(run, room), strict=True)
    ]
    most = max(masks.shape[1] for masks, _ in parts)
    masks = torch.cat([functional.pad(masks, (0, 0, 0, most - masks.shape[1])) for masks, _ in parts])
    density = torch.cat([functional.pad(part, (0, most - part.shape[1]), value=-math.inf) for _, part in parts])
    return masks.view(runs, m, most, d), density.view(runs, m, most)


def _start(mixture: Mixture, x: Tensor, run: Tensor) -> Beam:
    """Return the beam of the empty sets of samples (N, d) that belong to runs (N,)."""
    gap = x.double()[:, None] - mixture.mean[run]
    precision = mixture.precision[run]
    pulled = torch.einsum("nki,nkij->nkj", gap, precision)
    const = mixture.log_weight + 0.5 * mixture.log_det - 0.5 * x.shape[-1] * math.log(2 * math.pi)
    terms = const[run] - 0.5 * (pulled * gap).sum(-1)
    masks = torch.zeros(len(x), 1, x.shape[-1], dtype=torch.bool)
    return Beam(masks, terms[:, None], precision[:, None], pulled[:, None])


def _grow(beam: Beam, largest: int, log_prior: float) -> tuple[Tensor, Tensor]:
    """Extend the empty sets size by size, while larger sets pay for some sample."""
    masks, densities = [beam.masks], [beam.terms.logsumexp(-1)]
    best, behind = densities[0][:, 0], torch.zeros(len(beam.masks), dtype=torch.long)
    for size in range(1, largest + 1):
        beam = _next(beam, size)
        masks.append(beam.masks)
        densities.append(beam.terms.logsumexp(-1))
        score = densities[-1].amax(-1) + log_prior * size
        behind = torch.where(score < best - FAR, behind + 1, 0)
        best = best.maximum(score)
        if bool((behind >= TWICE).all()):
            break
    return torch.cat(masks, 1), torch.cat(densities, 1)


def _next(beam: Beam, size: int) -> Beam:
    """Return the likeliest distinct sets that are one dimension larger."""
    terms = beam.extended()
    d = beam.masks.shape[-1]
    density = terms.logsumexp(2).masked_fill(beam.masks, -math.inf).flatten(1)  # (N, B d)
    names = _names(beam.masks).flatten(1).masked_fill(beam.masks.flatten(1), -1)
    index = density.masked_fill(_repeated(names), -math.inf).topk(min(BEAM, d - size + 1)).indices
    parent, column = index // d, index % d
    chosen = terms.mT[torch.arange(len(index))[:, None], parent, column]
    return beam.hide(parent, column, chosen)


def _names(masks: Tensor) -> Tensor:
    """Return a number (N, B, d) for every set and one dimension more, the same for the same set."""
    d = masks.shape[-1]
    names = torch.randint(2**62 // d, (d,), generator=torch.Generator().manual_seed(0))
    return (masks * names).sum(-1, keepdim=True) + names


def _repeated(names: Tensor) -> Tensor:
    """Say which entries of each row came before in it."""
    ordered, order = names.sort(stable=True)
    return torch.zeros_like(names, dtype=torch.bool).scatter(-1, order[:, 1:], ordered.diff(dim=-1) == 0)
