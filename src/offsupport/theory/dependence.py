"""Mechanistic dependence (Assumption iv of the sparse theorem) in polynomial time, with a margin and a witness.

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
