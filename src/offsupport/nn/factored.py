"""A convolution whose weight is a constant plus a product of two thin factors, with gradients for the factors alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MIN_CHANNELS, MIN_RATIO = 64, 4
"""Narrower convolutions, and factors of more than a quarter of the channels, gain nothing: memory is the limit."""


def gains(layer: nn.Module, plain: type, rank: int) -> bool:
    """Tell whether :func:`convolve` can run ``layer``, of the class ``plain``, and beats the gradient by its weight."""
    return (
        isinstance(layer, _CONVOLUTIONS)
        and any(plain.forward is cls.forward for cls in _CONVOLUTIONS)  # type: ignore[attr-defined]
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and layer.out_channels >= max(MIN_CHANNELS, MIN_RATIO * rank)
    )


def convolve(x: Tensor, layer: Any, weight: Tensor, columns: Tensor, down: Tensor) -> Tensor:
    """Convolve ``x`` as ``layer`` does, by ``weight`` (which holds ``columns @ down``) instead of its own."""
    geometry = (layer.stride, layer.padding, layer.dilation, False, (0,) * len(layer.stride), 1)
    out: Tensor = _Convolution.apply(x, weight, layer.bias, columns, down, geometry)  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    """With ``C D`` the product, the layer is a constant convolution plus D followed by the pointwise C.

    Their gradients are those of two thin convolutions; the gradient by the weight itself is never formed.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor, down: Tensor, geometry: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight, columns, down)
        ctx.geometry = geometry
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, columns, down = ctx.saved_tensors
        backward = torch.ops.aten.convolution_backward
        ones, zeros = (1,) * (x.dim() - 2), (0,) * (x.dim() - 2)
        kernel, pointwise = down.view(-1, *weight.shape[1:]), columns.view(*columns.shape, *ones)
        by_input, _, by_bias = ctx.needs_input_grad[:3]
        dx = backward(dy, x, weight, None, *ctx.geometry, (True, False, False))[0] if by_input else None
        z = torch.convolution(x, kernel, None, *ctx.geometry)
        dz, d_columns, d_bias = backward(
            dy, z, pointwise, [len(columns)], ones, zeros, ones, False, zeros, 1, (True, True, by_bias)
        )
        d_down = backward(dz, x, kernel, None, *ctx.geometry, (False, True, False))[1]
        return dx, None, d_bias, d_columns.flatten(1), d_down.flatten(1), None
