"""Models that tests name as adapt_models:function."""

import torch
from torch import nn

from offsupport.nn import build_network, resnet18


def tiny():
    torch.manual_seed(0)
    return resnet18(width=4).eval()


def only_16():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def autoencoder():
    torch.manual_seed(0)
    return build_network("mae-digits/8", 10, "digits").eval()


def broken():
    """Fail as code of anybody's may."""
    return 1 / 0


def careless():
    """Be made, and fail when asked."""
    return Careless()


class Careless(nn.Module):
    def forward(self, x):
        return {"logit": x.mean((2, 3))}["logits"]
