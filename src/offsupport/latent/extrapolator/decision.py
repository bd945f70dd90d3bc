"""Sparse or dense: what the targets of a run say about their shift, and what is done where they say nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from offsupport.latent.extrapolator.dense import DenseModel, FlowConfig, FlowShape
from offsupport.latent.extrapolator.sparse import Mixture, SparseModel, Weighed

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


# Which kind of shift explains targets better: a few columns that moved, or all of them.
#
# Both hypotheses start from the mixture of the source. Sparse: some set of columns lies anywhere (the flat density
# that weighs sets of distrusted columns), the others are as on the source. Dense: every column is displaced by an
# independent normal amount, of a scale between a quarter and 64 standard deviations. Either grants that half of the
# targets did not move at all, so targets that look like the source speak for neither. Labels are not used.


SCALES = tuple(2.0**power for power in range(-2, 7))
DECISIVE = math.log(3)  # log odds that decide


def log_odds(mixture: Mixture, weighed: Weighed, x: Tensor, log_prior: float) -> Tensor:
    """Return the log odds of a sparse against a dense shift for every sample, (R, m).

    Args:
        mixture: Density of the source.
        weighed: The sets of distrusted dimensions of the samples.
        x: (R, m, d) samples.
        log_prior: Log density of where a distrusted dimension lies.
    """
    unmoved = mixture.log_density(x, torch.zeros(1, x.shape[-1], dtype=torch.bool))[..., 0]
    sparse = sparse_evidence(weighed, log_prior)
    dense = torch.stack([mixture.widened(x, scale**2) for scale in SCALES]).logsumexp(0) - math.log(len(SCALES))
    return torch.logaddexp(sparse, unmoved) - torch.logaddexp(dense, unmoved)


def sparse_evidence(weighed: Weighed, log_prior: float) -> Tensor:
    """Return the log evidence (R, m) of moved columns: sizes of sets are equally likely, then sets."""
    size, d, largest = weighed.masks.sum(-1), weighed.masks.shape[-1], weighed.largest
    sets = [math.inf, *(math.log(largest * math.comb(d, count)) for count in range(1, largest + 1))]
    prior = -torch.tensor(sets, dtype=torch.float64)[size]  # no set at all is the other half of the hypothesis
    return (weighed.kept_density + log_prior * size.double() + prior).logsumexp(-1)


# How many latent dimensions there are: of a source in all, and changing ones of targets with a sparse shift.


ODD = 0.1  # share of the moved targets of a run whose sets may be larger than d_s


def intrinsic_dimension(x: Tensor, k: int = 10, count: int = 300) -> Tensor:
    """Estimate the intrinsic dimension of (R, n, d) samples, (R,) numbers (Levina and Bickel, 2004; MacKay's average).

    Every run has its own estimate, from 1 to d. Neighbours at distance zero (repeated samples, as discrete columns
    give) say nothing and are left out; where equal distances remain, as on a grid, the estimate ends at d.

    Args:
        x: Samples.
        k: Neighbours.
        count: Samples whose neighbours are looked at.
    """
    estimates = []
    for run in x.double():
        gaps = torch.cdist(run[:count], run).topk(min(k + 1, len(run)), largest=False).values[:, 1:]
        near, far = gaps[:, :-1], gaps[:, -1:].expand(-1, gaps.shape[1] - 1)
        logs = (far / near).log()[near > 1e-9]
        estimates.append(1 / logs.mean().nan_to_num(0).clamp_min(1e-6))
    return torch.stack(estimates).clamp(1, x.shape[-1])


def changing_dimension(weighed: Weighed) -> list[int]:
    """Return d_s of every run, at least 1: how many dimensions its samples moved, judged by their likeliest sets.

    Samples of a run share their shift, but a moved dimension may land where the source was; so the largest set counts,
    but for one in ten of the samples that moved at all. Too small a d_s would leave a moved dimension among those that
    are trusted, too large a one costs a dimension that could have been: with few samples the largest set decides.
    """
    size = weighed.likeliest().sum(-1).sort(-1, descending=True).values
    odd = (ODD * (size > 0).sum(-1, keepdim=True)).long()
    found: list[int] = size.gather(-1, odd)[:, 0].clamp_min(1).tolist()
    return found


# How sure a predicted number is: intervals that held the truth of the source as often as they should.
#
# A model gives a standard deviation per sample; how many of them an interval needs is the quantile of what it took on
# source samples that were kept out (split conformal prediction with normalised residuals). For the sparse model half
# of those samples are pushed off the source first, in as many columns as may move, so the quantile covers such shifts
# too. For the flow they are not: how far its error grows off the support is what nothing on the source tells.


KEPT_OUT = 400  # source samples that calibrate, at most a quarter
PUSH = (4.0, 40.0)  # how far columns are pushed, in standard deviations


def multiples(residual: Tensor, spread: Tensor, level: float) -> Tensor:
    """Return the (R, 1) multiple of the spread (R, m) that holds the residuals (R, m) at the level."""
    ratio = residual.abs() / spread.clamp_min(1e-9)
    m = ratio.shape[-1]
    rank = min(m, int(-(-level * (m + 1) // 1)))
    return ratio.sort(-1).values[:, rank - 1 : rank]


def sparse_multiple(model: SparseModel, level: float, rng: torch.Generator) -> Tensor:
    """Return the multiple for the sparse model, from kept-out source samples of which half are pushed."""
    source = model.source
    _, n, d = source.x.shape
    order = torch.randperm(n, generator=rng)
    out, rest = order[: min(KEPT_OUT, n // 4)], order[min(KEPT_OUT, n // 4) :]
    x = source.x[:, out].clone()
    pushed = torch.arange(len(out)) % 2 == 1
    columns = torch.rand(len(out), d, generator=rng).argsort(-1) < model.largest
    far = PUSH[0] + (PUSH[1] - PUSH[0]) * torch.rand(len(out), d, generator=rng)
    signs = torch.where(torch.rand(len(out), d, generator=rng) < 0.5, -1.0, 1.0)
    x = x + (far * signs * columns * pushed[:, None]).to(x.dtype)
    without = replace(model, source=replace(source, x=source.x[:, rest], y=source.y[:, rest]))
    return multiples(without.output(x) - source.y[:, out], without.spread(x), level)


def flow_multiple(model: DenseModel, x: Tensor, y: Tensor, level: float) -> Tensor:
    """Return the multiple for the flow, from source samples (R, m, d) and their standardised numbers (R, m)."""
    mean, spread = model.moments(x)
    return multiples(mean - y, spread, level)
