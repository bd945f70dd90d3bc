"""Multi-layer perceptrons and Adam for R independent runs at once: every parameter has a leading run axis.

All runs start from the same weights and see their samples in the same order, both drawn from one seed, so a run ends
at the same place whatever else is in its batch. Adam acts entry by entry, hence run by run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

Params = list[Tensor]


def init_mlp(sizes: Sequence[int], runs: int, rng: torch.Generator, dtype: torch.dtype = torch.float32) -> Params:
    """Draw [W1, b1, W2, ...] of ``runs`` equal networks: U(-1, 1) / sqrt(fan-in), W (R, in, out), b (R, 1, out)."""
    params = []
    for fan_in, out in itertools.pairwise(sizes):
        for rows in (fan_in, 1):
            drawn = (torch.rand(rows, out, generator=rng, dtype=torch.float64) * 2 - 1) / math.sqrt(fan_in)
            params.append(drawn.to(dtype).expand(runs, -1, -1).clone().requires_grad_())
    return params


def mlp(params: Params, x: Tensor, slope: float = 0.2) -> Tensor:
    """Apply R networks to (R, n, in); leaky ReLU between layers."""
    for layer in range(0, len(params), 2):
        if layer:
            x = functional.leaky_relu_(x, slope)  # its gradient needs only what comes out
        x = torch.baddbmm(params[layer + 1], x, params[layer])
    return x


def batches(n: int, size: int, epochs: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield index batches: every epoch is a fresh shuffle, its last batch may be short."""
    for _ in range(epochs):
        yield from torch.split(torch.randperm(n, generator=rng), size)


def adam(
    params: Params, loss: Callable[[Tensor], Tensor], schedule: Iterable[Tensor], lr: float | Sequence[float]
) -> None:
    """Minimise a loss per run over ``schedule`` in place.

    Args:
        params: Leaf tensors with a leading run axis.
        loss: Maps a batch of indices to the (R,) losses of the runs.
        schedule: Batches of indices.
        lr: Step size, or one per step.
    """
    rates = itertools.repeat(lr) if isinstance(lr, (int, float)) else lr
    optimiser = torch.optim.Adam(params, fused=True)
    for index, rate in zip(schedule, rates, strict=False):  # one rate lasts for ever
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        torch.autograd.backward(loss(index).sum())
        optimiser.step()


def supervised_loss(output: Tensor, y: Tensor) -> Tensor:
    """Return the (R,) cross-entropies for class indices, mean squared errors for numbers."""
    if y.is_floating_point():
        return (output[..., 0] - y).square().mean(1)
    return functional.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)
