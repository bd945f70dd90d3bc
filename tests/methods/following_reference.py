"""Batch norm as in training, written out, for the references of methods that follow a stream."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from parity_check import BATCH_NORM, MIN_BATCH, PRIOR
from torch import Tensor, nn


class Running:
    """Runs a network layer by layer with statistics of its own beside the buffers of the layers."""

    def __init__(self, net: nn.Module, momentum: float = 0.1):
        self.momentum = momentum
        layers = [layer for layer in net.modules() if isinstance(layer, BATCH_NORM)]
        self.stats = {layer: (layer.running_mean.clone(), layer.running_var.clone()) for layer in layers}

    def forward(self, net: Iterable[nn.Module], x: Tensor, mode: str) -> Tensor:
        for layer in net:
            x = self.batch_norm(layer, x, mode) if isinstance(layer, BATCH_NORM) else layer(x)
        return x

    def batch_norm(self, layer: nn.Module, x: Tensor, mode: str) -> Tensor:
        channels = x.transpose(0, 1).flatten(1)
        known_mean, known_var = self.stats[layer]
        mean, var = channels.mean(1), channels.var(1, unbiased=False)
        if mode == "train":
            m, fair = self.momentum, channels.detach().var(1, unbiased=True)
            self.stats[layer] = ((1 - m) * known_mean + m * mean.detach(), (1 - m) * known_var + m * fair)
        elif mode == "blend":
            n = len(x)
            mean, var = (n * mean + PRIOR * known_mean) / (n + PRIOR), (n * var + PRIOR * known_var) / (n + PRIOR)
        elif mode != "batch":
            mean, var = known_mean, known_var
        shape = (1, -1) + (1,) * (x.dim() - 2)
        normal = (x - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt()
        return normal * layer.weight.view(shape) + layer.bias.view(shape)

    def score(self, net: nn.Module, x: Tensor, score_stats: str = "batch") -> Tensor:
        """What a method that scores after its step returns."""
        with torch.no_grad():
            return self.forward(net, x, "blend" if len(x) < MIN_BATCH else score_stats)


def covariance(z: Tensor) -> Tensor:
    mean = sum(z) / len(z)
    return sum(torch.outer(row - mean, row - mean) for row in z) / (len(z) - 1)
