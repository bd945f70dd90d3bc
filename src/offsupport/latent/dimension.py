"""How many latent dimensions there are: of a source in all, and changing ones of targets with a sparse shift."""

from __future__ import annotations

import torch
from torch import Tensor

from offsupport.latent.masks import Weighed

ODD = 0.1  # share of the moved targets of a run whose sets may be larger than d_s


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


def changing_dimension(weighed: Weighed) -> list[int]:
    """Return d_s of every run, at least 1: how many dimensions its samples moved, judged by their likeliest sets.

    Samples of a run share their shift, but a moved dimension may land where the source was; so the largest set counts,
    but for one in ten of the samples that moved at all. Too small a d_s would leave a moved dimension among those that
    are trusted, too large a one costs a dimension that could have been: with few samples the largest set decides.
    """
    size = weighed.likeliest().sum(-1).sort(-1, descending=True).values
    odd = (ODD * (size > 0).sum(-1, keepdim=True)).long()
    found: list[int] = size.gather(-1, odd)[:, 0].clamp_min(1).tolist()
    return found
