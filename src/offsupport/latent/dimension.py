"""How many latent dimensions a sample has: the maximum-likelihood estimate from nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor


def intrinsic_dimension(x: Tensor, k: int = 10, count: int = 300) -> Tensor:
    """Estimate the intrinsic dimension of (R, n, d) samples, (R,) numbers (Levina and Bickel, 2004; MacKay's average).

    Args:
        x: Samples.
        k: Neighbours.
        count: Samples whose neighbours are looked at.
    """
    estimates = []
    for run in x:
        gaps = torch.cdist(run[:count].double(), run.double()).topk(min(k + 1, len(run)), largest=False).values[:, 1:]
        logs = (gaps[:, -1:].clamp_min(1e-12) / gaps[:, :-1].clamp_min(1e-12)).log().mean(1)
        estimates.append(1 / logs.mean().clamp_min(1e-6))
    return torch.stack(estimates)
