"""Plasma fractals: the shape of fog, and the large patches of frost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def draws_needed(size: int) -> int:
    """Return how many random numbers a plasma of ``size`` x ``size`` takes: one per point but the first."""
    return size * size - 1


def plasma(uniform: NDArray[np.floating], decay: float) -> NDArray[np.float64]:
    """Return (N, size, size) plasma maps in [0, 1] by the diamond-square rule on a torus.

    Each level halves the step: centres of squares first, then the two kinds of edge points between them, each the mean
    of its four neighbours plus noise of half-range ``wibble`` squared, where wibble starts at 100.

    Args:
        uniform: (N, size * size - 1) numbers in [0, 1), used level by level.
        decay: What wibble is divided by from level to level; small values give rough maps.
    """
    size = round((uniform.shape[1] + 1) ** 0.5)
    heights = np.zeros((len(uniform), size, size))
    step, wibble, used = size, 100.0, 0
    while step >= 2:
        half, count = step // 2, (size // step) ** 2
        level = uniform[:, used : used + 3 * count].reshape(len(uniform), 3, size // step, size // step)
        noise = wibble * (2 * level.astype(np.float64) - 1) * wibble
        corner = heights[:, ::step, ::step]
        below, right = np.roll(corner, -1, axis=1), np.roll(corner, -1, axis=2)
        centre = (corner + below + right + np.roll(right, -1, axis=1)) / 4 + noise[:, 0]
        heights[:, half::step, half::step] = centre
        heights[:, ::step, half::step] = (centre + np.roll(centre, 1, axis=1) + corner + right) / 4 + noise[:, 1]
        heights[:, half::step, ::step] = (centre + np.roll(centre, 1, axis=2) + corner + below) / 4 + noise[:, 2]
        step, wibble, used = half, wibble / decay, used + 3 * count
    heights -= heights.min(axis=(1, 2), keepdims=True)
    return np.asarray(heights / heights.max(axis=(1, 2), keepdims=True))
