"""Small trained networks, one per kind of layer that adaptation must cope with, and the toy problem they solve."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.nn.mae import mae
from offsupport.nn.projected import projected
from offsupport.nn.rotated import with_rotation_head

CLASSES = 4
IMAGE = (3, 8, 8)

Factory = Callable[[], nn.Module]


def toy_images(count: int, seed: int, *, shifted: bool = True) -> tuple[Tensor, Tensor]:
    """Return images in [0, 1] and their classes: one faint pattern per class under noise.

    Args:
        count: Number of images.
        seed: Seed of the draw; the patterns are always the same.
        shifted: Whether contrast, brightness and noise are those of the target rather than of the source.
    """
    patterns = torch.randn(CLASSES, *IMAGE, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=generator)
    noise = torch.randn(count, *IMAGE, generator=generator)
    x = 0.4 + 0.09 * patterns[y] + (0.16 if shifted else 0.13) * noise
    return (0.7 * x + 0.25 if shifted else x).clamp(0, 1), y


def _autoencoder() -> nn.Module:
    widths = {"dim": 8, "decoder_dim": 8, "head_dim": 8}
    depths = {"depth": 1, "decoder_depth": 1, "head_depth": 1}
    heads = {"heads": 1, "decoder_heads": 1, "head_heads": 1}
    shape: dict[str, Any] = {"image": IMAGE[1], "patch": 4, **widths, **depths, **heads}
    return mae("tiny/4", CLASSES, **shape)


def train(network: nn.Module, steps: int = 80) -> nn.Module:
    """Fit ``network`` to the source images of the toy problem, in place, and return it in evaluation mode."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    network.train()
    for step in range(steps):
        x, y = toy_images(64, seed=1000 + step, shifted=False)
        nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return network.eval()


def _trained(build: Factory) -> Factory:
    """Train once per process, under a fixed seed and without touching the global one; hand out copies."""

    @functools.lru_cache(maxsize=1)
    def original() -> nn.Module:
        # A check may ask for a network inside inference mode; what is made there could not be trained later.
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            torch.manual_seed(0)
            return train(build())

    return functools.wraps(build)(lambda: copy.deepcopy(original()))


class _Tokens(nn.Module):
    """Four patches of four by four pixels as tokens: a transformer's shapes without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 12, 4, stride=4)
        self.norm1 = nn.LayerNorm(12)
        self.mix = nn.Linear(12, 12)
        self.norm2 = nn.LayerNorm(12)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm1(self.embed(x).flatten(2).transpose(1, 2))
        tokens = self.norm2(tokens + torch.relu(self.mix(tokens)))
        logits: Tensor = self.head(tokens.flatten(1))
        return logits


def _convolutional(norm: Callable[[int], nn.Module], *extra: nn.Module) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), norm(8), nn.ReLU()),
        *(*extra, nn.Flatten(), nn.Linear(32, CLASSES)),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU()),
        *(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)),
    )


def _one_pixel() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES)),
    )


NETWORKS: dict[str, Factory] = {
    "batch_norm": _trained(lambda: _convolutional(nn.BatchNorm2d)),
    "batch_norm_1d": _trained(_mlp),
    "group_norm": _trained(lambda: _convolutional(lambda channels: nn.GroupNorm(2, channels))),
    "layer_norm": _trained(_Tokens),
    "no_norm": _trained(lambda: _convolutional(lambda _: nn.Identity())),
    "one_pixel": _trained(_one_pixel),
    "mae": _trained(_autoencoder),
    "dropout": _trained(lambda: _convolutional(nn.BatchNorm2d, nn.Dropout(0.3))),
    "projection": _trained(lambda: projected(_convolutional(nn.BatchNorm2d), out=8)),
    "rotation": _trained(lambda: with_rotation_head(_convolutional(nn.BatchNorm2d))),
}
"""Factories of classifiers of (N, 3, 8, 8) images in [0, 1] into four classes, by what is special about them."""
