"""Invertible piecewise-linear flows and their likelihood: the inverse of a leaky-ReLU network is one.

z = A_L f(... f(A_1 x + b_1) ...) + b_L with f(u) = u for u >= 0 and exp(rho) u below, z | y ~ N(means y, I). The kink
is smoothed over a width: a hard one has no gradient of the log-determinant where it matters, at the kink. M flows are
evaluated together in the layout (M, d, batch); the gradient is written out because it is the hot path of the dense
estimator (a test compares it with automatic differentiation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Width = float | Tensor
"""Half the ramp of a kink: one number per layer, or (M, d, 1) per unit."""


@dataclass(frozen=True)
class FlowShape:
    """Sizes of a flow: ``layers`` linear maps of R^d, ``labels`` features of y."""

    d: int
    layers: int
    labels: int

    @property
    def count(self) -> int:
        """Number of parameters."""
        return self.layers * self.d * (self.d + 1) + (self.layers - 1) * self.d + self.d * self.labels


@dataclass(frozen=True)
class FlowViews:
    """The parameters of M flows by name, as views of one (M, count) tensor."""

    A: list[Tensor]  # (M, d, d) per layer
    b: list[Tensor]  # (M, d, 1) per layer
    rho: list[Tensor]  # (M, d, 1) per kink: log of the slope for negative inputs
    means: Tensor  # (M, d, labels)


def views(flat: Tensor, shape: FlowShape) -> FlowViews:
    """Name the parts of a flat parameter (or gradient) tensor."""
    d, L = shape.d, shape.layers
    sizes = [d * d] * L + [d] * (2 * L - 1) + [d * shape.labels]
    parts = torch.split(flat, sizes, dim=-1)
    b = [torch.unflatten(part, -1, (d, 1)) for part in parts[L : 3 * L - 1]]
    A = [torch.unflatten(part, -1, (d, d)) for part in parts[:L]]
    return FlowViews(A, b[:L], b[L:], torch.unflatten(parts[-1], -1, (d, -1)))


def kink(u: Tensor, rho: Tensor, width: Width) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return f(u), its derivative, and the two pieces its parameter gradients need.

    The derivative goes from 1 to exp(rho) on a ramp r from u = width to u = -width; f(u) = u + (exp(rho) - 1) m(u) with
    m' = r and m(u) = u beyond the ramp.
    """
    k = torch.expm1(rho)
    r = (u * (-0.5 / width)).add_(0.5).clamp_(0, 1)
    m = (u + width).clamp_(max=0).sub_(r.square().mul_(width))
    return torch.addcmul(u, k, m), torch.addcmul(torch.ones((), dtype=u.dtype), k, r), r, m


def transform(flows: FlowViews, x: Tensor, widths: Sequence[Width]) -> tuple[Tensor, Tensor]:
    """Return z (M, d, n) and log |det dz/dx| (M, n) for x (M, d, n)."""
    log_det = torch.stack([torch.linalg.slogdet(A)[1] for A in flows.A]).sum(0)[:, None]
    for layer, (A, b) in enumerate(zip(flows.A, flows.b, strict=True)):
        x = torch.baddbmm(b, A, x)
        if layer < len(widths):
            x, slope, _, _ = kink(x, flows.rho[layer], widths[layer])
            log_det = log_det + slope.log().sum(1)
    return x, log_det


def log_density(flows: FlowViews, x: Tensor, labels: Tensor, widths: Sequence[Width]) -> Tensor:
    """Return log p(x | y), (M, n), for features of y ``labels`` (M, labels, n)."""
    z, log_det = transform(flows, x, widths)
    residual = z - flows.means @ labels
    return log_det - 0.5 * residual.square().sum(1) - 0.5 * z.shape[1] * math.log(2 * math.pi)


def gradient(flat: Tensor, shape: FlowShape, x: Tensor, labels: Tensor, widths: Sequence[Width], out: Tensor) -> None:
    """Write the gradient of the mean of -log p(x | y) over the batch into ``out``, for every flow."""
    flows, grads = views(flat, shape), views(out, shape)
    d, L, n = shape.d, shape.layers, x.shape[-1]
    inverse = torch.linalg.inv(flat[:, : L * d * d].reshape(-1, L, d, d))
    inputs, kinks = [], []
    for layer in range(L):
        inputs.append(x)
        x = torch.baddbmm(flows.b[layer], flows.A[layer], x)
        if layer < L - 1:
            x, slope, r, m = kink(x, flows.rho[layer], widths[layer])
            kinks.append((slope, r, m))
    g = torch.baddbmm(x, flows.means, labels, alpha=-1).div_(n)  # the residual: gradient by z
    grads.means.copy_(torch.bmm(g, labels.mT).neg_())
    for layer in range(L - 1, -1, -1):
        if layer < L - 1:
            slope, r, m = kinks[layer]
            k = torch.expm1(flows.rho[layer])
            per_slope = (-1 / n) / slope  # gradient by the slope, from the log-determinant
            grads.rho[layer].copy_((g * m).addcmul_(per_slope, r).sum(-1, keepdim=True) * (k + 1))
            on_ramp = ((r > 0) & (r < 1)).to(g.dtype)
            g = (g * slope).addcmul_(per_slope.mul_(on_ramp), k * (-0.5 / widths[layer]))
        grads.A[layer].copy_(torch.bmm(g, inputs[layer].mT)).sub_(inverse[:, layer].mT)
        grads.b[layer].copy_(g.sum(-1, keepdim=True))
        if layer:
            g = torch.bmm(flows.A[layer].mT, g)
