"""The published severity constants (Hendrycks & Dietterich, ICLR 2019), one set per image size.

Each entry is a row of severities; each severity is the tuple of arguments its corruption takes. Lengths are in pixels.
Constants that do not rise with severity (glass_blur, snow, elastic_transform, saturate, spatter) are as published.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offsupport.core.errors import ConfigError, nearest

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
