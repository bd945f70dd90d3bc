"""The off-support distance Theorem 1 allows, D / (2 J_u), three ways.

certified: a proven lower bound of the separation over a proven upper bound of the Jacobian norm. What lies within it is
guaranteed. sampled: attained separation over the largest Jacobian norm found; the true value of the condition is at
most this, so what lies beyond it violates the condition. local: the Jacobian norm along the straight line from the
support to the target only, the refinement the paper's limitations ask for; it presumes that the estimate is as smooth
there as g is, which nothing certifies.

Separation (`D`) and the search for the largest norm stand here too: the radius is their quotient and nothing else
needs them.

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
from offsupport.theory.support import Support

# Local search: push a score up from its best starting points, without gradients.
#
# Generators may be piecewise linear, where the gradient of a Jacobian's norm is zero almost everywhere, so the search
# tries random steps that shrink. It never loses ground: the result is attained, hence a lower bound of the supremum.


Score = Callable[[Tensor], Tensor]


def climb(
    score: Score,
    start: Tensor,
    rng: torch.Generator,
    *,
    project: Callable[[Tensor], Tensor] = lambda point: point,
    scale: float = 0.3,
    keep: int = 16,
    tries: int = 12,
    rounds: int = 25,
) -> tuple[Tensor, Tensor]:
    """Return the best point found and its score.

    Args:
        score: Maps points (n, d) to their scores (n,); larger is better.
        start: (n, d) points to start from; the best ``keep`` of them are moved.
        rng: Where the steps come from.
        project: Brings points (n, d) back into the region that is searched.
        scale: Standard deviation of the first steps; it shrinks to a thousandth of that.
        keep: Points that are moved side by side.
        tries: Steps tried per point and round.
        rounds: Rounds.
    """
    scores = score(start)
    best, index = scores.topk(min(keep, len(start)))
    point = start[index]
    for turn in range(rounds):
        width = scale * 1e-3 ** (turn / rounds)
        steps = torch.randn(len(point), tries, point.shape[-1], generator=rng, dtype=point.dtype)
        tried = project((point[:, None] + width * steps).flatten(0, 1))
        value, chosen = score(tried).view(len(point), tries).max(-1)
        better = value > best
        moved = tried.view(*steps.shape)[torch.arange(len(point)), chosen]
        point, best = torch.where(better[:, None], moved, point), torch.where(better, value, best)
    top = best.argmax()
    return point[top], best[top]


# How far apart the manifolds of two values of c are: D(c1, c2) = inf over s1, s2 of |g(c1, s1) - g(c2, s2)|.
#
# The paper takes the infimum over the boundary of the source support; the infimum over the whole support is smaller
# and reported beside it. Searching gives attained values (upper bounds of the infimum); branch and bound over the
# boundary curve, with a certified Lipschitz constant, gives a lower bound that Theorem 1 can rest on.


GRID = 192
CELLS = 400_000
ROUNDING = 1e-9  # a proven distance below this is rounding, not proof


@dataclass(frozen=True)
class Separation:
    """Distance between the manifold of the target's c and the nearest other manifold.

    Attributes:
        boundary: Smallest distance found between points over the boundary; the infimum is at most this.
        certified: A proven lower bound of the boundary infimum; None where none is known.
        whole: Smallest distance found over the whole support.
        rival: Index of the manifold that is nearest over the boundary.
        s_pair: (2, d_s) the boundary points that attain ``boundary``: own manifold, rival's.
    """

    boundary: float
    certified: float | None
    whole: float
    rival: int
    s_pair: Tensor


def attained(
    g: Generate, c1: Tensor, c2: Tensor, support: Support, rng: torch.Generator, *, whole: bool = False
) -> tuple[float, Tensor]:
    """Return the smallest distance found between two manifolds and the (2, d_s) points that attain it.

    Args:
        g: The generating function.
        c1: (d_c,) one value of c.
        c2: (d_c,) the other.
        support: The source support of s.
        rng: Where the search's steps come from.
        whole: Search the whole support instead of its boundary.
    """
    points = support.sample(GRID, rng) if whole else support.boundary(GRID, rng)
    gaps = torch.cdist(g(_join(c1, points)), g(_join(c2, points)), compute_mode="donot_use_mm_for_euclid_dist")
    index = gaps.flatten().topk(32, largest=False).indices
    start = torch.cat([points[index // len(points)], points[index % len(points)]], -1)
    d_s = points.shape[-1]

    def score(pair: Tensor) -> Tensor:
        gap: Tensor = (g(_join(c1, pair[:, :d_s])) - g(_join(c2, pair[:, d_s:]))).norm(dim=-1)
        return -gap

    def project(pair: Tensor) -> Tensor:
        return torch.cat([_bring(support, part, whole) for part in pair.tensor_split(2, -1)], -1)

    best, value = climb(score, start, rng, project=project, scale=0.1 * support.radius)
    return float(-value), best.view(2, d_s)


def certified(g: Generate, c1: Tensor, c2: Tensor, support: Support, lipschitz_s: float, slack: float = 0.02) -> float:
    """Return a lower bound of D(c1, c2) over the boundary of a planar support, by branch and bound.

    A pair of arcs with midpoints t1, t2 and half-lengths h cannot come closer than the distance at the midpoints minus
    2 h times the Lipschitz constant in s. Pairs that cannot beat the best midpoint by more than ``slack`` are done.

    Args:
        g: The generating function.
        c1: (d_c,) one value of c.
        c2: (d_c,) the other.
        support: A planar support.
        lipschitz_s: A certified Lipschitz constant of g in s.
        slack: How far below the attained minimum the bound may stay, as a fraction of it.
    """
    half = support.perimeter / GRID / 2
    middle = (torch.arange(GRID, dtype=torch.float64) * 2 + 1) * half
    arcs = torch.cartesian_prod(middle, middle)
    best = proven = float("inf")
    while len(arcs):
        x1, x2 = (g(_join(c, support.curve(t))) for c, t in zip((c1, c2), arcs.T, strict=True))
        gap = (x1 - x2).norm(dim=-1)
        low = gap - 2 * half * lipschitz_s
        best = min(best, float(gap.min()))
        open_ = low < (1 - slack) * best
        proven = min(proven, float(low[~open_].min())) if bool((~open_).any()) else proven
        if int(open_.sum()) * 4 > CELLS:
            proven = min(proven, float(low.min()))
            break
        half /= 2
        corners = torch.tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]], dtype=torch.float64) * half
        arcs = (arcs[open_][:, None] + corners).flatten(0, 1)
    return proven if proven > ROUNDING else 0.0


def separation(
    g: Generate,
    c_tgt: Tensor,
    others: Tensor,
    support: Support,
    rng: torch.Generator,
    constants: tuple[float, float] | None = None,
) -> Separation:
    """Return the separation of the target's manifold from all others.

    Args:
        g: The generating function.
        c_tgt: (d_c,) the target's invariant variable.
        others: (K, d_c) the other values of c.
        support: The source support of s.
        rng: Where the search's steps come from.
        constants: Certified (Lipschitz constant in s, lower secant constant) of g, for a certified lower bound.
    """
    found = [attained(g, c_tgt, c, support, rng) for c in others]
    rival = min(range(len(found)), key=lambda k: found[k][0])
    proven = None
    if constants is not None:
        proven = min(_certified(g, c_tgt, c, support, constants) for c in others)
    whole = min(attained(g, c_tgt, c, support, rng, whole=True)[0] for c in others)
    boundary, pair = found[rival]
    return Separation(boundary, proven, min(whole, boundary), rival, pair)


def _certified(g: Generate, c1: Tensor, c2: Tensor, support: Support, constants: tuple[float, float]) -> float:
    """The better of branch and bound (planar supports) and |g(z1) - g(z2)| >= lower |z1 - z2| >= lower |c1 - c2|."""
    lipschitz_s, lower = constants
    by_weights = lower * float((c1 - c2).norm())
    if support.dim != 2 or support.free or lipschitz_s == float("inf"):
        return by_weights
    return max(by_weights, certified(g, c1, c2, support, lipschitz_s))


def _join(c: Tensor, s: Tensor) -> Tensor:
    return torch.cat([c.expand(len(s), -1), s], -1)


def _bring(support: Support, s: Tensor, whole: bool) -> Tensor:
    if whole:
        return support.nearest(s)
    return torch.cat([s[:, : support.free], support.to_boundary(s[:, support.free :])], -1)


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
