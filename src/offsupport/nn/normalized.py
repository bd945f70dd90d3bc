"""The one place where images are normalised: inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalized(nn.Module):
    """Takes images in [0, 1], standardises each channel, and runs ``model``.

    Args:
        model: A network that expects standardised images.
        mean: Mean of each channel.
        std: Standard deviation of each channel.

    Example:
        >>> net = Normalized(nn.Flatten(), mean=[0.5], std=[0.25])
        >>> net(torch.ones(1, 1, 1, 1))
        tensor([[2.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        # Not part of the state dict: checkpoints of the inner model stay interchangeable.
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Any:
        """Standardise and run the inner model."""
        return self.model((x - self.mean) / self.std)
