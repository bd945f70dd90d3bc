"""Networks by name, so that files of weights can say what they belong to."""

from __future__ import annotations

import re

from torch import nn

from offsupport.core.errors import ConfigError, nearest
from offsupport.nn.mae import SIZES, mae
from offsupport.nn.normalized import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    CIFAR100_MEAN,
    CIFAR100_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalized,
)
from offsupport.nn.resnet import BasicBlock, ResNet, resnet18, resnet26, resnet50

_RESNETS = {"resnet18": resnet18, "resnet26": resnet26, "resnet50": resnet50}
_NAME = re.compile(r"(?P<base>[a-z]+\d+)(?:x(?P<factor>\d*\.?\d+))?(?P<stem>-imagenet)?")

NORMALIZATIONS = {
    "cifar10": (CIFAR10_MEAN, CIFAR10_STD),
    "cifar100": (CIFAR100_MEAN, CIFAR100_STD),
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "digits": ((0.5,) * 3, (0.5,) * 3),
}
"""Mean and deviation of the channels, by the data a network was trained on."""


def build_network(name: str, classes: int, normalization: str) -> nn.Module:
    """Return an untrained network that takes images in [0, 1].

    Args:
        name: ``resnet18``, ``resnet26`` or ``resnet50``, with ``x0.25`` for a quarter of the width and ``-imagenet``
            for the stem of large images; ``digits-small``; or ``mae-`` before a size of :func:`~offsupport.nn.mae.mae`.
        classes: Number of logits.
        normalization: One of :data:`NORMALIZATIONS`.
    """
    if normalization not in NORMALIZATIONS:
        raise ConfigError(f"Unknown normalisation {normalization!r}.", nearest(normalization, NORMALIZATIONS))
    mean, std = NORMALIZATIONS[normalization]
    return Normalized(_network(name, classes), mean, std)


def _network(name: str, classes: int) -> nn.Module:
    if name == "digits-small":
        # The coarse stem loses nothing: the digits were enlarged from 8x8.
        return ResNet(BasicBlock, (1, 1, 1, 1), classes, width=16, stem="imagenet")
    if name.startswith("mae-"):
        return mae(name.removeprefix("mae-"), classes)
    found = _NAME.fullmatch(name)
    if found is None or found["base"] not in _RESNETS:
        known = [*_RESNETS, "digits-small", *(f"mae-{size}" for size in SIZES)]
        raise ConfigError(f"Unknown network {name!r}.", nearest(name, known))
    width = round(64 * float(found["factor"] or 1))
    if width < 1:
        raise ConfigError(f"The network {name!r} has no channels.", "Give a larger factor: resnet18x0.25.")
    return _RESNETS[found["base"]](classes, width=width, stem="imagenet" if found["stem"] else "cifar")
