"""Weather: snow, frost, fog and brightness."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from offsupport.data.corruptions.catalogue import Images, corruption
from offsupport.data.corruptions.filters import truncate
from offsupport.data.corruptions.frost import textures
from offsupport.data.corruptions.motion import motion
from offsupport.data.corruptions.plasma import draws_needed, plasma
from offsupport.data.corruptions.seeding import Streams
from offsupport.data.corruptions.zoom import zoom

GREY = np.array([0.299, 0.587, 0.114])


@corruption("snow")
def snow(
    images: Images,
    streams: Streams,
    mean: float,
    std: float,
    factor: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Images:
    """Whiten the image and lay falling flakes over it, once as they are and once turned by 180 degrees.

    Args:
        images: Images.
        streams: Their random streams.
        mean: Mean of the normal field the flakes are made of.
        std: Its deviation.
        factor: How far it is zoomed into: the size of the flakes.
        threshold: What is below it is no flake.
        radius: How far flakes are smeared.
        sigma: How evenly.
        kept: Share of the image that is not whitened.
    """
    side = images.shape[1]
    flakes = zoom(mean + std * streams.normal("field", side, side).astype(np.float64), factor)
    flakes[flakes < threshold] = 0
    angle = 90 * streams.uniform("angle", 1)[:, 0].astype(np.float64) - 135
    layer = motion(truncate(flakes * 255)[..., None], angle, radius, sigma).astype(np.float64)
    levels = images.astype(np.float64)
    # Written as a sum in fixed order: a matrix product may round differently from batch to batch.
    grey = levels[..., :1] * GREY[0] + levels[..., 1:2] * GREY[1] + levels[..., 2:] * GREY[2]
    levels = kept * levels + (1 - kept) * np.maximum(levels, 1.5 * grey + 127.5)
    levels += layer + layer[:, ::-1, ::-1]
    return truncate(levels)


@corruption("frost")
def frost(
    images: Images, streams: Streams, kept: float, added: float, scale: float, frost_dir: Path | str | None = None
) -> Images:
    """Add ``added`` of a random cut of a frost texture to ``kept`` of the image.

    Args:
        images: Images.
        streams: Their random streams.
        kept: Share of the image.
        added: Share of the texture.
        scale: How far the textures are scaled down before they are cut.
        frost_dir: A folder with the official textures; synthesised ones otherwise.
    """
    side = images.shape[1]
    available = textures(None if frost_dir is None else str(frost_dir), scale)
    which, top, left = streams.uniform("cut", 3).T
    which = (which * len(available)).astype(np.int64)
    levels = kept * images.astype(np.float64)
    for number, texture in enumerate(available):
        chosen = np.flatnonzero(which == number)
        rows = (top[chosen] * max(texture.shape[0] - side, 1)).astype(np.int64)[:, None] + np.arange(side)
        columns = (left[chosen] * max(texture.shape[1] - side, 1)).astype(np.int64)[:, None] + np.arange(side)
        # A texture smaller than the image repeats.
        rows, columns = rows % texture.shape[0], columns % texture.shape[1]
        levels[chosen] += added * texture[rows[:, :, None], columns[:, None, :]]
    return truncate(levels)


@corruption("fog")
def fog(images: Images, streams: Streams, amount: float, decay: float) -> Images:
    """Add a plasma fractal and scale back to the brightest value of the image."""
    side = images.shape[1]
    size = 1 << (side - 1).bit_length()
    mist = plasma(streams.uniform("plasma", draws_needed(size)), decay)[:, :side, :side, None]
    brightest = images.max(axis=(1, 2, 3), keepdims=True) / 255
    return truncate((images + 255 * amount * mist) * (brightest / (brightest + amount)))


@corruption("brightness")
def brightness(images: Images, streams: Streams, amount: float) -> Images:
    """Raise the value (the largest channel) in the sense of HSV, at most to white; hue and saturation stay."""
    levels = images.astype(np.float64)
    value = levels.max(axis=3, keepdims=True)
    raised = np.minimum(value + 255 * amount, 255)
    black = value == 0
    return truncate(np.where(black, raised, levels * (raised / np.where(black, 1, value))))
