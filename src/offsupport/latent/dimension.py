"""How many latent dimensions a sample has: the maximum-likelihood estimate from nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor


def intrinsic_dimension(x: Tensor, k: int = 10, count: int = 300) -> Tensor:
    """Estimate the intrinsic dimension of (R, n, d) samples, (R,) numbers (Levina and Bickel, 2004; MacKay's average).

    Every run has its own estimate, from 1 to d. Neighbours at distance zero (repeated samples, as discrete columns
    give) say nothing and are left out; where equal distances remain, as on a grid, the estimate ends at d.

    Args:
        x: Samples.
        k: Neighbours.
        count: Samples whose neighbours are looked at.
    """
    estimates = []
    for run in x.double():
        gaps = torch.cdist(run[:count], run).topk(min(k + 1, len(run)), largest=False).values[:, 1:]
        near, far = gaps[:, :-1], gaps[:, -1:].expand(-1, gaps.shape[1] - 1)
        logs = (far / near).log()[near > 1e-9]
        estimates.append(1 / logs.mean().nan_to_num(0).clamp_min(1e-6))
    return torch.stack(estimates).clamp(1, x.shape[-1])
