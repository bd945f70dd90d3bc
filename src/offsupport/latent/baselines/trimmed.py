"""Trimmed nearest neighbours: match a target to source samples on all but its worst-matching dimensions."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from offsupport.latent.base import LatentEstimator
from offsupport.latent.extrapolator.sparse import trimmed_sum
from offsupport.latent.inputs import Source


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class TrimmedNN(LatentEstimator):
    """The simple rule any claim about sparse shifts has to beat: ignore the d_s worst dimensions, ask k neighbours."""

    d_s: int = 2
    """Dimensions to ignore, for every pair of samples anew."""
    k: int = 15
    """Neighbours that vote."""

    def _fit(self, source: Source, x_tgt: Tensor | None) -> None:
        pass  # the source sample is the model

    def _output(self, x: Tensor) -> Tensor:
        return neighbour_vote(self.source_, x, self.d_s, self.k)


def neighbour_vote(source: Source, x: Tensor, ignored: int, k: int) -> Tensor:
    """Average the labels of the k source samples nearest to x on all but their ``ignored`` worst dimensions.

    Args:
        source: The source samples.
        x: (R, m, d) standardised samples.
        ignored: Dimensions left out, for every pair of samples anew.
        k: Neighbours.

    Returns:
        (R, m, K) shares of the classes, or (R, m) means.
    """
    kept = max(1, x.shape[-1] - ignored)
    votes = []
    for one in x.unbind(1):  # one sample per run at a time keeps the table of differences small
        gaps = (source.x - one[:, None]).square()
        nearest = trimmed_sum(gaps, kept).topk(min(k, gaps.shape[1]), largest=False).indices
        votes.append(source.y.gather(1, nearest))
    vote = torch.stack(votes, 1)  # (R, m, k)
    if source.task == "regression":
        return vote.mean(-1)
    return functional.one_hot(vote, source.n_classes).to(x.dtype).mean(-2)
