"""Means and covariances per class, all classes at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from offsupport.functional.gaussian import Moments


def update_class_moments(
    moments: Moments, z: Tensor, labels: Tensor, n_max: float = math.inf
) -> tuple[Tensor, Moments]:
    """Let the moments of K classes follow the vectors ``z`` (N, D), each its own class (Su et al., 2022).

    Every class follows as :func:`offsupport.functional.update_moments` does. Gradients flow through ``z``.

    Args:
        moments: Of all classes: mean (K, D), covariance (K, D, D) or its diagonal (K, D), count (K,).
        z: Vectors.
        labels: The class of each, (N,).
        n_max: Beyond this many vectors of a class the oldest fade.

    Returns:
        The classes that occur, (P,), in order, and their moments after these vectors.
    """
    present, member, new = labels.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    mean, cov, count = moments.mean[present], moments.cov[present], moments.count[present] + new
    a = 1 / torch.minimum(count, new.clamp(min=n_max))
    centred = z - mean[member]
    delta = a[:, None] * torch.zeros_like(mean).index_add(0, member, centred)
    if cov.dim() == 2:
        second = torch.zeros_like(cov).index_add(0, member, centred.square())
        cov = cov + a[:, None] * (second - new[:, None] * cov) - delta.square()
    else:
        second = outer_sums(centred, member, new)
        cov = cov + a[:, None, None] * (second - new[:, None, None] * cov) - delta[:, :, None] * delta[:, None, :]
    return present, Moments(mean + delta, cov, count)


def outer_sums(z: Tensor, member: Tensor, counts: Tensor) -> Tensor:
    """Return for each of P groups the sum of the outer products of its vectors, (P, D, D).

    The groups are padded to the size of the largest and multiplied in one batch, so that the work grows with the
    vectors rather than with vectors times groups.

    Args:
        z: Vectors (N, D).
        member: The group of each, (N,), in 0..P-1.
        counts: How many each group has, (P,).
    """
    order = member.argsort(stable=True)
    group = member[order]
    place = torch.arange(len(z), device=z.device) - (counts.cumsum(0) - counts)[group]
    padded = z.new_zeros(len(counts), int(counts.max()) if len(counts) else 0, z.shape[1])
    padded = padded.index_put((group, place), z[order])
    return padded.mT @ padded


def symmetric_diagonal_kl(mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor) -> Tensor:
    """KL(a || b) + KL(b || a) of Gaussians with independent coordinates, over leading dimensions.

    Example:
        >>> symmetric_diagonal_kl(torch.zeros(1), torch.ones(1), 2 * torch.ones(1), torch.ones(1))
        tensor(4.)
    """
    gap = (mean_a - mean_b).square()
    return 0.5 * (var_a / var_b + var_b / var_a + gap * (1 / var_a + 1 / var_b)).sum(-1) - mean_a.shape[-1]
