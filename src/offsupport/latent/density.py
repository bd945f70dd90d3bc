"""Full-covariance Gaussian mixtures for R runs at once, with every marginal in closed form.

The E-step and the M-step are one matrix product each, with the features [1, x, x x'] of the samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_ENTRIES = 2_000_000  # of the largest tensor while marginals are computed


@dataclass(frozen=True)
class Mixture:
    """R Gaussian mixtures.

    Attributes:
        log_weight: (R, K); mean: (R, K, d); precision: (R, K, d, d); log_det: (R, K) of the precision.
    """

    log_weight: Tensor
    mean: Tensor
    precision: Tensor
    log_det: Tensor

    def select(self, runs: Tensor) -> Mixture:
        """Return the mixtures of some of the runs."""
        return Mixture(self.log_weight[runs], self.mean[runs], self.precision[runs], self.log_det[runs])

    def log_density(self, x: Tensor, masks: Tensor) -> Tensor:
        """Return the log density of the dimensions that a mask keeps.

        The marginal over the kept dimensions K has log det Sigma_KK = log det Sigma + log det P_MM, and its quadratic
        form is the least of the full one over x_M, so a mask costs a solve of the size of what it hides.

        Args:
            x: (R, m, d) samples.
            masks: (S, d) booleans, true where a dimension is hidden; all rows hide the same number.

        Returns:
            (R, m, S) log densities.
        """
        gap = x.double()[:, :, None] - self.mean[:, None]  # (R, m, K, d)
        pulled = torch.einsum("rmki,rkij->rmkj", gap, self.precision)
        full = (pulled * gap).sum(-1)
        kept = x.shape[-1] - int(masks[0].sum())
        const = self.log_weight + 0.5 * self.log_det - 0.5 * kept * math.log(2 * math.pi)
        half = const[:, None] - 0.5 * full
        hidden = masks.nonzero()[:, 1].view(len(masks), -1)
        if not hidden.shape[1]:
            return half.logsumexp(-1, keepdim=True).expand(-1, -1, len(masks))
        room = max(1, MOST_ENTRIES // (half.numel() * hidden.shape[1]))
        return torch.cat([self._hide(half, pulled, part) for part in torch.split(hidden, room)], -1)

    def widened(self, x: Tensor, variance: float) -> Tensor:
        """Return the log density (R, m) of x (R, m, d) once independent noise of this variance is added to it."""
        d = x.shape[-1]
        covariance = torch.linalg.inv(self.precision) + variance * torch.eye(d, dtype=self.mean.dtype)
        chol = torch.linalg.cholesky(covariance)  # (R, K, d, d)
        gap = (x.double()[:, None] - self.mean[:, :, None]).mT  # (R, K, d, m)
        solved = torch.linalg.solve_triangular(chol, gap, upper=False)
        const = self.log_weight - chol.diagonal(dim1=-2, dim2=-1).log().sum(-1) - 0.5 * d * math.log(2 * math.pi)
        terms: Tensor = const[..., None] - 0.5 * solved.square().sum(2)
        return terms.logsumexp(1)

    def _hide(self, half: Tensor, pulled: Tensor, hidden: Tensor) -> Tensor:
        """Take the (S, h) ``hidden`` dimensions out of log terms (R, m, K) of all of them."""
        P = self.precision[:, :, hidden[:, :, None], hidden[:, None]]  # (R, K, S, h, h)
        chol = torch.linalg.cholesky(P)
        inverse = torch.linalg.solve_triangular(chol, torch.eye(P.shape[-1], dtype=P.dtype), upper=False)
        solved = torch.einsum("rksij,rmksj->rmksi", inverse, pulled[..., hidden])
        log_det = chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # half the log-determinant
        terms: Tensor = half[..., None] + 0.5 * solved.square().sum(-1) - log_det[:, None]
        return terms.logsumexp(2)


def fit_mixture(x: Tensor, components: int, iterations: int, ridge: float, rng: torch.Generator) -> Mixture:
    """Fit by expectation-maximisation from ``components`` random samples as means.

    Args:
        x: (R, n, d) standardised samples.
        components: Gaussians.
        iterations: EM steps; the first half sees a quarter of the samples.
        ridge: Added to the diagonal of every covariance; keeps a singular one positive definite.
        rng: Draws the starting means; the runs share the draw.
    """
    runs, n, d = x.shape
    order = torch.randperm(n, generator=rng)
    x = x[:, order]
    mean = x[:, :components].double()
    covariance = torch.eye(d, dtype=torch.float64).expand(runs, mean.shape[1], d, d) * 0.25
    weight = torch.full(mean.shape[:2], 1 / mean.shape[1], dtype=torch.float64)
    features = _features(x)
    for step in range(iterations):
        part = features if 2 * step >= iterations else features[:, : max(n // 4, min(n, 50 * components))]
        logits = part @ _coefficients(weight, mean, covariance).to(x.dtype).mT  # (R, n, K)
        moments = (logits.softmax(-1).mT @ part).double()
        weight, mean, covariance = _from_moments(moments, d, ridge)
    precision = torch.linalg.inv(covariance)
    return Mixture(weight.log(), mean, precision, torch.linalg.slogdet(precision)[1])


def _features(x: Tensor) -> Tensor:
    """Return [1, x, x x'] flattened, (R, n, 1 + d + d^2)."""
    outer = (x[..., :, None] * x[..., None, :]).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x, outer], -1)


def _coefficients(weight: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Return what the features are multiplied with to get log(weight) + log N(x; mean, covariance) + const."""
    precision = torch.linalg.inv(covariance)
    linear = torch.einsum("rkij,rkj->rki", precision, mean)
    const = weight.log() + 0.5 * torch.linalg.slogdet(precision)[1] - 0.5 * (linear * mean).sum(-1)
    return torch.cat([const[..., None], linear, -0.5 * precision.flatten(-2)], -1)


def _from_moments(moments: Tensor, d: int, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
    count = moments[..., :1].clamp_min(1e-6)
    mean = moments[..., 1 : d + 1] / count
    second = torch.unflatten(moments[..., d + 1 :] / count, -1, (d, d))
    covariance = second - mean[..., :, None] * mean[..., None, :]
    values, vectors = torch.linalg.eigh(covariance)
    covariance = (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT  # rounding may leave a negative variance
    count = count[..., 0]
    return count / count.sum(-1, keepdim=True), mean, covariance + ridge * torch.eye(d, dtype=moments.dtype)
