"""Confidence intervals of proportions."""

from __future__ import annotations

import math


def wilson(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion; (0, 1) without any trial.

    Example:
        >>> low, high = wilson(5, 10)
        >>> round(low, 4), round(high, 4)
        (0.2366, 0.7634)
    """
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    centre = p + z * z / (2 * trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
