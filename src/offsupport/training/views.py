"""How training images are varied: whole batches at once, every draw from the generator that is given."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from offsupport.augment import flip, random_resized_crop, simclr_view
from offsupport.training.recipe import Recipe

View = Callable[[Tensor, torch.Generator], Tensor]
CROP, SHAPES = (0.2, 1.0), (3 / 4, 4 / 3)
"""Area and shape of random crops, as published."""


def make_view(recipe: Recipe) -> View:
    """Return what varies a batch of images (N, C, H, W) in [0, 1]."""
    views: dict[str, View] = {
        "none": lambda x, _: x,
        "shift": lambda x, generator: shifted(x, recipe.shift, generator),
        "shift-flip": lambda x, generator: flip(shifted(x, recipe.shift, generator), generator),
        "crop-flip": lambda x, generator: flip(random_resized_crop(x, CROP, SHAPES, generator), generator),
        "simclr": lambda x, generator: simclr_view(x, generator, CROP),
    }
    return views[recipe.views]


def shifted(x: Tensor, by: int, generator: torch.Generator) -> Tensor:
    """Move each image by up to ``by`` pixels along each axis, edges repeated."""
    n, _, height, width = x.shape
    padded = nn.functional.pad(x, (by, by, by, by), mode="replicate")
    top, left = torch.randint(2 * by + 1, (2, n, 1), generator=generator)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    return padded[
        torch.arange(n)[:, None, None, None],
        torch.arange(x.shape[1])[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def resized(x: Tensor, side: int) -> Tensor:
    """Return the images at a smaller side, averaged rather than picked; those of that side as they are."""
    if x.shape[-1] == side:
        return x
    return nn.functional.interpolate(x, (side, side), mode="bilinear", antialias=True)


def side_at(recipe: Recipe, epoch: int, full: int) -> int:
    """Return the side of the images in an epoch: multiples of 4 from ``grow_from`` up to the full side."""
    if recipe.grow_from is None:
        return full
    done = min(1.0, epoch / (0.6 * recipe.epochs))
    return min(full, recipe.grow_from + int(done * (full - recipe.grow_from)) // 4 * 4)
