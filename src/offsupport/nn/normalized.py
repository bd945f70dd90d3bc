"""The one place where images are normalised: inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError, InputError

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
TINY100_MEAN, TINY100_STD = (0.4826, 0.4517, 0.4027), (0.2583, 0.2518, 0.2650)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


ROOM = 0.5
"""So far outside [0, 1] pixels may lie, as after sharpening or interpolation, before they count as another unit."""


def require_batch(x: Tensor) -> None:
    """Refuse what is no batch of images (N, C, H, W): broadcasting would take the channels of one image for images."""
    if x.dim() != 4:
        raise InputError(
            f"This network takes batches of images (N, C, H, W), and this one has shape {tuple(x.shape)}.",
            "Add the batch dimension: x[None]." if x.dim() == 3 else "Reshape it to these four dimensions.",
        )


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
        values, spread = (torch.as_tensor(given, dtype=torch.float32).flatten() for given in (mean, std))
        if len(values) != len(spread) or not bool((spread > 0).all()):
            raise ConfigError(
                f"Normalized got {len(values)} means and the deviations {spread.tolist()}.",
                "Give one mean and one positive deviation for each channel.",
            )
        self.model = model
        # Not part of the state dict: checkpoints of the inner model stay interchangeable.
        self.register_buffer("mean", values.view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", spread.view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Any:
        """Standardise and run the inner model."""
        require_batch(x)
        if x.shape[1] != self.mean.numel() != 1:
            raise InputError(
                f"The images have {x.shape[1]} channels, and there are {self.mean.numel()} means.",
                "Give one mean and one deviation per channel.",
            )
        return self.model((x - self.mean) / self.std)
