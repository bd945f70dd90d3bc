"""The source model of the demonstration: a small residual network on the embedded digits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from offsupport.core.seeds import derive_seed
from offsupport.data import load
from offsupport.nn import Normalized, ResNet
from offsupport.nn.resnet import BasicBlock
from offsupport.training.supervised import train_classifier

EPOCHS = 12


def digits_network() -> nn.Module:
    """Return the untrained network, with one block per stage; it takes images in [0, 1]."""
    # The coarse stem loses nothing: the digits were enlarged from 8x8.
    network = ResNet(BasicBlock, (1, 1, 1, 1), width=16, stem="imagenet")
    return Normalized(network, mean=[0.5] * 3, std=[0.5] * 3)


def digits_model(seed: int = 0, advance: Callable[[], None] = lambda: None) -> nn.Module:
    """Train the digits classifier: some seconds on one core, the same weights for the same seed and thread count.

    Args:
        seed: Seed of initialisation, order and augmentation.
        advance: Called after each of :data:`EPOCHS` epochs.
    """
    train = load("digits", split="train")
    images = torch.from_numpy(train.images(np.arange(len(train)))).permute(0, 3, 1, 2).float() / 255
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("digits model", seed))
        model = digits_network()
    return train_classifier(
        model, images, torch.from_numpy(train.labels), epochs=EPOCHS, shift=2, seed=seed, advance=advance
    )
