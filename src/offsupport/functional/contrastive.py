"""Contrast between views: each picks its partner out of the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def nt_xent(z1: Tensor, z2: Tensor, temperature: float = 0.5, base_temperature: float | None = None) -> Tensor:
    """Normalised temperature-scaled cross-entropy of two views (N, D) of the same images (Chen et al., 2020).

    Every one of the 2N views is an anchor: its partner is the positive, all other views but itself are the choice.
    Lengths do not matter. One image alone has no negatives, and its loss is zero.

    Args:
        z1: Projections of the first views.
        z2: Projections of the second views.
        temperature: What cosines are divided by.
        base_temperature: Where given, the loss is scaled by ``temperature / base_temperature``. Published code that
            grew out of SupCon keeps 0.07 there, which scales it by 7.14 at temperature 0.5.

    Example:
        >>> one = torch.eye(2)
        >>> round(float(nt_xent(one, one)), 4)
        0.2395
    """
    z = nn.functional.normalize(torch.cat([z1, z2]), dim=1)
    cosine = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = cosine.diagonal(len(z1)).repeat(2)
    loss = (cosine.masked_fill(itself, -torch.inf).logsumexp(1) - positive).mean()
    return loss if base_temperature is None else temperature / base_temperature * loss
