"""Corruptions by name: how one is registered, the constants of its severities, and the one way to apply it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offsupport.core.errors import ConfigError, InputError
from offsupport.core.registry import Registry, same_definition
from offsupport.data.corruptions.seeding import Streams

Images = NDArray[np.uint8]
"""(N, H, W, 3) images of one square size."""

Function = Callable[..., Images]
"""Takes images, their random streams and the constants of one severity, and returns new images."""
F = TypeVar("F", bound=Function)

Row = Sequence[Any]
"""The constants of each severity, from 1 up: a tuple of arguments, or the one argument itself."""

GROUP_ORDER = ("noise", "blur", "weather", "digital", "extra")
"""The published groups, in the order of published tables; files may be imported in any other."""
SIDES = (32, 64, 224)
"""The sides of images that have published constants."""


@dataclass(frozen=True)
class Corruption:
    """A function and what each of its severities stands for.

    Args:
        name: What it is called.
        group: Its kind: a published one (``noise``, ``blur``, ...), or whatever its author calls it.
        function: Makes the images.
        rows: The arguments of each severity, by the side of images they are meant for.
        takes_frost_dir: Whether the function takes a folder of frost textures, by that name.
    """

    name: str
    group: str
    function: Function
    rows: Mapping[int, Sequence[tuple[Any, ...]]]
    takes_frost_dir: bool = False

    @property
    def published(self) -> bool:
        """Whether it is one of the nineteen of Hendrycks & Dietterich; others take no part in their lists."""
        return self.group in GROUP_ORDER

    @property
    def about(self) -> str:
        """The first line of the function's description."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    @property
    def most_severities(self) -> int:
        """How many severities it has at the size that has most of them."""
        return max(map(len, self.rows.values()))

    def severities(self, side: int) -> Sequence[tuple[Any, ...]]:
        """Return the arguments of every severity for images of ``side`` pixels."""
        return self.rows[nearest_side(side, self.rows)]

    def arguments(self, side: int, severity: int) -> tuple[Any, ...]:
        """Return the arguments of one severity for images of ``side`` pixels; one that does not exist is an error."""
        rows = self.severities(side)
        if not isinstance(severity, (int, np.integer)) or not 1 <= severity <= len(rows):
            longer = [f"{known} px: 1-{len(more)}" for known, more in self.rows.items() if len(more) > len(rows)]
            also = f" ({'; '.join(longer)})" if longer else ""
            raise ConfigError(
                f"Severity {severity!r} of {self.name} does not exist for images of {side} px.",
                f"Choose 1-{len(rows)}{also}.",
            )
        return rows[severity - 1]


CORRUPTIONS: Registry[Corruption] = Registry("corruption", group="offsupport.corruptions")
"""Every corruption by name, those of installed packages included."""


def register_corruption(name: str, severities: Row | Mapping[int, Row], *, group: str = "other") -> Callable[[F], F]:
    """Return a decorator that makes a function a corruption: by its name it works wherever the published ones do.

    The function gets uint8 images (N, H, H, 3) that it must not change, their random streams, and the constants of the
    severity; it returns new uint8 images of the same shape. Each image counts alone: nothing may depend on the others
    in the batch, so random numbers come from the streams, which draw for each image by its own id:
    ``rng.normal("grain", 32, 32)`` is an array (N, 32, 32), the same for the same image in any batch. Draws of one
    name are the same each time; give each draw a name of its own. A function without chance leaves them alone.

    Args:
        name: What it is called: letters, digits and ``_``.
        severities: The constants of severity 1, 2, ...: a number each, or a tuple of arguments each. A dictionary has
            such a list for each side of images it was made for; other sides take the nearest by ratio. With five
            severities it fits the layouts of ``offsupport data make``.
        group: Under which heading ``offsupport list corruptions`` shows it.

    Example:
        >>> @register_corruption("fade_out", severities=[0.1, 0.2, 0.3, 0.4, 0.5])
        ... def fade_out(images, rng, share):
        ...     return (images * (1 - share)).astype(np.uint8)
        >>> int(corrupt(np.full((1, 32, 32, 3), 100, np.uint8), "fade_out", severity=5)[0, 0, 0, 0])
        50
    """
    if group in GROUP_ORDER:
        raise ConfigError(f"The group {group!r} is that of published corruptions.", "Choose another name for yours.")
    by_side = severities if isinstance(severities, Mapping) else dict.fromkeys(SIDES, severities)
    return _register(name, group, by_side)


def published(
    name: str, group: str, severities: Mapping[int, Row], *, takes_frost_dir: bool = False
) -> Callable[[F], F]:
    """Register a corruption of Hendrycks & Dietterich (ICLR 2019) with its constants for each of :data:`SIDES`.

    Lengths among them are in pixels. Constants that do not rise with severity (glass_blur, snow, elastic_transform,
    saturate, spatter) are as published.
    """
    return _register(name, group, severities, takes_frost_dir=takes_frost_dir)


def _register(
    name: str, group: str, severities: Mapping[int, Row], *, takes_frost_dir: bool = False
) -> Callable[[F], F]:
    # Files and domains are called after it ("fog.npy", "fog/5"), and lists of names have commas between.
    if not re.fullmatch(r"\w+", name, re.ASCII):
        raise ConfigError(f"{name!r} cannot be the name of a corruption.", "Use letters, digits and _ alone.")
    rows = {
        side: tuple(each if isinstance(each, tuple) else (each,) for each in row) for side, row in severities.items()
    }
    if not rows or not all(rows.values()):
        raise ConfigError(f"The corruption {name!r} has no severities.", "Give the constants of at least one.")

    def store(function: F) -> F:
        earlier = CORRUPTIONS.registered().get(name)
        again = earlier is not None and same_definition(earlier.function, function)
        CORRUPTIONS.register(name, replace=again)(Corruption(name, group, function, rows, takes_frost_dir))
        return function

    return store


def by_group() -> dict[str, tuple[str, ...]]:
    """Return the names of all corruptions by group: the published groups first, then those of other people."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(GROUP_ORDER, ())
    for name in CORRUPTIONS:
        group = CORRUPTIONS[name].group
        found[group] = (*found.get(group, ()), name)
    return found


def list_corruptions() -> dict[str, str]:
    """Return the names of the known corruptions, those of installed packages included, and the group of each."""
    return {name: group for group, names in by_group().items() for name in names}


def nearest_side(side: int, known: Mapping[int, Any]) -> int:
    """Return the known side that is nearest by ratio."""
    return min(known, key=lambda other: abs(math.log(side / other)))


def parameter_set(side: int) -> int:
    """Return the side length whose published constants images of ``side`` pixels take: the nearest one by ratio.

    Example:
        >>> [parameter_set(side) for side in (32, 40, 96, 224, 512)]
        [32, 32, 64, 224, 224]
    """
    return nearest_side(side, dict.fromkeys(SIDES))


def max_severity(name: str, side: int = 32) -> int:
    """Return the highest severity of a corruption for images of ``side`` pixels."""
    return len(CORRUPTIONS[name].severities(side))


def parameters(name: str, side: int, severity: int) -> tuple[Any, ...]:
    """Return the constants of a corruption at a severity for images of ``side`` pixels."""
    return CORRUPTIONS[name].arguments(side, severity)


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
        name: One of :func:`offsupport.data.list_corruptions`.
        severity: 1 to 5; impulse_noise goes to 10 with the constants for 32 pixels, others as registered.
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
    found = CORRUPTIONS[name]
    _check(images, block)
    side = images.shape[1]
    constants = found.arguments(side, severity)
    ids = _ids(index, len(images))
    apply = functools.partial(found.function, frost_dir=frost_dir) if found.takes_frost_dir else found.function
    streams = Streams(name, int(severity), int(seed), index=ids)
    _keep_freed_memory()
    out = np.empty(images.shape, np.uint8)
    step = max(1, PIXELS_AT_ONCE // side**2)
    for start in range(0, len(images), step):
        rows = slice(start, start + step)
        piece = images[rows]
        piece.flags.writeable = False  # of this view: whoever writes into the images they were given finds out
        out[rows] = _made(name, piece, apply(piece, streams.part(rows), *constants))
    # Corrupted whole and cut out after: what is inside a block is what the whole image would have there.
    return out if block is None else np.where(_block_mask(side, block, seed, ids), out, images)


def _made(name: str, piece: Images, out: Images) -> Images:
    """Return what a function made; numbers of another kind would be stored as 8-bit ones without a word."""
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8 or out.shape != piece.shape:
        got = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise InputError(
            f"The corruption {name!r} made {got} from uint8 images of shape {piece.shape}.",
            "Have its function return images of the same type and shape.",
        )
    return out


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
