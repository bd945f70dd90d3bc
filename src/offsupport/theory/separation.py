"""How far apart the manifolds of two values of c are: D(c1, c2) = inf over s1, s2 of |g(c1, s1) - g(c2, s2)|.

The paper takes the infimum over the boundary of the source support; the infimum over the whole support is smaller and
reported beside it. Searching gives attained values (upper bounds of the infimum); branch and bound over the boundary
curve, with a certified Lipschitz constant, gives a lower bound that Theorem 1 can rest on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.theory.jacobian import Generate
from offsupport.theory.search import climb
from offsupport.theory.support import Support

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
