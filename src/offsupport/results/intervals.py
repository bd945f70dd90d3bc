"""Intervals by a paired bootstrap over images, for averages over streams and differences between methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from offsupport.core.seeds import derive_seed

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000
_CHUNK = 1 << 22
_FEW = 20_000
"""Images whose draws are kept: at most 160 MB, and twice that."""
_VERY_FEW = 2_500
"""The same, for a table of streams of many lengths: at most 20 MB each, and eight of them."""


@dataclass(frozen=True)
class Estimate:
    """A value with the interval that holds it in 95 of 100 repetitions."""

    value: float
    low: float
    high: float
    n: int
    """How many predictions it rests on."""
    cells: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the results it was computed from, where they are known."""
    bound: float = 0.0
    """What was subtracted for a claim that something stays below it."""


def bootstrap(errors: Floats, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Return column means under resampling of the images, the same images for every column.

    Args:
        errors: One row per image, one column per stream: 1 wrong, 0 right, NaN where a stream did not hold the image.
        resamples: How many times the images are drawn with replacement.
        seed: Seed of the draws.

    Returns:
        One row per resample, one column per stream.
    """
    images, columns = errors.shape
    seen = ~np.isnan(errors)
    known = np.where(seen, errors, 0.0)
    # Counts of whole errors are exact in single precision, which is twice as fast.
    whole = images * known.max(initial=1) < 1 << 24 and bool((known == known.round()).all())
    both = (known if seen.all() else np.concatenate([known, seen], axis=1)).astype(np.float32 if whole else np.float64)
    means = np.empty((resamples, columns))
    start = 0
    draw = _kept_small if images <= _VERY_FEW else _kept if images <= _FEW else _weights
    for weights in draw(images, resamples, seed):
        sums = (weights.astype(both.dtype, copy=False) @ both).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            means[start : start + len(weights)] = sums[:, :columns] / (images if seen.all() else sums[:, columns:])
        start += len(weights)
    return means


def _weights(images: int, resamples: int, seed: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield how often each resample draws each image, some resamples at a time."""
    generator = np.random.default_rng(derive_seed("bootstrap", seed))
    rows = max(1, _CHUNK // max(images, 1))
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = generator.integers(0, images, size=(count, images))
        drawn += np.arange(count)[:, None] * images
        yield np.bincount(drawn.ravel(), minlength=count * images).reshape(count, images).astype(np.float32)


@lru_cache(maxsize=2)
def _kept(images: int, resamples: int, seed: int) -> list[npt.NDArray[np.float32]]:
    """The same, kept: a report asks for the draws of the same number of images all the time."""
    return list(_weights(images, resamples, seed))


@lru_cache(maxsize=8)
def _kept_small(images: int, resamples: int, seed: int) -> list[npt.NDArray[np.float32]]:
    return list(_weights(images, resamples, seed))


def mean_estimate(errors: Floats, seed: int = 0) -> Estimate:
    """Return the average over streams of the error of each, with its bootstrap interval over images."""
    return _estimate(float(np.nanmean(errors, axis=0).mean()), _averages(errors, seed), errors)


def difference_estimate(errors: Floats, baseline: Floats, seed: int = 0) -> Estimate:
    """Return how much the average error lies above that of a baseline on the same images.

    Args:
        errors: As for :func:`bootstrap`.
        baseline: The same, with the same images in the same rows.
        seed: Seed of the draws.
    """
    value = np.nanmean(errors, axis=0).mean() - np.nanmean(baseline, axis=0).mean()
    return _estimate(float(value), _averages(errors, seed) - _averages(baseline, seed), errors)


def _averages(errors: Floats, seed: int) -> Floats:
    """Return the average over streams under resampling of the images, one per resample."""
    streams = errors.shape[1]
    if not np.isnan(errors).any():  # every stream holds every image: add them up first, and one column is enough
        errors = errors.sum(axis=1, keepdims=True)
    averages: Floats = bootstrap(errors, seed=seed).sum(axis=1) / streams
    return averages


def _estimate(value: float, draws: Floats, errors: Floats) -> Estimate:
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Estimate(value, float(low), float(high), int((~np.isnan(errors)).sum()))
