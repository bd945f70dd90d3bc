"""Blur: defocus, glass, motion and zoom."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from offsupport.data.corruptions.catalogue import Images, corruption
from offsupport.data.corruptions.filters import correlate, gaussian_kernel, truncate
from offsupport.data.corruptions.seeding import Streams


@corruption("defocus_blur")
def defocus_blur(images: Images, streams: Streams, radius: float, alias: float) -> Images:
    """Average over a disc of ``radius`` pixels whose edge is softened by ``alias``."""
    return truncate(correlate(images.astype(np.float64), disc(radius, alias), "reflect"))


@functools.lru_cache(maxsize=32)
def disc(radius: float, alias: float) -> NDArray[np.float64]:
    """Return the weights of a softened disc, without the empty border of its grid.

    The softening reflects at the edge of the grid, which the discs of radius 8 and 10 touch: their weights sum to a
    little more than one, as published.
    """
    reach, soft = (8, 1) if radius <= 8 else (int(radius), 2)
    grid = np.arange(-reach, reach + 1)
    indicator = (grid[:, None] ** 2 + grid[None, :] ** 2 <= radius**2).astype(np.float64)
    kernel = gaussian_kernel(alias, soft)
    weights = (indicator / indicator.sum())[None]
    weights = correlate(correlate(weights, kernel[:, None], "reflect"), kernel[None, :], "reflect")[0]
    used = slice(empty := int(np.flatnonzero(weights.any(axis=0))[0]), len(grid) - empty)
    return np.asarray(weights[used, used])
