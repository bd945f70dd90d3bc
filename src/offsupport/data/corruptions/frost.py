"""Frost textures: synthesised ones, or the official files from a folder."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from offsupport.core.errors import DataMissingError, FileError
from offsupport.core.seeds import derive_seed
from offsupport.data.corruptions.plasma import draws_needed, plasma

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
    return tuple(_read(path) for path in found if path is not None)


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


def _read(path: Path) -> Texture:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise FileError(f"{path} is not a readable image ({error}).", "Copy the file again.") from error
