"""How well a score ranks shifts by how hard they turned out: Spearman's correlation with an interval."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offsupport.core.errors import InputError
from offsupport.core.seeds import derive_seed

RESAMPLES = 2000
FEWEST = 3

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation and the interval that holds it in 95 of 100 resamples of the groups of shifts.

    ``n`` is the number of shifts, ``groups`` that of the groups; a shift that belongs to none is a group of its own.
    """

    value: float
    low: float
    high: float
    n: int
    groups: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def rank_correlation(
    score: Sequence[float], error: Sequence[float], seed: int = 0, groups: Sequence[Hashable] | None = None
) -> RankCorrelation:
    """Correlate the ranks of predicted hardness and measured error over shifts.

    Args:
        score: Predicted hardness of each shift.
        error: Measured error of each.
        seed: Of the resamples.
        groups: What each shift belongs to, such as its corruption. Shifts of one group say much the same, so whole
            groups are resampled; None where the shifts have nothing to do with each other.

    Example:
        >>> rank_correlation([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.9]).value
        1.0
    """
    pairs = _pairs(score, error)
    n = pairs.shape[1]
    members = _members(range(n) if groups is None else groups, n)
    rng = np.random.default_rng(derive_seed("rank correlation", seed))
    drawn = (rng.integers(0, len(members), len(members)) for _ in range(RESAMPLES))
    draws = [_spearman(pairs[:, np.concatenate([members[group] for group in some])]) for some in drawn]
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return RankCorrelation(round(_spearman(pairs), 12), float(low), float(high), n, len(members))


def _pairs(score: Sequence[float], error: Sequence[float]) -> Values:
    """Return both as rows; refuse what has no ranks."""
    found = {"scores": np.asarray(score, dtype=np.float64), "errors": np.asarray(error, dtype=np.float64)}
    if any(values.ndim != 1 for values in found.values()) or len(score) != len(error):
        shapes = " and ".join(f"{name} of shape {values.shape}" for name, values in found.items())
        raise InputError(f"These are {shapes}.", "Give one of each per shift.")
    if len(score) < FEWEST:
        raise InputError(f"{len(score)} shifts cannot be ranked.", "Give at least three.")
    for name, values in found.items():
        if np.isnan(values).any():
            raise InputError(f"{int(np.isnan(values).sum())} of the {name} are not a number.", "Leave them out.")
        if (values == values[0]).all():
            raise InputError(f"All {name} are {values[0]:g}, which gives no ranks.", "Give shifts that differ.")
    return np.stack(list(found.values()))


def _members(groups: Sequence[Hashable], n: int) -> list[Any]:
    """Return the positions of each group."""
    if len(groups) != n:
        raise InputError(f"There are {n} shifts, and the groups of {len(groups)}.", "Give one group per shift.")
    found: dict[Hashable, list[int]] = {}
    for position, group in enumerate(groups):
        found.setdefault(group, []).append(position)
    if len(found) < FEWEST:
        raise InputError(f"{len(found)} groups cannot be resampled.", "Give shifts of at least three.")
    return [np.array(positions) for positions in found.values()]


def _spearman(pairs: Values) -> float:
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=1)
    ranks -= ranks.mean(1, keepdims=True)
    size = np.sqrt((ranks**2).sum(1))
    with np.errstate(invalid="ignore"):
        return float((ranks[0] * ranks[1]).sum() / (size[0] * size[1]))
