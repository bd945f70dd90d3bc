"""Motion blur along a direction per image, as ImageMagick computes it."""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from offsupport.data.corruptions.catalogue import Images

SMALLEST_WEIGHT = 1e-6
"""Weights below this change no 8-bit value that is not at the very edge of rounding."""


def motion_weights(radius: float, sigma: float) -> NDArray[np.float64]:
    """Return the weights along the path: one side of a Gaussian, 2 ceil(radius) + 1 long, less the vanishing end."""
    weights = np.exp(-0.5 * (np.arange(2 * math.ceil(radius) + 1) / sigma) ** 2)
    weights /= weights.sum()
    return np.asarray(weights[weights > SMALLEST_WEIGHT])


def motion(images: Images, angle: NDArray[np.float64], radius: float, sigma: float) -> Images:
    """Blur (N, H, H, C) images from each pixel along ``angle`` (N,), in degrees with y pointing down.

    Outside the image the border pixels repeat. Each step of the path is one shift per image: a window of the padded
    image, copied for the whole batch at once.
    """
    weights = motion_weights(radius, sigma)
    steps = np.arange(len(weights))
    turn = np.deg2rad(angle)[:, None]
    across = np.ceil(steps * np.cos(turn) - 0.5).astype(np.int64)  # (N, steps)
    down = np.ceil(steps * np.sin(turn) - 0.5).astype(np.int64)
    side, reach = images.shape[1], len(weights)
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    padded = np.pad(planes, [(0, 0), (0, 0), (reach, reach), (reach, reach)], mode="edge")
    windows = sliding_window_view(padded, (side, side), axis=(2, 3))
    every = np.arange(len(images))
    levels = np.full(planes.shape, 0.5)  # rounds to nearest once it is cut off
    term = np.empty(planes.shape)
    for step, weight in enumerate(weights):
        shifted = windows[every, :, reach + down[:, step], reach + across[:, step]]
        levels += np.multiply(shifted, weight, out=term)
    return np.ascontiguousarray(levels.astype(np.uint8).transpose(0, 2, 3, 1))
