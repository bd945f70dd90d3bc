"""Noise: Gaussian, shot and impulse."""

from __future__ import annotations

import numpy as np

from offsupport.data.corruptions.filters import truncate
from offsupport.data.corruptions.registry import Images, corruption
from offsupport.data.corruptions.seeding import Streams


@corruption("gaussian_noise")
def gaussian_noise(images: Images, streams: Streams, std: float) -> Images:
    """Add normal noise of deviation ``std`` to each value in [0, 1]."""
    levels = streams.normal("noise", *images.shape[1:])
    levels *= np.float32(255 * std)
    levels += images
    return truncate(levels)


@corruption("shot_noise")
def shot_noise(images: Images, streams: Streams, photons: float) -> Images:
    """Replace each value by a Poisson count, where white is ``photons`` on average."""
    mean = np.arange(256) / 255 * photons
    counts = streams.poisson("counts", mean.take(images))
    # No more counts than photons matter: white is white.
    return truncate(np.arange(photons + 1) * (255 / photons)).take(counts, mode="clip")


@corruption("impulse_noise")
def impulse_noise(images: Images, streams: Streams, share: float) -> Images:
    """Set a ``share`` of the values, each channel for itself, to black or white with equal chance."""
    chance = streams.uniform("chance", *images.shape[1:])
    white = chance < np.float32(share / 2)
    kept = chance >= np.float32(share)
    return np.asarray(images * kept + white * np.uint8(255))
