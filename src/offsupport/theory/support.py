"""The source support of the changing variable: how far a point is from it, its boundary, and supports of clouds.

A known process has a ball or a box. A fitted estimator has only a cloud of s_hat: its convention here is the ball that
holds a stated fraction of the cloud after whitening (`whitening`), with the nearest-neighbour and convex-hull distances
beside it. Distances to a cloud are in units of its own standard deviations, because the scale of s_hat is arbitrary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

QUANTILE = 0.999


@dataclass(frozen=True)
class Support:
    """A ball or a box around the origin, times free directions that are in support everywhere.

    Attributes:
        shape: ``ball`` or ``box``.
        radius: Of the ball; half the side of the box.
        dim: Dimensions that the shape bounds; the last ones of s.
        free: Leading dimensions without a bound (continuous parts of c that join s), drawn from N(0, 1).
    """

    shape: Literal["ball", "box"]
    radius: float
    dim: int
    free: int = 0

    def nearest(self, s: Tensor) -> Tensor:
        """Return the point of the support nearest to every s (..., free + dim)."""
        bound = s[..., self.free :]
        if self.shape == "ball":
            size = bound.norm(dim=-1, keepdim=True)
            inside = bound * (self.radius / size.clamp_min(self.radius))
        else:
            inside = bound.clamp(-self.radius, self.radius)
        return torch.cat([s[..., : self.free], inside], -1)

    def distance(self, s: Tensor) -> Tensor:
        """Return D(s, S_src) for every s (..., free + dim); zero inside."""
        gap: Tensor = (s - self.nearest(s)).norm(dim=-1)
        return gap

    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw points, uniform over the bounded part."""
        if self.shape == "box":
            bound = self.radius * (2 * torch.rand(count, self.dim, generator=rng, dtype=torch.float64) - 1)
        else:
            depth = torch.rand(count, 1, generator=rng, dtype=torch.float64) ** (1 / self.dim)
            bound = depth * self.to_boundary(torch.randn(count, self.dim, generator=rng, dtype=torch.float64))
        return torch.cat([self._free(count, rng), bound], -1)

    def boundary(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw points of the boundary; evenly spaced when the bounded part is a plane."""
        if self.dim == 2:
            bound = self.curve(torch.arange(count, dtype=torch.float64) * (self.perimeter / count))
        else:
            bound = self.to_boundary(torch.randn(count, self.dim, generator=rng, dtype=torch.float64))
        return torch.cat([self._free(count, rng), bound], -1)

    def to_boundary(self, bound: Tensor) -> Tensor:
        """Move the bounded part (..., dim) of points along their rays to the boundary."""
        size = bound.norm(dim=-1, keepdim=True) if self.shape == "ball" else bound.abs().amax(-1, keepdim=True)
        return bound * (self.radius / size.clamp_min(1e-300))

    @property
    def perimeter(self) -> float:
        """Length of the boundary of a planar support."""
        return 2 * math.pi * self.radius if self.shape == "ball" else 8 * self.radius

    def curve(self, t: Tensor) -> Tensor:
        """Return the points (..., 2) at arc length t on the boundary of a planar support."""
        if self.shape == "ball":
            angle = t / self.radius
            return self.radius * torch.stack([angle.cos(), angle.sin()], -1)
        # A triangle wave of one coordinate, cut at the sides, is the perimeter at unit speed.
        return torch.stack([self._side(t + 2 * self.radius), self._side(t)], -1)

    def _side(self, t: Tensor) -> Tensor:
        r = self.radius
        return ((t + r) % (8 * r) - 4 * r).abs().sub(2 * r).neg().clamp(-r, r)

    def _free(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randn(count, self.free, generator=rng, dtype=torch.float64)


@dataclass(frozen=True)
class Whitening:
    """An affine map that gives a cloud mean zero and unit covariance.

    Attributes:
        mean: (d,) mean of the cloud.
        scale: (d, d) Cholesky factor of its covariance.
    """

    mean: Tensor
    scale: Tensor

    def __call__(self, s: Tensor) -> Tensor:
        """Map s (n, d) to whitened coordinates."""
        whitened: Tensor = torch.linalg.solve_triangular(self.scale, (s - self.mean).T, upper=False).T
        return whitened

    def back(self, w: Tensor) -> Tensor:
        """Map whitened coordinates (n, d) to s."""
        return self.mean + w @ self.scale.T


def whitening(cloud: Tensor, floor: float = 1e-9) -> Whitening:
    """Fit the whitening of a cloud (n, d); directions without spread get a floor relative to the widest one."""
    centred = cloud - cloud.mean(0)
    covariance = centred.T @ centred / len(cloud)
    least = floor * covariance.diagonal().max().clamp_min(1e-300)
    covariance = covariance + least * torch.eye(len(covariance), dtype=cloud.dtype)
    return Whitening(cloud.mean(0), torch.linalg.cholesky(covariance))


def quantile_ball(whitened: Tensor, quantile: float = QUANTILE) -> Support:
    """Return the ball around the origin that holds a fraction of a whitened cloud (n, d)."""
    radius = float(whitened.norm(dim=-1).quantile(quantile))
    return Support("ball", radius, whitened.shape[-1])


def knn_distance(s: Tensor, cloud: Tensor, k: int = 10) -> Tensor:
    """Return the distance of every s (m, d) to its k-th nearest neighbour in a cloud (n, d)."""
    return torch.cdist(s, cloud).kthvalue(min(k, len(cloud)), dim=-1).values


def hull_distance(s: Tensor, cloud: Tensor) -> float:
    """Return the distance of one s (d,) to the convex hull of a cloud (n, d): min |s - V w| over the simplex.

    The constraint that the weights sum to one enters non-negative least squares as a heavy extra row.
    """
    from scipy.optimize import nnls

    V = cloud.double().numpy() - s.double().numpy()
    heavy = 1e4 * max(float(np.abs(V).max()), 1e-12)
    rows = np.vstack([V.T, np.full(len(V), heavy)])
    weights, _ = nnls(rows, np.append(np.zeros(V.shape[1]), heavy))
    return float(np.linalg.norm(V.T @ (weights / weights.sum())))
