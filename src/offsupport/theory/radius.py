"""The off-support distance Theorem 1 allows, D / (2 J_u), three ways.

certified: a proven lower bound of the separation over a proven upper bound of the Jacobian norm. What lies within it is
guaranteed. sampled: attained separation over the largest Jacobian norm found; the true value of the condition is at
most this, so what lies beyond it violates the condition. local: the Jacobian norm along the straight line from the
support to the target only, the refinement the paper's limitations ask for; it presumes that the estimate is as smooth
there as g is, which nothing certifies.

The proof moves s alone, so each way is given for the full Jacobian norm J_u, as the assumption is written, and for the
norm J_u^s of its s-block, which is all the proof uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offsupport.theory.jacobian import Generate, jacobian, norms
from offsupport.theory.search import climb

Way = Literal["certified", "sampled", "local"]


@dataclass(frozen=True)
class Radius:
    """One way to compute the allowed off-support distance.

    Attributes:
        way: ``certified``, ``sampled`` or ``local``.
        J_u: Bound of the Jacobian norm; J_u_s: of its s-block.
        radius: D / (2 J_u); radius_s: D / (2 J_u_s).
        ratio: Distance of the target over ``radius``; ratio_s: over ``radius_s``. At most 1 satisfies the condition.
    """

    way: Way
    J_u: float
    J_u_s: float
    radius: float
    radius_s: float
    ratio: float
    ratio_s: float


def radius(way: Way, D: float, J_u: float, J_u_s: float, distance: float) -> Radius:
    """Return D / (2 J) for both norms, and the target's distance over it."""
    allowed, allowed_s = _allowed(D, J_u), _allowed(D, J_u_s)
    return Radius(way, J_u, J_u_s, allowed, allowed_s, _ratio(distance, allowed), _ratio(distance, allowed_s))


def _allowed(D: float, J: float) -> float:
    """A generator that s does not move at all allows any distance, unless the manifolds touch."""
    return D / (2 * J) if J else (math.inf if D else 0.0)


def sampled_norms(
    g: Generate, c: Tensor, s: Tensor, s_tgt: Tensor, nearest: Callable[[Tensor], Tensor], rng: torch.Generator
) -> tuple[float, float]:
    """Return the largest |J| and |J_s| found over the values of c and the convex hull of the support and s_tgt.

    Both are attained, hence lower bounds of J_u and J_u^s.

    Args:
        g: The generating function.
        c: (n, d_c) values of c, paired with the points below.
        s: (n, d_s) points of the support.
        s_tgt: (d_s,) the target's changing variable.
        nearest: Projection on the support.
        rng: Where the search's steps come from.
    """
    d_c = c.shape[-1]
    t = torch.rand(len(s), 1, generator=rng, dtype=s.dtype) * (torch.arange(len(s)) % 2)[:, None]
    start = torch.cat([c, s, t], -1)

    def project(point: Tensor) -> Tensor:
        known = torch.cdist(point[:, :d_c], c).argmin(-1)  # c takes its given values only
        return torch.cat([c[known], nearest(point[:, d_c:-1]), point[:, -1:].clamp(0, 1)], -1)

    def largest(columns: slice) -> float:
        def score(point: Tensor) -> Tensor:
            s, t = point[:, d_c:-1], point[:, -1:]
            z = torch.cat([point[:, :d_c], s + t * (s_tgt - s)], -1)
            return norms(jacobian(g, z)[..., columns])

        return float(climb(score, start, rng, project=project)[1])

    return largest(slice(None)), largest(slice(d_c, None))


def segment_norms(g: Generate, c: Tensor, s_src: Tensor, s_tgt: Tensor, points: int = 257) -> tuple[float, float]:
    """Return the largest |J| and |J_s| over the straight line from s_src to s_tgt, on every manifold c (K, d_c)."""
    t = torch.linspace(0, 1, points, dtype=s_src.dtype)[:, None]
    line = s_src + t * (s_tgt - s_src)
    z = torch.cat([c.repeat_interleave(points, 0), line.repeat(len(c), 1)], -1)
    J = jacobian(g, z)
    return float(norms(J).max()), float(norms(J[..., c.shape[-1] :]).max())


def _ratio(distance: float, allowed: float) -> float:
    if distance == 0:
        return 0.0
    return distance / allowed if allowed > 0 else float("inf")
