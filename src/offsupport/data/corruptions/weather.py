"""Weather: snow, frost, fog and brightness."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from offsupport.core.errors import DataMissingError
from offsupport.core.seeds import derive_seed
from offsupport.data.corruptions.blur import motion, zoom
from offsupport.data.corruptions.filters import truncate
from offsupport.data.corruptions.registry import Images, published
from offsupport.data.corruptions.seeding import Streams
from offsupport.data.pictures import read_picture

# Plasma fractals: the shape of fog, and the large patches of frost.


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


# Frost textures: synthesised ones, or the official files from a folder.


Texture = NDArray[np.uint8]  # (H, W, 3)

SIZE = 512
PALETTES = (
    ((78, 149, 166), (27, 17, 15)),
    ((201, 205, 215), (21, 22, 23)),
    ((201, 205, 215), (21, 22, 23)),
    ((138, 153, 165), (29, 29, 30)),
    ((112, 123, 135), (44, 43, 42)),
)
"""Mean and deviation of the colours of the five official textures in use; the third is the second over again."""

OFFICIAL = (
    ("frost1.png",),
    ("frost2.png", "frost3.png"),
    ("frost3.png", "frost2.png"),
    ("frost4.jpg",),
    ("frost5.jpg",),
)
"""File names of the five textures; the second and third have the same pixels, so that one file can stand for both."""


@functools.lru_cache(maxsize=8)
def textures(frost_dir: str | None, scale: float) -> tuple[Texture, ...]:
    """Return five textures, scaled for an image size: official ones from a folder, or synthesised ones without."""
    full = synthetic() if frost_dir is None else official(Path(frost_dir))
    return tuple(_scaled(texture, scale) for texture in full)


def official(folder: Path) -> tuple[Texture, ...]:
    """Read the official textures; all of them have to be there."""
    found = [next((folder / name for name in names if (folder / name).is_file()), None) for names in OFFICIAL]
    missing = [names[0] for names, path in zip(OFFICIAL, found, strict=True) if path is None]
    if missing:
        raise DataMissingError(
            f"Frost textures are missing in {folder}: {', '.join(missing)}.",
            "Put the official files there, or leave frost_dir out for synthesised ones.",
        )
    return tuple(read_picture(path) for path in found if path is not None)


@functools.lru_cache(maxsize=1)
def synthetic() -> tuple[Texture, ...]:
    """Return five synthesised textures with the colours of the official ones."""
    fields = {palette: _frost_field(palette) for palette in dict.fromkeys(PALETTES)}
    return tuple(
        np.clip(np.array(mean) + np.array(std) * fields[mean, std][..., None], 0, 255).round().astype(np.uint8)
        for mean, std in PALETTES
    )


def _frost_field(palette: tuple[tuple[int, ...], tuple[int, ...]]) -> NDArray[np.float64]:
    """Return veins, needles, patches and some grain, with mean zero and deviation one."""
    generator = np.random.default_rng(derive_seed("frost texture", *palette[0]))
    patches = plasma(generator.random((1, draws_needed(SIZE))), decay=2.2)[0]
    parts = (0.45, _veins(generator)), (0.30, _needles(generator)), (0.25, patches)
    field = sum((weight * _standard(part) for weight, part in parts), np.zeros((SIZE, SIZE)))
    return _standard(_standard(field) + 0.15 * generator.standard_normal((SIZE, SIZE)))


def _veins(generator: Generator) -> NDArray[np.float64]:
    """Return ridged noise over five octaves: bright where smooth noise crosses zero."""
    ridges = np.zeros((SIZE, SIZE))
    for octave, sigma in enumerate((24, 12, 6, 3, 1.5)):
        noise = _standard(_smooth(generator.standard_normal((SIZE, SIZE)), sigma))
        ridges += 0.6**octave * (1 - np.minimum(np.abs(noise), 2) / 2) ** 2
    return ridges


def _needles(generator: Generator, count: int = 4000) -> NDArray[np.float64]:
    """Return needles that fade along their length, in three directions 60 degrees apart."""
    start = generator.random((count, 2)) * SIZE
    axis = generator.random() * np.pi + generator.integers(3, size=count) * np.pi / 3
    angle = axis + 0.15 * generator.standard_normal(count)
    length = np.minimum(generator.exponential(40, count), SIZE / 2)
    along = np.arange(SIZE // 2)
    strength = np.clip(1 - along / np.maximum(length, 1)[:, None], 0, None)  # (count, steps)
    rows = (start[:, :1] + along * np.sin(angle)[:, None]).astype(np.int64) % SIZE
    columns = (start[:, 1:] + along * np.cos(angle)[:, None]).astype(np.int64) % SIZE
    drawn = np.bincount((rows * SIZE + columns).ravel(), strength.ravel(), minlength=SIZE * SIZE)
    return np.tanh(_smooth(drawn.reshape(SIZE, SIZE).astype(np.float64), 0.7))


def _smooth(field: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return a Gaussian blur on the torus."""
    rows, columns = np.fft.fftfreq(SIZE)[:, None], np.fft.rfftfreq(SIZE)
    transfer = np.exp(-2 * (np.pi * sigma) ** 2 * (rows**2 + columns**2))
    return np.asarray(np.fft.irfft2(np.fft.rfft2(field) * transfer, s=field.shape))


def _standard(field: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((field - field.mean()) / field.std())


def _scaled(texture: Texture, scale: float) -> Texture:
    """Scale down by linear interpolation between two pixels per axis, without averaging: the grain stays."""
    levels = texture.astype(np.float64)
    for axis in (0, 1):
        side = levels.shape[axis]
        position = np.clip((np.arange(round(side * scale)) + 0.5) / scale - 0.5, 0, side - 1)
        lower = np.minimum(position.astype(np.int64), side - 2)
        fraction = np.expand_dims(position - lower, tuple(other for other in range(3) if other != axis))
        levels = levels.take(lower, axis) * (1 - fraction) + levels.take(lower + 1, axis) * fraction
    return np.rint(levels).astype(np.uint8)


GREY = np.array([0.299, 0.587, 0.114])


@published(
    "snow",
    "weather",
    {
        32: [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
        64: [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ],
        224: [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
    },
)
def snow(
    images: Images,
    streams: Streams,
    mean: float,
    std: float,
    factor: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Images:
    """Whiten the image and lay falling flakes over it, once as they are and once turned by 180 degrees.

    Args:
        images: Images.
        streams: Their random streams.
        mean: Mean of the normal field the flakes are made of.
        std: Its deviation.
        factor: How far it is zoomed into: the size of the flakes.
        threshold: What is below it is no flake.
        radius: How far flakes are smeared.
        sigma: How evenly.
        kept: Share of the image that is not whitened.
    """
    side = images.shape[1]
    flakes = zoom(mean + std * streams.normal("field", side, side).astype(np.float64), factor)
    flakes[flakes < threshold] = 0
    angle = 90 * streams.uniform("angle", 1)[:, 0].astype(np.float64) - 135
    layer = motion(truncate(flakes * 255)[..., None], angle, radius, sigma).astype(np.float64)
    levels = images.astype(np.float64)
    # Written as a sum in fixed order: a matrix product may round differently from batch to batch.
    grey = levels[..., :1] * GREY[0] + levels[..., 1:2] * GREY[1] + levels[..., 2:] * GREY[2]
    levels = kept * levels + (1 - kept) * np.maximum(levels, 1.5 * grey + 127.5)
    levels += layer + layer[:, ::-1, ::-1]
    return truncate(levels)


@published(
    "frost",
    "weather",
    {
        32: [(1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)],
        64: [(1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)],
        224: [(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
    },
    takes_frost_dir=True,
)
def frost(
    images: Images, streams: Streams, kept: float, added: float, scale: float, frost_dir: Path | str | None = None
) -> Images:
    """Add ``added`` of a random cut of a frost texture to ``kept`` of the image.

    Args:
        images: Images.
        streams: Their random streams.
        kept: Share of the image.
        added: Share of the texture.
        scale: How far the textures are scaled down before they are cut.
        frost_dir: A folder with the official textures; synthesised ones otherwise.
    """
    side = images.shape[1]
    available = textures(None if frost_dir is None else str(frost_dir), scale)
    which, top, left = streams.uniform("cut", 3).T
    which = (which * len(available)).astype(np.int64)
    levels = kept * images.astype(np.float64)
    for number, texture in enumerate(available):
        chosen = np.flatnonzero(which == number)
        rows = (top[chosen] * max(texture.shape[0] - side, 1)).astype(np.int64)[:, None] + np.arange(side)
        columns = (left[chosen] * max(texture.shape[1] - side, 1)).astype(np.int64)[:, None] + np.arange(side)
        # A texture smaller than the image repeats.
        rows, columns = rows % texture.shape[0], columns % texture.shape[1]
        levels[chosen] += added * texture[rows[:, :, None], columns[:, None, :]]
    return truncate(levels)


@published(
    "fog",
    "weather",
    {
        32: [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
        64: [(0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)],
        224: [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
    },
)
def fog(images: Images, streams: Streams, amount: float, decay: float) -> Images:
    """Add a plasma fractal and scale back to the brightest value of the image."""
    side = images.shape[1]
    size = 1 << (side - 1).bit_length()  # the diamond-square rule halves its steps, so it needs a power of two
    mist = plasma(streams.uniform("plasma", draws_needed(size)), decay)[:, :side, :side, None]
    brightest = images.max(axis=(1, 2, 3), keepdims=True) / 255
    return truncate((images + 255 * amount * mist) * (brightest / (brightest + amount)))


@published(
    "brightness",
    "weather",
    {
        32: [0.05, 0.1, 0.15, 0.2, 0.3],
        64: [0.1, 0.2, 0.3, 0.4, 0.5],
        224: [0.1, 0.2, 0.3, 0.4, 0.5],
    },
)
def brightness(images: Images, streams: Streams, amount: float) -> Images:
    """Raise the value (the largest channel) in the sense of HSV, at most to white; hue and saturation stay."""
    levels = images.astype(np.float64)
    value = levels.max(axis=3, keepdims=True)
    raised = np.minimum(value + 255 * amount, 255)
    black = value == 0
    return truncate(np.where(black, raised, levels * (raised / np.where(black, 1, value))))
