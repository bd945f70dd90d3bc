"""Blur: defocus, glass, motion and zoom."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import sparse

from offsupport.data.corruptions.filters import correlate, gaussian, gaussian_kernel, truncate
from offsupport.data.corruptions.registry import Images, published
from offsupport.data.corruptions.seeding import Streams

# Motion blur along a direction per image, as ImageMagick computes it.


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
    radians = np.deg2rad(angle)[:, None]
    across = np.ceil(steps * np.cos(radians) - 0.5).astype(np.int64)  # (N, steps)
    down = np.ceil(steps * np.sin(radians) - 0.5).astype(np.int64)
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


# Zooming into the centre of an image, as an interpolation that is computed once per size and factor.


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


@published(
    "defocus_blur",
    "blur",
    {
        32: [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
        64: [(0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)],
        224: [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    },
)
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


@published(
    "glass_blur",
    "blur",
    {
        32: [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
        64: [(0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)],
        224: [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    },
)
def glass_blur(images: Images, streams: Streams, sigma: float, reach: int, rounds: int) -> Images:
    """Blur, let each pixel take the value of a random neighbour within ``reach``, ``rounds`` times, and blur again.

    The published code means to swap the two pixels, but copies one way, since its pixels are views of one array.
    """
    count, side = images.shape[:2]
    softened = truncate(gaussian(images.astype(np.float64), sigma)).reshape(count * side * side, 3)
    moved = side - 2 * reach
    offsets = streams.integers("offsets", -reach, reach, rounds, 2, moved, moved).astype(np.int64)
    for number in range(rounds):
        source = one_way_copies(side, reach, across=offsets[:, number, 0], down=offsets[:, number, 1])
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


@published(
    "motion_blur",
    "blur",
    {
        32: [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
        64: [(10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)],
        224: [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    },
)
def motion_blur(images: Images, streams: Streams, radius: float, sigma: float) -> Images:
    """Smear along a direction up to 45 degrees from the horizontal."""
    angle = 90 * streams.uniform("angle", 1)[:, 0].astype(np.float64) - 45
    return motion(images, angle, radius, sigma)


def _zooms(*steps_and_counts: tuple[float, int]) -> list[tuple[tuple[float, ...]]]:
    """Zoom factors 1, 1 + step, ...; the counts are those that floating-point ranges gave the published files."""
    return [(tuple(1 + step * k for k in range(count)),) for step, count in steps_and_counts]


_SMALL_ZOOMS = _zooms((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26))


@published(
    "zoom_blur",
    "blur",
    {
        32: _SMALL_ZOOMS,
        64: _SMALL_ZOOMS,
        224: _zooms((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
    },
)
def zoom_blur(images: Images, streams: Streams, factors: tuple[float, ...]) -> Images:
    """Average the image and its zooms into the centre."""
    count, side = images.shape[:2]
    pixels = images.reshape(count, side * side, 3).transpose(1, 0, 2).reshape(side * side, count * 3)
    levels = truncate(zoom_average(side, factors) @ pixels.astype(np.float64))
    return np.ascontiguousarray(levels.reshape(side, side, count, 3).transpose(2, 0, 1, 3))
