"""The names of the corruptions and the functions behind them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offsupport.core.errors import ConfigError, InputError, nearest
from offsupport.core.registry import Registry
from offsupport.data.corruptions.seeding import Streams

Images = NDArray[np.uint8]
"""(N, H, W, 3) images of one square size."""

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""Corruptions by kind; "extra" is for validation and takes no part in published averages."""

EXTRA = GROUPS["extra"]
STANDARD = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)
ALL = STANDARD + EXTRA


CORRUPTIONS: Registry[Callable[..., Images]] = Registry("corruption")
"""Functions that take images, their random streams and the constants of one severity, and return new images."""

corruption = CORRUPTIONS.register


# The published severity constants (Hendrycks & Dietterich, ICLR 2019), one set per image size.
#
# Each entry is a row of severities; each severity is the tuple of arguments its corruption takes. Lengths are in
# pixels. Constants that do not rise with severity (glass_blur, snow, elastic_transform, saturate, spatter) are as
# published.


Row = list[tuple[Any, ...]]


def _singles(*values: float) -> Row:
    return [(value,) for value in values]


def _zooms(*steps_and_counts: tuple[float, int]) -> Row:
    """Zoom factors 1, 1 + step, ...; the counts are those that floating-point ranges gave the published files."""
    return [(tuple(1 + step * k for k in range(count)),) for step, count in steps_and_counts]


# Impulse noise beyond severity 5 is not published. Its share of changed values continues the growing steps of the first
# five (.01 .01 .02 .02, then .03 .05 .06 .07 .08), each severity 1.3 to 1.5 times the one before.
_IMPULSE_32 = _singles(0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15, 0.21, 0.28, 0.36)

_SMALL_ZOOMS = _zooms((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26))

_PIXELS_32: dict[str, Row] = {
    "gaussian_noise": _singles(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _singles(500, 250, 100, 75, 50),
    "impulse_noise": _IMPULSE_32,
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    "glass_blur": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    "zoom_blur": _SMALL_ZOOMS,
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    "frost": [(1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)],
    "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    "brightness": _singles(0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _singles(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": [(0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)],
    "pixelate": _singles(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _singles(80, 65, 58, 50, 40),
    "speckle_noise": _singles(0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": _singles(0.4, 0.6, 0.7, 0.8, 1),
    "spatter": [
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
}

_PIXELS_64: dict[str, Row] = {
    "gaussian_noise": _singles(0.04, 0.08, 0.12, 0.15, 0.18),
    "shot_noise": _singles(250, 100, 50, 30, 15),
    "impulse_noise": _singles(0.01, 0.02, 0.05, 0.08, 0.14),
    "defocus_blur": [(0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)],
    "glass_blur": [(0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)],
    "motion_blur": [(10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)],
    "zoom_blur": _SMALL_ZOOMS,
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ],
    "frost": [(1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)],
    "fog": [(0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)],
    "brightness": _singles(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _singles(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": [(0, 0, 5.12), (3.2, 19.2, 3.84), (6.4, 5.12, 3.84), (6.4, 1.92, 1.92), (10.24, 1.92, 1.28)],
    "pixelate": _singles(0.9, 0.8, 0.7, 0.6, 0.5),
    "jpeg_compression": _singles(65, 58, 50, 40, 25),
    "speckle_noise": _singles(0.15, 0.2, 0.25, 0.3, 0.35),
    "gaussian_blur": _singles(0.5, 0.75, 1, 1.25, 1.5),
    "spatter": [
        (0.62, 0.1, 0.7, 0.7, 0.6, False),
        (0.65, 0.1, 0.8, 0.7, 0.6, False),
        (0.65, 0.3, 1, 0.69, 0.6, False),
        (0.65, 0.1, 0.7, 0.68, 0.6, True),
        (0.65, 0.1, 0.5, 0.67, 0.6, True),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)],
}

_PIXELS_224: dict[str, Row] = {
    "gaussian_noise": _singles(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _singles(60, 25, 12, 5, 3),
    "impulse_noise": _singles(0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    "glass_blur": [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    "motion_blur": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    "zoom_blur": _zooms((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
    "snow": [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
    "frost": [(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
    "fog": [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
    "brightness": _singles(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _singles(0.4, 0.3, 0.2, 0.1, 0.05),
    # Multiples of 244, a slip for 224 that the released files carry.
    "elastic_transform": [
        (488, 170.8, 24.4),
        (488, 19.52, 48.8),
        (12.2, 2.44, 4.88),
        (17.08, 2.44, 4.88),
        (29.28, 2.44, 4.88),
    ],
    "pixelate": _singles(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _singles(25, 18, 15, 10, 7),
    "speckle_noise": _singles(0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": _singles(1, 2, 3, 4, 6),
    "spatter": [
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
}

SETS: dict[int, dict[str, Row]] = {32: _PIXELS_32, 64: _PIXELS_64, 224: _PIXELS_224}
"""Parameter sets by the side length they were published for."""


def parameter_set(side: int) -> int:
    """Return the side length whose constants images of ``side`` pixels take: the nearest one by ratio.

    Example:
        >>> [parameter_set(side) for side in (32, 40, 96, 224, 512)]
        [32, 32, 64, 224, 224]
    """
    return min(SETS, key=lambda known: abs(math.log(side / known)))


def max_severity(name: str, side: int = 32) -> int:
    """Return the highest severity of a corruption for images of ``side`` pixels."""
    rows = SETS[parameter_set(side)]
    if name not in rows:
        raise ConfigError(f"Unknown corruption {name!r}.", nearest(name, rows))
    return len(rows[name])


def parameters(name: str, side: int, severity: int) -> tuple[Any, ...]:
    """Return the constants of a corruption at a severity for images of ``side`` pixels."""
    highest = max_severity(name, side)
    if not isinstance(severity, (int, np.integer)) or not 1 <= severity <= highest:
        longer = [f"{known} px: 1-{len(rows[name])}" for known, rows in SETS.items() if len(rows[name]) > highest]
        also = f" ({'; '.join(longer)})" if longer else ""
        raise ConfigError(
            f"Severity {severity!r} of {name} does not exist for images of {side} px.",
            f"Choose 1-{highest}{also}.",
        )
    return SETS[parameter_set(side)][name][severity - 1]


# The one way in: check the input, corrupt it piece by piece, keep a block of it if asked.


MIN_SIDE = 8

KEPT_BYTES = 1 << 24

PIXELS_AT_ONCE = 1 << 16
"""How much is worked on at a time: little enough to stay in the processor's cache, enough to keep Python out of it."""


def corrupt(
    images: Images,
    name: str,
    severity: int = 5,
    seed: int = 0,
    *,
    block: int | None = None,
    index: ArrayLike | None = None,
    frost_dir: Path | str | None = None,
) -> Images:
    """Return corrupted copies of ``images``.

    The pixels of an image depend on the corruption, the severity, the seed, the id of the image and its own content;
    not on the batch it is in, its place there, or what was drawn before.

    Args:
        images: (N, H, H, 3) 8-bit RGB images. Sides of 32, 64 and 224 pixels have published constants; other sides take
            those of the nearest one by ratio.
        name: One of ``offsupport.data.corruptions.ALL``.
        severity: 1 to 5; impulse_noise goes to 10 with the constants for 32 pixels.
        seed: Another seed gives other noise.
        block: Side of a square that keeps the corruption, while the rest of the image stays clean. Its random place
            depends on the seed and the id of the image alone: it is the same for all corruptions and severities.
        index: Ids of the images; 0, 1, ... unless given.
        frost_dir: A folder with the official frost textures, used by "frost" instead of synthesised ones.

    Example:
        >>> images = np.full((2, 32, 32, 3), 128, np.uint8)
        >>> corrupt(images, "gaussian_noise", severity=3).shape
        (2, 32, 32, 3)
    """
    apply = CORRUPTIONS[name]
    _check(images, block)
    side = images.shape[1]
    constants = parameters(name, side, severity)
    ids = _ids(index, len(images))
    if name == "frost":
        apply = functools.partial(apply, frost_dir=frost_dir)
    streams = Streams(name, int(severity), int(seed), index=ids)
    _keep_freed_memory()
    out = np.empty(images.shape, np.uint8)
    step = max(1, PIXELS_AT_ONCE // side**2)
    for start in range(0, len(images), step):
        rows = slice(start, start + step)
        out[rows] = apply(images[rows], streams.part(rows), *constants)
    return out if block is None else np.where(_block_mask(side, block, seed, ids), out, images)


def _keep_freed_memory() -> None:
    """Have the C library keep the memory of one piece for the next.

    glibc returns freed blocks to the system until it has seen a larger one freed; for temporary arrays of this size the
    page faults that follow take as long as the arithmetic. The block here is never touched, so it costs microseconds.
    """
    np.empty(KEPT_BYTES, np.uint8)


def _block_mask(side: int, block: int, seed: int, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return (N, side, side, 1), true inside one square per image."""
    place = Streams("block", int(seed), index=ids).uniform("place", 2)
    corner = (place * (side - block + 1)).astype(np.int64)[..., None]  # (N, 2, 1): top and left
    inside = (np.arange(side) >= corner) & (np.arange(side) < corner + block)
    return (inside[:, 0, :, None] & inside[:, 1, None, :])[..., None]


def _check(images: Images, block: int | None) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = getattr(images, "dtype", type(images).__name__)
        raise InputError(f"Images to corrupt are {kind}.", "Give a uint8 numpy array of shape (N, H, W, 3).")
    if images.ndim != 4 or images.shape[3] != 3 or images.shape[1] != images.shape[2]:
        raise InputError(f"Images to corrupt have shape {images.shape}.", "Give square RGB images, (N, H, H, 3).")
    side = images.shape[1]
    if side < MIN_SIDE:
        raise InputError(f"Images to corrupt are {side} px wide.", f"Give images of at least {MIN_SIDE} px.")
    if block is not None and block not in range(1, side + 1):
        raise ConfigError(f"A block of {block!r} px does not fit images of {side} px.", f"Choose 1-{side}.")


def _ids(index: ArrayLike | None, count: int) -> NDArray[np.int64]:
    if index is None:
        return np.arange(count)
    ids = np.asarray(index)
    if ids.shape != (count,) or (count and ids.dtype.kind not in "iu"):
        raise InputError(
            f"The index of {count} images has shape {ids.shape} and type {ids.dtype}.",
            f"Give {count} integers, one id per image.",
        )
    return ids.astype(np.int64)
