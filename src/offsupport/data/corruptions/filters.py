"""Building blocks of several corruptions. All of them treat each image alone, whatever the batch."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from offsupport.data.corruptions.registry import Images

Levels = NDArray[np.float64]
"""Pixel values from 0 to 255, before they become integers again."""

ROUNDING = 2.0**-10
"""A sum of weights is one only up to rounding; this part of a level keeps flat areas from losing a whole one."""


MANY_WEIGHTS = 64
"""Above so many weights a Fourier transform is faster."""


def truncate(levels: NDArray[np.floating[Any]]) -> Images:
    """Return levels as 8-bit values, cut off towards zero as the published files are. Overwrites ``levels``."""
    levels += ROUNDING
    np.clip(levels, 0, 255, out=levels)
    return levels.astype(np.uint8)


def gaussian_kernel(sigma: float, radius: int) -> NDArray[np.float64]:
    """Return the 2 radius + 1 weights of a sampled Gaussian; they sum to one."""
    if radius == 0:
        return np.ones(1)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return np.asarray(weights / weights.sum())


def gaussian(levels: Levels, sigma: float) -> Levels:
    """Blur (N, H, W, ...) along H and W up to four sigma; the border pixels repeat outside."""
    kernel = gaussian_kernel(sigma, int(4 * sigma + 0.5))
    return correlate(correlate(levels, kernel[:, None], "edge"), kernel[None, :], "edge")


def correlate(levels: Levels, kernel: NDArray[np.float64], border: Literal["edge", "reflect"]) -> Levels:
    """Correlate (N, H, W, ...) with a small odd-sided kernel over H and W.

    One multiply-add over the whole batch per weight: for small kernels this is faster than a general filter. Wide discs
    of large images go through a Fourier transform instead, image by image. A pixel comes out the same to the last bit
    in any batch.

    Args:
        levels: Images or fields.
        kernel: Weights; zeros cost nothing.
        border: "edge" repeats the border pixel, "reflect" mirrors about it without repeating it.
    """
    if kernel.size == 1:
        return np.asarray(levels * kernel[0, 0])
    height, width = levels.shape[1:3]
    rows, columns = kernel.shape[0] // 2, kernel.shape[1] // 2
    padded = np.pad(levels, [(0, 0), (rows, rows), (columns, columns)] + [(0, 0)] * (levels.ndim - 3), mode=border)
    if np.count_nonzero(kernel) > MANY_WEIGHTS:
        return np.stack([_by_transform(image, kernel)[:height, :width] for image in padded])
    out, term = np.zeros(levels.shape), np.empty(levels.shape)
    for row, column in np.argwhere(kernel):
        shifted = padded[:, row : row + height, column : column + width]
        out += np.multiply(shifted, kernel[row, column], out=term)
    return out


def _by_transform(image: Levels, kernel: NDArray[np.float64]) -> Levels:
    """Correlate one padded image (H, W, ...); rows and columns that the border does not reach come first."""
    sides = [fft.next_fast_len(side, real=True) for side in image.shape[:2]]
    flat = image.reshape(*image.shape[:2], -1).transpose(2, 0, 1)
    weights = np.conj(fft.rfft2(kernel, sides))
    found = fft.irfft2(fft.rfft2(flat, sides) * weights, sides)
    return np.asarray(found.transpose(1, 2, 0).reshape(*sides, *image.shape[2:]))
