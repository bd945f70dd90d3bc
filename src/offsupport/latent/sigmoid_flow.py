"""A deep dense sigmoidal flow (Huang et al., 2018) on each latent dimension: 1 -> units -> 1, strictly increasing."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

CLIP = 1e-6  # how close to 0 or 1 a mixture of sigmoids may come before its logit is taken
INVERSE_SOFTPLUS_1 = math.log(math.e - 1)  # slopes are 1 where the parameter is 0


def parameter_count(units: int) -> int:
    """Return the number of parameters of the flow of one dimension."""
    return (3 * units + 1) + (3 * units + units)


def sigmoid_flow(s: Tensor, flow: Tensor, offsets: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """Apply the flow to every dimension on its own.

    Args:
        s: (R, n, d) values.
        flow: (R, d, parameter_count(units)) parameters.
        offsets: (R, units, units) offsets that tell the hidden outputs apart, shared by dimensions and domains.
        units: Hidden units.

    Returns:
        The (R, n, d) images and the (R, n) log-determinants.
    """
    first, second = flow.split([3 * units + 1, 4 * units], -1)
    h = s.mT[..., None]  # (R, d, n, 1)
    h, gain = _block(h, torch.ones_like(h), first[..., : 3 * units], offsets[:, None])
    u = second[..., 3 * units :].softmax(-1)[..., None]  # a convex mixture of the hidden outputs
    out, gain = _block(h @ u, gain @ u, second[..., : 3 * units], torch.zeros_like(offsets[:, None, :, :1]))
    return out[..., 0].mT, gain[..., 0].log().sum(1)


def _block(h: Tensor, gain: Tensor, params: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """One layer: sigmoids of the input, convex mixtures of those, their logits.

    Args:
        h: (R, d, n, 1) inputs.
        gain: (R, d, n, 1) their derivatives by s.
        params: (R, d, 3 * units) slopes, offsets and output weights of the sigmoids.
        offsets: (R, 1, units, out) added to the output weights.
    """
    a, b, w = params.chunk(3, -1)
    a = functional.softplus(a + INVERSE_SOFTPLUS_1)[:, :, None]
    sigmoid = torch.sigmoid(a * h + b[:, :, None])
    weights = (w[..., None] + offsets).softmax(-2)
    mixed = (sigmoid @ weights).clamp(CLIP, 1 - CLIP)
    slope = (sigmoid * (1 - sigmoid) * a * gain) @ weights
    return torch.logit(mixed), (slope / (mixed * (1 - mixed))).clamp_min(1e-12)
