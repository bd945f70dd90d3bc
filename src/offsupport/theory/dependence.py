"""Which dimensions each latent moves, and mechanistic dependence (Assumption iv of the sparse theorem) among them.

The check takes polynomial time and gives a margin and a witness; a search for the rare latents at which the assumption
breaks stands at the end.

The assumption asks of the rows A = J[I, :] that only c moves: rank A < rank A_P1 + rank A_P2 for every split P1 | P2 of
I. There are 2^(m-1) - 1 splits. But rank A = rank A_P1 + rank A_P2 exactly when the column space of A is a direct sum
of parts supported on P1 and on P2, that is, when the orthogonal projector P on that space is block diagonal. So the
assumption holds exactly when the graph of the entries of P that are not zero is connected: one decomposition and a
spanning tree. P depends on the tangent space alone and is the same for g and for any reparameterised estimate of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offsupport.theory.jacobian import Generate, jacobian, null_vector, ranks

# Which observed dimensions each latent block moves, how sparse that is, and whether the untouched ones tell c.
#
# I_s(z) and I_c(z) are the rows of J(z) with an entry that is not zero in the columns of s and of c. For an exact
# generator "not zero" means above 1e-6 of the block's largest entry; for a trained one entries are never zero, and a
# threshold of 1e-2 is a convention.


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


EPS = 1e-8


@dataclass(frozen=True)
class Dependence:
    """The test at n latents.

    Attributes:
        margin: (n,) smallest largest |P_ij| across any split of the rows: the bottleneck of the maximum spanning tree.
            Zero means a split without dependence; infinite means fewer than two rows, where there is nothing to split.
        witness: (n, d_x) the rows on one side of the weakest split.
        rows: (n, d_x) the rows tested.
    """

    margin: Tensor
    witness: Tensor
    rows: Tensor

    def connected(self, eps: float = EPS) -> Tensor:
        """Say where the assumption holds (n,): no split has all |P_ij| across it at or below ``eps``."""
        return self.margin > eps


def projector(A: Tensor, rtol: float | None = None) -> Tensor:
    """Return the orthogonal projector on the column space of every matrix (..., m, n).

    Args:
        A: The matrices.
        rtol: Singular values at or below this fraction of the largest count as zero; default max(m, n) eps, times 1000
            for the rounding of the products that made A.
    """
    U, sigma, _ = torch.linalg.svd(A, full_matrices=False)
    rtol = 1e3 * max(A.shape[-2:]) * torch.finfo(A.dtype).eps if rtol is None else rtol
    kept = U * (sigma > rtol * sigma[..., :1].clamp_min(torch.finfo(A.dtype).tiny))[..., None, :]
    P: Tensor = kept @ kept.mT
    return P


def dependence(J: Tensor, rows: Tensor, rtol: float | None = None) -> Dependence:
    """Test the dependence of some rows of Jacobians.

    Args:
        J: (n, d_x, d_z) Jacobians in double precision.
        rows: (n, d_x) mask of the rows in I_{c without s}.
        rtol: See `projector`.
    """
    weight = projector(J * rows[..., None], rtol).abs()
    margin, witness = _bottleneck(weight, rows)
    return Dependence(margin, witness, rows)


def _bottleneck(weight: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Grow maximum spanning trees (Prim) for all graphs at once; the weakest edge taken crosses the weakest split."""
    n, m = rows.shape
    every = torch.arange(n)
    start = rows.int().argmax(-1)
    reached = torch.zeros_like(rows)
    reached[every, start] = True
    reached &= rows
    margin = torch.full((n,), torch.inf, dtype=weight.dtype)
    witness = torch.zeros_like(rows)
    for _ in range(m - 1):
        across = weight.masked_fill(~reached[:, :, None], -1).amax(1).masked_fill(reached | ~rows, -1)
        edge, new = across.max(-1)
        growing = edge >= 0
        weaker = growing & (edge < margin)
        margin, witness = torch.where(weaker, edge, margin), torch.where(weaker[:, None], reached, witness)
        reached = reached.index_put((every[growing], new[growing]), torch.tensor(True))
    return margin, witness


# A search for latents at which mechanistic dependence breaks although it holds at almost all others.
#
# The cheapest way to split m rows of rank d_c is that one row stops depending on the rest: the other m - 1 rows A
# lose rank, A(z) v = 0 for some unit v. That takes m - d_c equations in z more than there are unknowns in v. So as
# long as m - d_c does not exceed the number of latents that J depends on, such points exist stably: isolated, of
# probability zero, met by no sample, and still violations of an assumption that says "for all z". Least squares finds
# them.


ROUNDS = 40
SOLVED = 1e-11


def weakest_point(g: Generate, z: Tensor, rows: Tensor, d_c: int) -> Tensor | None:
    """Return a latent at which one of the rows is independent of all others, if one is found.

    Args:
        g: The generating function.
        z: (n, d_z) latents to start from; c is moved, s stays.
        rows: (d_x,) mask of the rows, the same at all z.
        d_c: Leading latents that are c.
    """
    index = rows.nonzero()[:, 0]
    weights = (1 - torch.eye(len(index), dtype=z.dtype)).repeat_interleave(len(z), 0)  # problem i leaves row i out
    s = z[:, d_c:].repeat(len(index), 1)
    A = jacobian(g, z)[:, index, :d_c].repeat(len(index), 1, 1) * weights[..., None]
    start = torch.cat([z[:, :d_c].repeat(len(index), 1), null_vector(A)], -1)

    def residual(p: Tensor) -> Tensor:
        c, v = p[:, :d_c], p[:, d_c:]
        copies = len(p) // len(s)  # forward mode repeats p once per unknown
        tangent = torch.cat([v, torch.zeros_like(s).repeat(copies, 1)], -1)
        moved = torch.func.jvp(g, (torch.cat([c, s.repeat(copies, 1)], -1),), (tangent,))[1]
        unit = v.square().sum(-1, keepdim=True) - 1
        return torch.cat([moved[:, index] * weights.repeat(copies, 1), unit], -1)

    p, error = _levenberg_marquardt(residual, start)
    found = error < SOLVED
    if not bool(found.any()):
        return None
    best = torch.where(found, p[:, :d_c].norm(dim=-1), torch.inf).argmin()
    return torch.cat([p[best, :d_c], s[best]])


def _levenberg_marquardt(residual: Generate, p: Tensor) -> tuple[Tensor, Tensor]:
    """Solve residual = 0 from all starts side by side, until one arrives; steps that do not help are damped more."""
    damping = torch.full((len(p),), 1e-3, dtype=p.dtype)
    value = residual(p)
    error = value.norm(dim=-1)
    for _ in range(ROUNDS):
        J = jacobian(residual, p)
        normal = J.mT @ J + damping[:, None, None] * torch.eye(p.shape[-1], dtype=p.dtype)
        tried = p - torch.linalg.solve(normal, J.mT @ value[..., None])[..., 0]
        new = residual(tried)
        better = new.norm(dim=-1) < error
        p, value = torch.where(better[:, None], tried, p), torch.where(better[:, None], new, value)
        error = value.norm(dim=-1)
        if bool((error < SOLVED).any()):
            break
        damping = torch.where(better, damping * 0.3, damping * 5).clamp(1e-12, 1e6)
    return p, error
