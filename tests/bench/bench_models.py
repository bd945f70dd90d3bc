"""Models for the tests of the bench: small, untrained, the same every time."""

from __future__ import annotations

import torch
from torch import nn

from offsupport.nn import resnet18


def tiny() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return resnet18(width=4)


def not_a_model() -> str:
    return "tiny"
