"""How well a score ranks shifts by how hard they turned out: Spearman's correlation with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offsupport.core.errors import InputError
from offsupport.core.seeds import derive_seed

RESAMPLES = 2000


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation and the interval that holds it in 95 of 100 resamples of the shifts."""

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def rank_correlation(score: Sequence[float], error: Sequence[float], seed: int = 0) -> RankCorrelation:
    """Correlate the ranks of predicted hardness and measured error over shifts.

    Example:
        >>> rank_correlation([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.9]).value
        1.0
    """
    pairs = np.stack([np.asarray(score, dtype=np.float64), np.asarray(error, dtype=np.float64)])
    if pairs.shape[1] < 3:
        raise InputError(f"{pairs.shape[1]} shifts cannot be ranked.", "Give at least three.")
    rng = np.random.default_rng(derive_seed("rank correlation", seed))
    n = pairs.shape[1]
    draws = [_spearman(pairs[:, rng.integers(0, n, n)]) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return RankCorrelation(round(_spearman(pairs), 12), float(low), float(high), n)


def _spearman(pairs: np.ndarray[Any, Any]) -> float:
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    size = np.sqrt((ranks**2).sum(1))
    with np.errstate(invalid="ignore"):
        return float((ranks[0] * ranks[1]).sum() / (size[0] * size[1]))
