"""What makes an update small: gates that reach zero, and how many directions are left."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """Return ``x`` moved towards zero by ``threshold``, and zero within it: the proximal map of threshold * |x|_1.

    Example:
        >>> soft_threshold(torch.tensor([-0.5, 0.2, 1.0]), 0.3)
        tensor([-0.2000,  0.0000,  0.7000])
    """
    return x - x.clamp(-threshold, threshold)


def product_singular_values(a: Tensor, b: Tensor) -> Tensor:
    """Return the singular values of ``a @ b`` for tall ``a`` (m, r) and wide ``b`` (r, n), without forming it."""
    core = torch.linalg.qr(a).R @ torch.linalg.qr(b.T).R.T
    values: Tensor = torch.linalg.svdvals(core)
    return values


def effective_rank(singular_values: Tensor) -> float:
    """Return exp of the entropy of the normalised singular values (Roy & Vetterli, 2007); 0 for a zero matrix.

    Example:
        >>> effective_rank(torch.tensor([2.0, 2.0, 0.0]))
        2.0
    """
    total = singular_values.sum()
    if not total > 0:
        return 0.0
    p = singular_values / total
    return float(torch.special.entr(p).sum().exp())
