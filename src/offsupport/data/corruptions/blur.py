"""Blur: defocus, glass, motion and zoom."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from offsupport.data.corruptions.catalogue import Images, corruption
from offsupport.data.corruptions.filters import correlate, gaussian, gaussian_kernel, truncate
from offsupport.data.corruptions.motion import motion
from offsupport.data.corruptions.seeding import Streams
from offsupport.data.corruptions.zoom import zoom_average


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


@corruption("glass_blur")
def glass_blur(images: Images, streams: Streams, sigma: float, reach: int, rounds: int) -> Images:
    """Blur, let each pixel take the value of a random neighbour within ``reach``, ``rounds`` times, and blur again.

    The published code means to swap the two pixels, but copies one way, since its pixels are views of one array.
    """
    count, side = images.shape[:2]
    softened = truncate(gaussian(images.astype(np.float64), sigma)).reshape(count * side * side, 3)
    moved = side - 2 * reach
    offsets = streams.integers("offsets", -reach, reach, rounds, 2, moved, moved).astype(np.int64)
    for turn in range(rounds):
        source = one_way_copies(side, reach, across=offsets[:, turn, 0], down=offsets[:, turn, 1])
        softened = softened.take(source, axis=0)
    return truncate(gaussian(softened.reshape(images.shape).astype(np.float64), sigma))


def one_way_copies(side: int, reach: int, across: NDArray[np.int64], down: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of the N*H*H pixels had its value before a scan of copies from the last pixel to the first.

    In the scan each pixel takes what its partner holds at that time. A partner later in the image was visited already
    and holds what it took itself, so the copies form chains, which are followed to their ends, doubling each time.

    Args:
        side: H.
        reach: Pixels this close to the border are not visited; the same below ``reach + 1`` from the top and left.
        across: (N, H - 2 reach, H - 2 reach) horizontal offsets of the partners, in the order of the scan.
        down: The vertical ones.
    """
    inner = slice(reach + 1, side - reach + 1)
    pixels = np.arange(len(across) * side * side)
    partner = pixels.reshape(-1, side, side).copy()
    partner[:, inner, inner] += (down * side + across)[:, ::-1, ::-1]
    partner = partner.ravel()
    visited = np.zeros((len(across), side, side), bool)
    visited[:, inner, inner] = True
    chained = visited.take(partner) & (partner > pixels)
    while chained.any():
        onward = partner.take(partner)
        chained, partner = chained & chained.take(partner), np.where(chained, onward, partner)
    return np.asarray(partner)


@corruption("motion_blur")
def motion_blur(images: Images, streams: Streams, radius: float, sigma: float) -> Images:
    """Smear along a direction up to 45 degrees from the horizontal."""
    angle = 90 * streams.uniform("angle", 1)[:, 0].astype(np.float64) - 45
    return motion(images, angle, radius, sigma)


@corruption("zoom_blur")
def zoom_blur(images: Images, streams: Streams, factors: tuple[float, ...]) -> Images:
    """Average the image and its zooms into the centre."""
    count, side = images.shape[:2]
    pixels = images.reshape(count, side * side, 3).transpose(1, 0, 2).reshape(side * side, count * 3)
    levels = truncate(zoom_average(side, factors) @ pixels.astype(np.float64))
    return np.ascontiguousarray(levels.reshape(side, side, count, 3).transpose(2, 0, 1, 3))
