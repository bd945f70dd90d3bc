"""Digital: contrast, elastic transform, pixelation and JPEG compression."""

from __future__ import annotations

import functools
import io
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter1d

from offsupport.data.corruptions.filters import truncate
from offsupport.data.corruptions.registry import Images, published
from offsupport.data.corruptions.seeding import Streams

Border = Literal["reflect", "symmetric"]
"""What lies outside the image: its mirror about the border pixel or about its outer edge, named as in ``np.pad``."""

FourChannels = NDArray[np.float32]
"""(N, H, H, 4) levels of red, green, blue and an empty channel."""


@published(
    "contrast",
    "digital",
    {
        32: [0.75, 0.5, 0.4, 0.3, 0.15],
        64: [0.4, 0.3, 0.2, 0.1, 0.05],
        224: [0.4, 0.3, 0.2, 0.1, 0.05],
    },
)
def contrast(images: Images, streams: Streams, factor: float) -> Images:
    """Pull each channel towards its mean over the image."""
    # Sums of integers are exact, so that the mean does not depend on the order of summation.
    total = images.sum(axis=1, dtype=np.int64).sum(axis=1)
    mean = total[:, None, None] / (images.shape[1] * images.shape[2])
    levels = images * factor
    levels += mean * (1 - factor)
    return truncate(levels)


@published(
    "elastic_transform",
    "digital",
    {
        32: [(0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)],
        64: [(0, 0, 5.12), (3.2, 19.2, 3.84), (6.4, 5.12, 3.84), (6.4, 1.92, 1.92), (10.24, 1.92, 1.28)],
        # Multiples of 244, a slip for 224 that the released files carry.
        224: [(488, 170.8, 24.4), (488, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88)],
    },
)
def elastic_transform(images: Images, streams: Streams, alpha: float, sigma: float, jitter: float) -> Images:
    """Move three points of the image at random, then every pixel by a smooth random field (Simard et al., 2003).

    Args:
        images: Images.
        streams: Their random streams.
        alpha: Size of the field.
        sigma: Smoothness of the field; at zero there is none.
        jitter: How far each coordinate of the three points moves at most.
    """
    side = images.shape[1]
    moves = jitter * (2 * streams.uniform("points", 3, 2).astype(np.float64) - 1)
    levels = np.zeros((*images.shape[:3], 4), np.float32)
    levels[..., :3] = images
    levels = sample(levels, *affine_source(side, moves), border="reflect")
    if alpha:
        smooth = smoothing(side, sigma)
        field = 2 * streams.uniform("field", 2, side, side).astype(np.float64) - 1
        across, down = np.moveaxis(alpha * (smooth @ field @ smooth.T), 1, 0)
        grid = np.arange(side, dtype=np.float64)
        levels = sample(levels, grid[:, None] + down, grid + across, border="symmetric")
    return truncate(levels)[..., :3]


def affine_source(side: int, moves: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rows and columns, each (N, H, H), that the pixels of an affine warp come from.

    The warp takes three corners of a centred square, right bottom, right top and left top, to where ``moves``
    (N, 3, [x, y]) puts them; what it does to a pixel p is p + slope_x (x - x_1) + slope_y (y - y_1) + move_1.
    """
    centre, reach = side // 2, side // 3
    slope_x = (moves[:, 1] - moves[:, 2]) / (2 * reach)
    slope_y = (moves[:, 0] - moves[:, 1]) / (2 * reach)
    a, c = (1 + slope_x[:, 0])[:, None, None], slope_x[:, 1][:, None, None]
    b, d = slope_y[:, 0][:, None, None], (1 + slope_y[:, 1])[:, None, None]
    first = np.arange(side, dtype=np.float64) - (centre + reach)
    x = first - moves[:, 0, 0][:, None, None]  # relative to where the first point went
    y = first[:, None] - moves[:, 0, 1][:, None, None]
    determinant = a * d - b * c
    back_x, back_y = (d * x - b * y) / determinant, (a * y - c * x) / determinant
    return back_y + centre + reach, back_x + centre + reach


@functools.lru_cache(maxsize=32)
def smoothing(side: int, sigma: float) -> NDArray[np.float64]:
    """Return the (H, H) matrix of a Gaussian filter up to three sigma with half-sample reflection at the ends."""
    return np.asarray(gaussian_filter1d(np.eye(side), sigma, axis=0, mode="reflect", truncate=3.0))


def sample(
    levels: FourChannels, rows: NDArray[np.float64], columns: NDArray[np.float64], border: Border
) -> FourChannels:
    """Return (N, H, H, 4) images at (N, H, H) real positions by bilinear interpolation.

    Four channels of four bytes move as one number of sixteen, several times faster than three at a time.
    """
    count, side = levels.shape[:2]
    pixels = levels.view(np.complex128).ravel()
    first = (np.arange(count) * side * side)[:, None, None]
    top, bottom, below = _neighbours(rows, side, border)
    left, right, beside = _neighbours(columns, side, border)
    top, bottom = first + top * side, first + bottom * side

    def between(row: NDArray[np.int64]) -> FourChannels:
        near, far = (pixels.take(row + column).view(np.float32).reshape(levels.shape) for column in (left, right))
        far -= near
        far *= beside
        near += far
        return near

    upper, lower = between(top), between(bottom)
    lower -= upper
    lower *= below
    upper += lower
    return upper


def _neighbours(
    position: NDArray[np.float64], side: int, border: Border
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the two pixels around each position, folded back into the image, and the weight of the second."""
    floor = np.floor(position)
    reach = int(max(-floor.min(initial=0), floor.max(initial=0) + 2 - side, 0))
    folded = np.pad(np.arange(side), reach, mode=border)
    before = floor.astype(np.int64) + reach
    weight = (position - floor).astype(np.float32)
    return folded.take(before), folded.take(before + 1), np.repeat(weight[..., None], 4, axis=3)


@published(
    "pixelate",
    "digital",
    {
        32: [0.95, 0.9, 0.85, 0.75, 0.65],
        64: [0.9, 0.8, 0.7, 0.6, 0.5],
        224: [0.6, 0.5, 0.4, 0.3, 0.25],
    },
)
def pixelate(images: Images, streams: Streams, share: float) -> Images:
    """Average down to a ``share`` of the side and back up."""
    side = images.shape[1]
    small = (int(side * share),) * 2
    out = np.empty(images.shape, np.uint8)
    for row, pixels in enumerate(images):
        reduced = Image.fromarray(pixels).resize(small, Image.Resampling.BOX)
        out[row] = np.asarray(reduced.resize((side, side), Image.Resampling.BOX))
    return out


@published(
    "jpeg_compression",
    "digital",
    {
        32: [80, 65, 58, 50, 40],
        64: [65, 58, 50, 40, 25],
        224: [25, 18, 15, 10, 7],
    },
)
def jpeg_compression(images: Images, streams: Streams, quality: int) -> Images:
    """Encode and decode as JPEG."""
    out = np.empty(images.shape, np.uint8)
    # Pillow knows no batches; encoding takes far longer than the loop.
    for row, pixels in enumerate(images):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        out[row] = np.asarray(Image.open(file))
    return out
