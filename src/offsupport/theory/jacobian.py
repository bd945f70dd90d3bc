"""Jacobians of a generating function by forward mode, their largest singular values, and their ranks.

A generating function here maps z (n, d_z) to x (n, d_x), every row on its own. Latents are fewer than observed
dimensions, so forward mode (one product per latent) is the cheap direction. Ranks are decided in double precision.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Generate = Callable[[Tensor], Tensor]


def jacobian(g: Generate, z: Tensor) -> Tensor:
    """Return dg/dz at every z, (n, d_x, d_z).

    Example:
        >>> A = torch.tensor([[1.0, 2.0], [0.0, 3.0], [1.0, 0.0]])
        >>> torch.equal(jacobian(lambda z: z @ A.T, torch.zeros(5, 2))[3], A)
        True
    """
    _load_forward_mode()
    d_z = z.shape[-1]
    tangents = torch.eye(d_z, dtype=z.dtype).repeat_interleave(len(z), 0)  # one pass for all columns
    columns: Tensor = torch.func.jvp(g, (z.repeat(d_z, 1),), (tangents,))[1]
    return columns.view(d_z, len(z), -1).permute(1, 2, 0)


def norms(J: Tensor) -> Tensor:
    """Return the largest singular value of every matrix (..., d_x, d_z)."""
    largest: Tensor = torch.linalg.matrix_norm(J, ord=2)
    return largest


def ranks(J: Tensor) -> Tensor:
    """Return the rank of every matrix: singular values above max(d_x, d_z) eps sigma_1 count, times 1000 for rounding.

    The factor covers what a few matrix products before this one lose.
    """
    rank: Tensor = torch.linalg.matrix_rank(J, rtol=1e3 * max(J.shape[-2:]) * torch.finfo(J.dtype).eps)
    return rank


def null_vector(J: Tensor) -> Tensor:
    """Return the unit vector that each matrix (..., d_x, d_z) shrinks most."""
    vector: Tensor = torch.linalg.svd(J).Vh[..., -1, :]
    return vector


@functools.cache
def _load_forward_mode() -> None:
    """Take one derivative, once: PyTorch loads its forward mode at first use and warns about its own old code there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.square, (torch.ones(1),), (torch.ones(1),))
