"""Which observed dimensions each latent block moves, how sparse that is, and whether the untouched ones tell c.

I_s(z) and I_c(z) are the rows of J(z) with an entry that is not zero in the columns of s and of c. For an exact
generator "not zero" means above 1e-6 of the block's largest entry; for a trained one entries are never zero, and a
threshold of 1e-2 is a convention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.theory.jacobian import Generate, jacobian, ranks

EXACT, LEARNED = 1e-6, 1e-2
ROUNDING = 1e-12


@dataclass(frozen=True)
class Influence:
    """Influence sets at n latents, as masks (n, d_x).

    Attributes:
        s: I_s(z), the dimensions s moves.
        c: I_c(z), the dimensions c moves.
        contrast: (n,) compositional contrast, sum_i |J_c[i]| |J_s[i]| (Brady et al., 2023): zero when no dimension is
            moved by both.
    """

    s: Tensor
    c: Tensor
    contrast: Tensor

    @property
    def exclusive(self) -> Tensor:
        """The dimensions c moves and s does not."""
        return self.c & ~self.s

    def sparse(self, d_s: int) -> Tensor:
        """Say where Assumption iii holds (n,): |I_s| <= d_s, or I_c and I_s do not meet."""
        return (self.s.sum(-1) <= d_s) | ~(self.c & self.s).any(-1)


def influence(J: Tensor, d_c: int, tau: float = EXACT) -> Influence:
    """Return the influence sets.

    Args:
        J: (n, d_x, d_z) Jacobians.
        d_c: Leading columns that belong to c.
        tau: Entries at or below this fraction of the largest entry in their block count as zero.
    """
    contrast = (J[..., :d_c].norm(dim=-1) * J[..., d_c:].norm(dim=-1)).sum(-1)
    least = ROUNDING * J.abs().amax((-2, -1), keepdim=True)
    return Influence(_moved(J[..., d_c:], tau, least), _moved(J[..., :d_c], tau, least), contrast)


def _moved(block: Tensor, tau: float, least: Tensor) -> Tensor:
    """Say which rows a block moves: its own largest entry is the scale, because that of its latents is arbitrary."""
    size = block.abs()
    return (size > torch.maximum(tau * size.amax((-2, -1), keepdim=True), least)).any(-1)


@dataclass(frozen=True)
class Informativeness:
    """How well the dimensions only c moves tell values of c apart, over sampled pairs.

    Attributes:
        ratio: Smallest |x_I(c1) - x_I(c2)| / |c1 - c2| found, I the dimensions exclusive at both. Zero is a collision.
        rank: Smallest rank of J_c[I]; below d_c, c moves somewhere without a trace in x_I.
    """

    ratio: float
    rank: int


def informativeness(g: Generate, z: Tensor, d_c: int, tau: float = EXACT) -> Informativeness:
    """Measure Assumption ii over all pairs of the given latents.

    Index sets may differ between the two sides; values are compared on their intersection, which is the strict reading.

    Args:
        g: The generating function.
        z: (n, d_z) latents with distinct c; memory grows with n^2 d_x.
        d_c: Leading latents that are c.
        tau: See `influence`.
    """
    J = jacobian(g, z)
    rows = influence(J, d_c, tau).exclusive
    x = g(z)
    shared = rows[:, None] & rows[None]
    gap = ((x[:, None] - x[None]) * shared).norm(dim=-1)
    apart = torch.cdist(z[:, :d_c], z[:, :d_c], compute_mode="donot_use_mm_for_euclid_dist")
    ratio = (gap / apart)[apart > 1e-9]
    smallest = float(ratio.min()) if len(ratio) else float("inf")
    return Informativeness(smallest, int(ranks(J[..., :d_c] * rows[..., None]).min()))
