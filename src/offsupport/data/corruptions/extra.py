"""The extra corruptions, meant for validation: speckle noise, Gaussian blur, spatter and saturation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, label

from offsupport.data.corruptions.filters import correlate, gaussian, truncate
from offsupport.data.corruptions.registry import Images, published
from offsupport.data.corruptions.seeding import Streams

# Drops of water with bright rims: edges of the drops, distance to them, and some embossing.


Fields = NDArray[np.uint8]  # (N, H, W)

LOW, HIGH = 50, 150
FARTHEST = 20
FAR_AWAY = 1e6
EMBOSS = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
MEAN = np.full((3, 3), 1 / 9)


def water_mask(drops: Fields) -> NDArray[np.float64]:
    """Return how much water is on each pixel, from 0 to 1 in each image, for 8-bit (N, H, W) drops."""
    distance = np.minimum(edge_distance(canny(drops)), FARTHEST)
    relief = equalise((correlate(distance, MEAN, "reflect") + 1e-9).astype(np.uint8))
    embossed = np.clip(correlate(relief.astype(np.float64), EMBOSS, "reflect"), 0, 255)
    depth = drops * np.rint(correlate(embossed, MEAN, "reflect"))
    highest = depth.max(axis=(1, 2), keepdims=True)
    return np.asarray(depth / np.where(highest == 0, 1, highest))


def canny(fields: Fields) -> NDArray[np.bool_]:
    """Return the edges of (N, H, W) fields (Canny, 1986): ridges of the gradient that reach a strong one.

    The magnitude is |x| + |y| of 3x3 Sobel gradients, compared along the nearest of four directions.
    """
    x, y = _sobel(fields.astype(np.float64))
    magnitude = np.abs(x) + np.abs(y)
    ridge = (magnitude > LOW) & _is_ridge(x, y, magnitude)
    # A third axis without neighbours keeps the images of the batch apart.
    neighbours = np.zeros((3, 3, 3), int)
    neighbours[1] = 1
    regions, _ = label(ridge, structure=neighbours)
    strong = np.unique(regions[ridge & (magnitude > HIGH)])
    return np.isin(regions, strong[strong > 0])


def _sobel(fields: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    smooth, slope = np.array([1.0, 2.0, 1.0]), np.array([-1.0, 0.0, 1.0])
    return correlate(fields, np.outer(smooth, slope), "edge"), correlate(fields, np.outer(slope, smooth), "edge")


def _is_ridge(x: NDArray[np.float64], y: NDArray[np.float64], magnitude: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell whether a magnitude is largest along its gradient; of two equal ones the second is taken."""
    padded = np.pad(magnitude, [(0, 0), (1, 1), (1, 1)])
    height, width = magnitude.shape[1:]

    def at(down: int, right: int) -> NDArray[np.float64]:
        return np.asarray(padded[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width])

    tangent = np.tan(np.pi / 8)
    flat, steep = np.abs(y) < tangent * np.abs(x), np.abs(y) * tangent > np.abs(x)
    horizontal = (magnitude > at(0, -1)) & (magnitude >= at(0, 1))
    vertical = (magnitude > at(-1, 0)) & (magnitude >= at(1, 0))
    falling = (magnitude > at(-1, -1)) & (magnitude > at(1, 1))
    rising = (magnitude > at(-1, 1)) & (magnitude > at(1, -1))
    diagonal = np.where(x * y < 0, rising, falling)
    return np.where(flat, horizontal, np.where(steep, vertical, diagonal))


def edge_distance(edges: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the distance of each pixel to the nearest edge of its image; very large where there is none."""
    if not edges.any():
        return np.full(edges.shape, FAR_AWAY)
    return np.asarray(distance_transform_edt(~edges, sampling=(FAR_AWAY, 1, 1)))


def equalise(fields: Fields) -> Images:
    """Return each (H, W) field with its histogram spread evenly over 0 to 255; a constant field stays."""
    count, pixels = len(fields), fields.shape[1] * fields.shape[2]
    flat = fields.reshape(count, pixels)
    offset = np.arange(count)[:, None]
    histogram = np.bincount((flat + 256 * offset).ravel(), minlength=256 * count).reshape(count, 256)
    lowest = np.take_along_axis(histogram, flat.min(axis=1, keepdims=True).astype(np.int64), axis=1)
    spread = np.maximum(pixels - lowest, 1)
    table = np.rint((histogram.cumsum(axis=1) - lowest) * (255 / spread))
    table = np.where(lowest == pixels, np.arange(256), table)
    return np.take_along_axis(table, flat.astype(np.int64), axis=1).astype(np.uint8).reshape(fields.shape)


MUD = (63, 42, 20)
WATER = (175, 238, 238)


@published(
    "speckle_noise",
    "extra",
    {
        32: [0.06, 0.1, 0.12, 0.16, 0.2],
        64: [0.15, 0.2, 0.25, 0.3, 0.35],
        224: [0.15, 0.2, 0.35, 0.45, 0.6],
    },
)
def speckle_noise(images: Images, streams: Streams, std: float) -> Images:
    """Multiply each value by normal noise of mean one and deviation ``std``."""
    levels = streams.normal("noise", *images.shape[1:])
    levels *= np.float32(std)
    levels += 1
    levels *= images
    return truncate(levels)


@published(
    "gaussian_blur",
    "extra",
    {
        32: [0.4, 0.6, 0.7, 0.8, 1],
        64: [0.5, 0.75, 1, 1.25, 1.5],
        224: [1, 2, 3, 4, 6],
    },
)
def gaussian_blur(images: Images, streams: Streams, sigma: float) -> Images:
    """Blur by a Gaussian of ``sigma`` pixels."""
    return truncate(gaussian(images.astype(np.float64), sigma))


@published(
    "spatter",
    "extra",
    {
        32: [
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ],
        64: [
            (0.62, 0.1, 0.7, 0.7, 0.6, False),
            (0.65, 0.1, 0.8, 0.7, 0.6, False),
            (0.65, 0.3, 1, 0.69, 0.6, False),
            (0.65, 0.1, 0.7, 0.68, 0.6, True),
            (0.65, 0.1, 0.5, 0.67, 0.6, True),
        ],
        224: [
            (0.65, 0.3, 4, 0.69, 0.6, False),
            (0.65, 0.3, 3, 0.68, 0.6, False),
            (0.65, 0.3, 2, 0.68, 0.5, False),
            (0.65, 0.3, 1, 0.65, 1.5, True),
            (0.67, 0.4, 1, 0.65, 1.5, True),
        ],
    },
)
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


@published(
    "saturate",
    "extra",
    {
        32: [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
        64: [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)],
        224: [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
    },
)
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
