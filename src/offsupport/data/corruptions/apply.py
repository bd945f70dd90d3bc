"""The one way in: check the input, corrupt it piece by piece, keep a block of it if asked."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offsupport.core.errors import ConfigError, InputError
from offsupport.data.corruptions.catalogue import CORRUPTIONS, Images
from offsupport.data.corruptions.parameters import parameters
from offsupport.data.corruptions.seeding import Streams

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
