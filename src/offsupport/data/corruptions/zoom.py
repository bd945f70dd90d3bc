"""Zooming into the centre of an image, as an interpolation that is computed once per size and factor."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


class Interpolation(NamedTuple):
    """Output i is (1 - fraction[i]) of input lower[i] and fraction[i] of input upper[i]."""

    lower: NDArray[np.int64]
    upper: NDArray[np.int64]
    fraction: NDArray[np.float64]


@functools.lru_cache(maxsize=64)
def zoom_axis(side: int, factor: float) -> Interpolation:
    """Return how one axis is zoomed: the centre is cut out, stretched end point to end point, and cut to size."""
    cut = math.ceil(side / factor)
    stretched = round(cut * factor)
    position = (np.arange(side) + (stretched - side) // 2) * (cut - 1) / (stretched - 1)
    lower = np.minimum(position.astype(np.int64), cut - 2)
    start = (side - cut) // 2
    return Interpolation(start + lower, start + lower + 1, position - lower)


def zoom(fields: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Zoom (N, H, H) fields into their centres by linear interpolation."""
    lower, upper, fraction = zoom_axis(fields.shape[1], factor)
    fields = fields[:, lower] * (1 - fraction)[:, None] + fields[:, upper] * fraction[:, None]
    return np.asarray(fields[:, :, lower] * (1 - fraction) + fields[:, :, upper] * fraction)


@functools.lru_cache(maxsize=8)
def zoom_average(side: int, factors: tuple[float, ...]) -> sparse.csr_array:
    """Return the (H*H, H*H) matrix that averages an image and its zooms.

    Neighbouring zooms read the same few pixels, so that a row has far fewer entries than the zooms have together.
    """
    total = sparse.csr_array(sparse.eye_array(side * side))
    for factor in factors:
        lower, upper, fraction = zoom_axis(side, factor)
        rows = np.arange(side)
        entries = (np.concatenate([1 - fraction, fraction]), (np.tile(rows, 2), np.concatenate([lower, upper])))
        axis = sparse.csr_array(entries, shape=(side, side))
        total = total + sparse.kron(axis, axis, format="csr")
    return sparse.csr_array(total / (len(factors) + 1))
