"""Models for the tests of the bench: small, untrained, the same every time."""

from __future__ import annotations

import torch
from torch import nn

from offsupport.nn import resnet18
from offsupport.nn.projected import projected


def tiny() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = resnet18(width=4)
    weight = model.fc.weight.data
    weight -= weight.mean(dim=1, keepdim=True)  # or one class would win on every image
    return model


def with_projection() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return projected(tiny(), out=8)


def not_a_model() -> str:
    return "tiny"
