"""Gaussians in closed form: divergences by Cholesky factors, and moments that follow a stream."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean and covariance of a stream of vectors, and how many have been seen.

    Args:
        mean: (..., D)
        cov: (..., D, D), divided by the number of vectors rather than one less.
        count: How many vectors went in, a scalar.
    """

    mean: Tensor
    cov: Tensor
    count: Tensor

    @staticmethod
    def none(dim: int, like: Tensor) -> Moments:
        """Return the moments of nothing, all zero, with the type and device of ``like``."""
        return Moments(like.new_zeros(dim), like.new_zeros(dim, dim), like.new_zeros(()))

    def detach(self) -> Moments:
        """Return the values without their graph."""
        return Moments(self.mean.detach(), self.cov.detach(), self.count.detach())


def update_moments(moments: Moments, z: Tensor, n_max: float = math.inf) -> Moments:
    """Let moments follow the vectors ``z`` (N, D), which count as at least 1 / ``n_max`` each (Su et al., 2022).

    With n_max = inf the result is the mean and covariance of all vectors seen. Gradients flow through ``z``; detach the
    result before it becomes the start of the next update.

    Example:
        >>> z = torch.tensor([[1.0], [3.0]])
        >>> after = update_moments(Moments.none(1, like=z), z)
        >>> after.mean.item(), after.cov.item(), after.count.item()
        (2.0, 1.0, 2.0)
    """
    count = moments.count + len(z)
    # A batch beyond the window is its own window: with a larger weight than its share it would overshoot.
    a = 1 / count.clamp(max=max(n_max, len(z)))
    centred = z - moments.mean
    delta = a * centred.sum(0)
    cov = moments.cov + a * (centred.T @ centred - len(z) * moments.cov) - torch.outer(delta, delta)
    return Moments(moments.mean + delta, cov, count)


def cholesky(cov: Tensor) -> Tensor:
    """Return the lower Cholesky factor of covariances (..., D, D); NaN where one is not positive definite."""
    factor, failed = torch.linalg.cholesky_ex(cov)
    return torch.where(failed[..., None, None] > 0, math.nan, factor)


def precision(cov: Tensor) -> Tensor:
    """Return the inverse of covariances (..., D, D); NaN where one is not positive definite."""
    return torch.cholesky_inverse(cholesky(cov))


def gaussian_kl(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> Tensor:
    """Kullback-Leibler divergence of N(mean_a, cov_a) from N(mean_b, cov_b), KL(a || b), over leading dimensions.

    Args:
        mean_a: (..., D)
        cov_a: (..., D, D)
        mean_b: (..., D)
        cov_b: (..., D, D)

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1, 1)
        >>> gaussian_kl(zero + 2, one, zero, one)
        tensor(2.)
    """
    factor_a, factor_b = cholesky(cov_a), cholesky(cov_b)
    # tr(B^-1 A) = ||L_B^-1 L_A||_F^2
    whitened: Tensor = torch.linalg.solve_triangular(factor_b, factor_a, upper=False)
    gap: Tensor = torch.linalg.solve_triangular(factor_b, (mean_b - mean_a)[..., None], upper=False)
    squares = whitened.square().sum((-2, -1)) + gap.square().sum((-2, -1))
    return 0.5 * (squares - mean_a.shape[-1]) + _half_log_det(factor_b) - _half_log_det(factor_a)


def symmetric_gaussian_kl(
    mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor, *, precision_a: Tensor | None = None
) -> Tensor:
    """KL(a || b) + KL(b || a): the determinants cancel, so that only the two inverses are needed.

    Args:
        mean_a: (..., D)
        cov_a: (..., D, D)
        mean_b: (..., D)
        cov_b: (..., D, D)
        precision_a: The :func:`precision` of ``cov_a``, where it is known already.
    """
    precision_a, precision_b = precision(cov_a) if precision_a is None else precision_a, precision(cov_b)
    gap = mean_b - mean_a
    traces = (precision_b * cov_a).sum((-2, -1)) + (precision_a * cov_b).sum((-2, -1))
    mahalanobis = (((precision_a + precision_b) @ gap[..., None]).squeeze(-1) * gap).sum(-1)
    return 0.5 * (traces + mahalanobis) - mean_a.shape[-1]


def _half_log_det(factor: Tensor) -> Tensor:
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
