"""How far the moments of two sets of features are apart, and the moments of a set."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_and_covariance(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) and the unbiased covariance (D, D) of vectors (N, D)."""
    mean = z.mean(0)
    centred = z - mean
    return mean, centred.T @ centred / (len(z) - 1)


def coral(cov_a: Tensor, cov_b: Tensor) -> Tensor:
    """Squared Frobenius distance of two covariances (D, D), over 4 D^2 (Sun and Saenko, 2016).

    Example:
        >>> coral(torch.eye(2), 3 * torch.eye(2))
        tensor(0.5000)
    """
    return (cov_a - cov_b).square().sum() / (4 * cov_a.shape[0] ** 2)


def mean_gap(mean_a: Tensor, mean_b: Tensor) -> Tensor:
    """Mean squared difference of two means (D,): the maximum mean discrepancy under a linear kernel, over D."""
    return (mean_a - mean_b).square().mean()


def pooled(sums: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased covariance from the count, sum and sum of outer products of vectors.

    Leading dimensions are groups, (P,), (P, D) and (P, D, D); products may be diagonals, (P, D). Groups of fewer than
    two vectors get the moments that the formulas allow: a mean of zero without any, a covariance of zero.
    """
    count, first, second = sums
    mean = first / count.clamp(min=1)[..., None]
    diagonal = second.dim() == first.dim()
    square = mean.square() if diagonal else mean[..., :, None] * mean[..., None, :]
    shape = (..., None) if diagonal else (..., None, None)
    cov = (second - count[shape] * square) / (count - 1).clamp(min=1)[shape]
    return mean, torch.where((count > 1)[shape], cov, 0.0)
