"""Sparse or dense: what the targets of a run say about their shift, and what is done where they say nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from offsupport.latent.evidence import DECISIVE, log_odds
from offsupport.latent.flow import FlowShape
from offsupport.latent.flow_fit import FlowConfig
from offsupport.latent.masks import Weighed
from offsupport.latent.sparse import SparseModel

FULL = 0.6  # share of the columns the (biased down) intrinsic dimension reaches where a source fills its space
PLENTY = 10  # source samples per parameter of the flow
MOST = math.log(100)  # log odds that a single target may have


@dataclass(frozen=True)
class Finding:
    """What kind of shift a run's targets show, and why."""

    shift: Literal["dense", "sparse", "undecided"]
    reason: str

    def __str__(self) -> str:
        return f"{self.shift}: {self.reason}"


def decide(
    model: SparseModel, weighed: Weighed, x: Tensor, dimension: Tensor, thin: Tensor, flow: FlowConfig
) -> list[Finding]:
    """Return the finding of every run on its targets x (R, m, d).

    Evidence of three to one for the average target decides; no single target counts for more than a hundred to one, so
    a few outliers among many targets do not. Otherwise the targets lie where both kinds of shift look alike, mostly
    close to the source, and what matters is which model can be trusted there: the dense one if the source has a density
    in all its columns (or classes that are manifolds) and samples enough to fit it, else the sparse one.

    Args:
        model: The sparse model, whose density both hypotheses start from.
        weighed: The sets of distrusted dimensions it finds for the targets.
        x: Standardised targets.
        dimension: (R,) intrinsic dimensions of the source.
        thin: (R,) runs whose classes are manifolds.
        flow: How the dense model would be fitted.
    """
    odds = log_odds(model.mixture, weighed, x, model.config.log_prior).clamp(-MOST, MOST).mean(-1)
    moved = weighed.distrust().sum(-1).mean(-1)
    _, n, d = model.source.x.shape
    enough = n >= PLENTY * FlowShape(d, flow.layers, max(2, model.source.n_classes)).count
    dense = (thin | (dimension >= FULL * d)) & enough
    return [
        _finding(float(log), float(count), model.largest, bool(fits))
        for log, count, fits in zip(odds, moved, dense, strict=True)
    ]


def _finding(odds: float, moved: float, largest: int, dense: bool) -> Finding:
    """Put the evidence into words."""
    measured = f"(log odds {odds:+.1f} for the average target)"
    if odds > DECISIVE:
        return Finding(
            "sparse",
            f"without {moved:.1f} columns on average the targets look like the source, more than by a shift of all "
            f"columns {measured}.",
        )
    if odds < -DECISIVE:
        return Finding(
            "dense", f"a shift of all columns explains the targets, more than at most {largest} columns do {measured}."
        )
    neither = f"the targets do not tell few moved columns from all of them {measured}; the source has"
    if dense:
        return Finding("dense", f"{neither} the structure the dense model needs, and the samples to fit it.")
    return Finding("sparse", f"{neither} not the structure the dense model needs, or too few samples to fit it.")
