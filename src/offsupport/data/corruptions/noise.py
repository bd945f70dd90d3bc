"""Noise: Gaussian, shot and impulse."""

from __future__ import annotations

import numpy as np

from offsupport.data.corruptions.filters import truncate
from offsupport.data.corruptions.registry import Images, published
from offsupport.data.corruptions.seeding import Streams


@published(
    "gaussian_noise",
    "noise",
    {
        32: [0.04, 0.06, 0.08, 0.09, 0.10],
        64: [0.04, 0.08, 0.12, 0.15, 0.18],
        224: [0.08, 0.12, 0.18, 0.26, 0.38],
    },
)
def gaussian_noise(images: Images, streams: Streams, std: float) -> Images:
    """Add normal noise of deviation ``std`` to each value in [0, 1]."""
    levels = streams.normal("noise", *images.shape[1:])
    levels *= np.float32(255 * std)
    levels += images
    return truncate(levels)


@published(
    "shot_noise",
    "noise",
    {
        32: [500, 250, 100, 75, 50],
        64: [250, 100, 50, 30, 15],
        224: [60, 25, 12, 5, 3],
    },
)
def shot_noise(images: Images, streams: Streams, photons: float) -> Images:
    """Replace each value by a Poisson count, where white is ``photons`` on average."""
    # There are 256 values, so means and results are looked up rather than computed for every pixel.
    mean = np.arange(256) / 255 * photons
    counts = streams.poisson("counts", mean.take(images))
    # No more counts than photons matter: white is white.
    return truncate(np.arange(photons + 1) * (255 / photons)).take(counts, mode="clip")


@published(
    "impulse_noise",
    "noise",
    {
        # Beyond severity 5 nothing is published. The share of changed values continues the growing steps of the first
        # five (.01 .01 .02 .02, then .03 .05 .06 .07 .08), each severity 1.3 to 1.5 times the one before.
        32: [0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15, 0.21, 0.28, 0.36],
        64: [0.01, 0.02, 0.05, 0.08, 0.14],
        224: [0.03, 0.06, 0.09, 0.17, 0.27],
    },
)
def impulse_noise(images: Images, streams: Streams, share: float) -> Images:
    """Set a ``share`` of the values, each channel for itself, to black or white with equal chance."""
    # One draw decides both whether and to what: the lower half of the share is white, the upper black.
    chance = streams.uniform("chance", *images.shape[1:])
    white = chance < np.float32(share / 2)
    kept = chance >= np.float32(share)
    return np.asarray(images * kept + white * np.uint8(255))
