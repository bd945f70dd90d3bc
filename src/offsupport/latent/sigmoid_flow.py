"""A deep dense sigmoidal flow (Huang et al., 2018) on each latent dimension: 1 -> units -> 1, strictly increasing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CLIP = 1e-6  # how close to 0 or 1 a mixture of sigmoids may come before its logit is taken
LEAST = 1e-12  # the smallest derivative of a layer; its logarithm is taken
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
    runs, n, d = s.shape
    sizes = [units, units, units, 1, units, units, units, units]
    a, b, w, _, a2, b2, w2, u = torch.split(flow.flatten(0, 1)[..., None], sizes, 1)  # each (R d, units, 1)
    a, a2 = (functional.softplus(slopes + INVERSE_SOFTPLUS_1) for slopes in (a, a2))
    mix = (torch.unflatten(w.mT, 0, (runs, d)) + offsets.mT[:, None]).softmax(-1).flatten(0, 1)
    mix2, u = w2.softmax(1).mT, u.softmax(1).mT  # u: a convex mixture of the hidden outputs
    h, gain = _mixture(torch.addcmul(b, a, s.mT.reshape(runs * d, 1, n)), mix, a.mT * mix)
    out, gain2 = _mixture(torch.addcmul(b2, a2, u @ h), mix2, a2.mT * mix2)
    return out.view(runs, d, n).mT, ((u @ gain) * gain2).view(runs, d, n).log().sum(1)


def _mixture(before: Tensor, mix: Tensor, tilt: Tensor) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _Mixture.apply(before, mix, tilt)  # type: ignore[no-untyped-call]
    return both


class _Mixture(torch.autograd.Function):
    """Logits of convex mixtures of sigmoids and their derivatives, with a backward pass of few passes over memory.

    m = mix @ sigmoid(before), t = sigmoid'(before); returns logit(m) and (tilt @ t) / (m (1 - m)), where ``tilt`` is
    ``mix`` times the slopes of the sigmoids by the input. Samples come last: a product with a single row of weights is
    several times slower the other way round.
    """

    @staticmethod
    def forward(ctx: Any, before: Tensor, mix: Tensor, tilt: Tensor) -> tuple[Tensor, Tensor]:
        sigmoid = torch.sigmoid(before)
        t = torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        m = (mix @ sigmoid).clamp_(CLIP, 1 - CLIP)
        inverse = torch.addcmul(m, m, m, value=-1).reciprocal_()
        slope = (tilt @ t).mul_(inverse).clamp_min_(LEAST)
        ctx.save_for_backward(sigmoid, t, mix, tilt, m, inverse, slope)
        return torch.logit(m), slope

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sigmoid, t, mix, tilt, m, inverse, slope = ctx.saved_tensors
        by_slope = torch.ops.aten.threshold_backward(grads[1], slope, LEAST)  # zero where the slope was clipped
        by_m = torch.addcmul(grads[0], by_slope * slope, m - 0.5, value=2).mul_(inverse)
        by_m = torch.ops.aten.hardtanh_backward(by_m, m, CLIP, 1 - CLIP)  # likewise
        by_t = by_slope.mul_(inverse)
        back = tilt.mT @ by_t
        before = torch.baddbmm(back, mix.mT, by_m).addcmul_(back, sigmoid, value=-2).mul_(t)
        return before, by_m @ sigmoid.mT, by_t @ t.mT
