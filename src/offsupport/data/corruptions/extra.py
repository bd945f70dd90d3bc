"""The extra corruptions, meant for validation: speckle noise, Gaussian blur, spatter and saturation."""

from __future__ import annotations

import numpy as np

from offsupport.data.corruptions.catalogue import Images, corruption
from offsupport.data.corruptions.filters import gaussian, truncate
from offsupport.data.corruptions.seeding import Streams
from offsupport.data.corruptions.water import water_mask

MUD = (63, 42, 20)
WATER = (175, 238, 238)


@corruption("speckle_noise")
def speckle_noise(images: Images, streams: Streams, std: float) -> Images:
    """Multiply each value by normal noise of mean one and deviation ``std``."""
    levels = streams.normal("noise", *images.shape[1:])
    levels *= np.float32(std)
    levels += 1
    levels *= images
    return truncate(levels)


@corruption("gaussian_blur")
def gaussian_blur(images: Images, streams: Streams, sigma: float) -> Images:
    """Blur by a Gaussian of ``sigma`` pixels."""
    return truncate(gaussian(images.astype(np.float64), sigma))


@corruption("spatter")
def spatter(
    images: Images,
    streams: Streams,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    amount: float,
    mud: bool,
) -> Images:
    """Splash drops over the image: bright water, or opaque mud.

    Args:
        images: Images.
        streams: Their random streams.
        mean: Mean of the normal field the drops are made of.
        std: Its deviation.
        sigma: How far it is smoothed: the size of the drops.
        threshold: What is below it stays dry.
        amount: How strong the water is, or how far the edge of the mud is softened.
        mud: Mud rather than water.
    """
    side = images.shape[1]
    drops = gaussian(mean + std * streams.normal("field", side, side).astype(np.float64), sigma)
    drops[drops < threshold] = 0
    if mud:
        mask = gaussian((drops > threshold).astype(np.float64), amount)
        mask[mask < 0.8] = 0
        return truncate(images * (1 - mask[..., None]) + mask[..., None] * MUD)
    return truncate(images + amount * water_mask(truncate(drops * 255))[..., None] * WATER)


@corruption("saturate")
def saturate(images: Images, streams: Streams, factor: float, shift: float) -> Images:
    """Scale and shift the saturation in the sense of HSV; hue and value stay, and grey counts as red, as published."""
    levels = images.astype(np.float64)
    value = levels.max(axis=3, keepdims=True)
    depth = value - levels  # how far each channel lies below the value
    deepest = depth.max(axis=3, keepdims=True)
    grey = deepest == 0
    saturation = deepest / np.where(value == 0, 1, value)
    wanted = np.clip(factor * saturation + shift, 0, 1)
    # The deepest channel goes to depth wanted * value, the others in proportion.
    hue = np.where(grey, np.array([0.0, 1.0, 1.0]), depth / np.where(grey, 1, deepest))
    return truncate(value - hue * (wanted * value))
