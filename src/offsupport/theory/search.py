"""Local search: push a score up from its best starting points, without gradients.

Generators may be piecewise linear, where the gradient of a Jacobian's norm is zero almost everywhere, so the search
tries random steps that shrink. It never loses ground: the result is attained, hence a lower bound of the supremum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Score = Callable[[Tensor], Tensor]


def climb(
    score: Score,
    start: Tensor,
    rng: torch.Generator,
    *,
    project: Callable[[Tensor], Tensor] = lambda point: point,
    scale: float = 0.3,
    keep: int = 16,
    tries: int = 12,
    rounds: int = 25,
) -> tuple[Tensor, Tensor]:
    """Return the best point found and its score.

    Args:
        score: Maps points (n, d) to their scores (n,); larger is better.
        start: (n, d) points to start from; the best ``keep`` of them are moved.
        rng: Where the steps come from.
        project: Brings points (n, d) back into the region that is searched.
        scale: Standard deviation of the first steps; it shrinks to a thousandth of that.
        keep: Points that are moved side by side.
        tries: Steps tried per point and round.
        rounds: Rounds.
    """
    scores = score(start)
    best, index = scores.topk(min(keep, len(start)))
    point = start[index]
    for turn in range(rounds):
        width = scale * 1e-3 ** (turn / rounds)
        steps = torch.randn(len(point), tries, point.shape[-1], generator=rng, dtype=point.dtype)
        tried = project((point[:, None] + width * steps).flatten(0, 1))
        value, chosen = score(tried).view(len(point), tries).max(-1)
        better = value > best
        moved = tried.view(*steps.shape)[torch.arange(len(point)), chosen]
        point, best = torch.where(better[:, None], moved, point), torch.where(better, value, best)
    top = best.argmax()
    return point[top], best[top]
