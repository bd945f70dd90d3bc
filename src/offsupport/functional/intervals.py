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
    # Exactly 0 and 1 at the ends, where rounding would leave a trace.
    low = (centre - half) / scale if successes > 0 else 0.0
    high = (centre + half) / scale if successes < trials else 1.0
    return low, high
