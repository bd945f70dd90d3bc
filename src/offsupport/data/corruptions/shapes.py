"""Shifts beyond the published nineteen: other shapes, parts that are hidden, noises of other kinds, and negatives.

They take part in no published average; tables that use them say so.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import grey_dilation, grey_erosion, rotate

from offsupport.data.corruptions.filters import truncate
from offsupport.data.corruptions.registry import Images, register_corruption
from offsupport.data.corruptions.seeding import Streams

GRAIN = 4
"""Side of the squares of coarse noise in images of 32 pixels."""
GREY = 127


@register_corruption("rotation", [6, 12, 18, 24, 30], group="shape")
def rotation(images: Images, streams: Streams, degrees: float) -> Images:
    """Turn the image about its centre; what comes in from outside is the nearest edge."""
    return truncate(rotate(images.astype(np.float64), degrees, (2, 1), reshape=False, order=1, mode="nearest"))


@register_corruption("thick_strokes", [2, 3, 4, 5, 6], group="shape")
def thick_strokes(images: Images, streams: Streams, side: int) -> Images:
    """Let everything bright grow: each value becomes the largest of a square around it."""
    return np.asarray(grey_dilation(images, size=(1, side, side, 1)), np.uint8)


@register_corruption("thin_strokes", [2, 3, 4, 5, 6], group="shape")
def thin_strokes(images: Images, streams: Streams, side: int) -> Images:
    """Let everything bright shrink: each value becomes the least of a square around it."""
    return np.asarray(grey_erosion(images, size=(1, side, side, 1)), np.uint8)


@register_corruption("occlusion", [2 / 32, 4 / 32, 6 / 32, 8 / 32, 10 / 32], group="shape")
def occlusion(images: Images, streams: Streams, share: float) -> Images:
    """Hide a square at a random place behind grey; ``share`` is its side over that of the image."""
    side = images.shape[1]
    hidden = max(1, round(share * side))
    corner = (streams.uniform("place", 2) * (side - hidden + 1)).astype(np.int64)[..., None]  # (N, 2, 1): top and left
    inside = (np.arange(side) >= corner) & (np.arange(side) < corner + hidden)
    mask = inside[:, 0, :, None] & inside[:, 1, None, :]
    return np.where(mask[..., None], np.uint8(GREY), images)


@register_corruption("uniform_noise", [0.15, 0.3, 0.45, 0.6, 0.75], group="shape")
def uniform_noise(images: Images, streams: Streams, bound: float) -> Images:
    """Add to each value noise between plus and minus ``bound``, all of it equally likely."""
    noise = 2 * streams.uniform("noise", *images.shape[1:]).astype(np.float64) - 1
    return truncate(images + 255 * bound * noise)


@register_corruption("coarse_noise", [0.1, 0.2, 0.3, 0.4, 0.5], group="shape")
def coarse_noise(images: Images, streams: Streams, std: float) -> Images:
    """Add grey normal noise that is constant in squares, eight to a side."""
    side = images.shape[1]
    each = max(1, side * GRAIN // 32)
    squares = streams.normal("squares", -(-side // each), -(-side // each)).astype(np.float64)
    noise = squares.repeat(each, axis=1).repeat(each, axis=2)[:, :side, :side, None]
    return truncate(images + 255 * std * noise)


@register_corruption("invert", [0.6, 0.7, 0.8, 0.9, 1.0], group="shape")
def invert(images: Images, streams: Streams, share: float) -> Images:
    """Mix the image with its negative; at severity 5 it is the negative."""
    return truncate((1 - share) * images.astype(np.float64) + share * (255 - images.astype(np.float64)))
