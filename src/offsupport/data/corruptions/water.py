"""Drops of water with bright rims: edges of the drops, distance to them, and some embossing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, label

from offsupport.data.corruptions.catalogue import Images
from offsupport.data.corruptions.filters import correlate

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
