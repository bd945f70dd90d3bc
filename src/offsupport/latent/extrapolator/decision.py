"""What is concluded from targets: their kind of shift, how many dimensions it moved, which half answers, how surely.

The evidence itself is `sparse.log_odds`; here are the thresholds, the words, and what is done where nothing is decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from offsupport.latent.extrapolator.dense import DenseModel, FlowConfig, FlowShape
from offsupport.latent.extrapolator.sparse import Look, SparseModel
from offsupport.latent.inputs import Array, Source

FULL = 0.6  # share of the columns the (biased down) intrinsic dimension reaches where a source fills its space
PLENTY = 10  # source samples per parameter of the flow
MOST = math.log(100)  # log odds that a single target may have
DECISIVE = math.log(3)  # log odds that decide
SOURCE_LOOKED_AT = 200  # source samples whose own odds are looked at

Half = Literal["sparse", "flow", "manifold"]


@dataclass(frozen=True)
class Finding:
    """What kind of shift a run's targets show, and why.

    Attributes:
        shift: The kind.
        reason: Why, as a sentence.
        log_odds: Of a sparse against a dense shift for the average target; None where the shift was given.
    """

    shift: Literal["dense", "sparse", "undecided"]
    reason: str
    log_odds: float | None = None

    def __str__(self) -> str:
        return f"{self.shift}: {self.reason}"


@dataclass(frozen=True)
class Found:
    """What the targets of R runs decide: one finding, half, d_s and d_c per run."""

    findings: Sequence[Finding]
    halves: Sequence[Half]
    d_s: Sequence[int]
    d_c: Sequence[int]

    def alike(self) -> list[Tensor]:
        """Return the numbers of the samples that decided alike, where each decided for itself; answered at once."""
        rows: dict[tuple[Half, int, int], list[int]] = {}
        for i, decided in enumerate(zip(self.halves, self.d_s, self.d_c, strict=True)):
            rows.setdefault(decided, []).append(i)
        return [torch.tensor(row) for row in rows.values()]

    def only(self, i: int) -> Found:
        """Return what one of them decided."""
        return Found([self.findings[i]], [self.halves[i]], [self.d_s[i]], [self.d_c[i]])


@dataclass(frozen=True, eq=False)
class Explanation:
    """What was found about targets that share their shift, and how surely they were answered.

    Attributes:
        shift: ``sparse``, ``dense``, or ``undecided`` where nobody asked about targets yet.
        reason: Why, as a sentence.
        log_odds: Of a sparse against a dense shift for the average target; None where the shift was given.
        half: What answered: ``sparse``, ``flow`` or ``manifold``.
        d_s: Dimensions of the changing variable: as given, or as many columns as the targets moved. Where the shift is
            dense all columns move and nothing says how many latents stand behind that: half of them are taken.
        d_c: Dimensions of the invariant variable: as given, or the intrinsic dimension of the source minus d_s, at
            least 1; where the flow answers, which has as many latents as columns, the columns minus d_s.
        dense: Whether there is a dense model, and why or why not, as a sentence.
        distrust: (m, d) probabilities that each column left the source; None where the shift was said to be dense.
        columns: The columns that the average target distrusts: names where fit saw names, else numbers.
        confidence: (m,) probabilities of the predicted classes; None for numbers.
        spread: (m,) standard deviations of the predicted numbers, in units of y; None for classes.
    """

    shift: Literal["dense", "sparse", "undecided"]
    reason: str
    log_odds: float | None
    half: Half
    d_s: int
    d_c: int
    dense: str
    distrust: Array | None
    columns: tuple[str | int, ...]
    confidence: Array | None
    spread: Array | None

    def __str__(self) -> str:
        off = f" distrusted: {', '.join(map(str, self.columns))}." if self.columns else ""
        return f"{self.shift}: {self.reason} answered by the {self.half} half, d_s {self.d_s}.{off} {self.dense}"


def supports_flow(source: Source, flow: FlowConfig) -> tuple[bool, str]:
    """Say whether a source has the samples to fit a flow, and the numbers behind that in words.

    A flow of fewer samples is sure of itself and wrong off the support, which is where it is asked.
    """
    _, n, d = source.x.shape
    count = FlowShape(d, flow.layers, max(2, source.n_classes)).count
    return n >= PLENTY * count, f"{n:,} samples for {count:,} parameters, where {PLENTY} per parameter are needed"


def decide(look: Look, largest: int, prefers: Tensor, able: Tensor, oddest: Tensor) -> list[Finding]:
    """Return the finding of every run on what its targets look like.

    Evidence of three to one for the average target decides; no single target counts for more than a hundred to one, so
    a few outliers among many targets do not. Otherwise the targets lie where both kinds of shift look alike, mostly
    close to the source, and what matters is which model can be trusted there: the dense one if the source has a density
    in all its columns (or classes that are manifolds) and samples enough to fit it, else the sparse one.

    Where no dense model can answer, the source is mostly too small for its density to be sure of its own tails, and
    its oddest samples look as if all of their columns had moved. So targets must then look so a hundred times more
    than the oddest sample of the source before the shift is called dense.

    Args:
        look: What the targets look like.
        largest: Most columns that a sparse shift may move.
        prefers: (R,) runs whose source has the structure and the samples for the dense model.
        able: (R,) runs that have a dense model.
        oddest: (R,) lowest log odds of a source sample.
    """
    odds, typical = look.log_odds.clamp(-MOST, MOST).mean(-1), look.log_odds.median(-1).values
    moved = look.moved.mean(-1)
    findings = []
    for r in range(len(odds)):
        log, can = float(odds[r]), bool(able[r])
        if log < -DECISIVE and not can:
            findings.append(_without_dense(log, bool(typical[r] < oddest[r] - MOST), largest))
        else:
            findings.append(_finding(log, float(moved[r]), largest, can and bool(prefers[r])))
    return findings


def _finding(odds: float, moved: float, largest: int, dense: bool) -> Finding:
    """Put the evidence into words."""
    measured = f"(log odds {odds:+.1f} for the average target)"
    if odds > DECISIVE:
        return Finding(
            "sparse",
            f"without {moved:.1f} columns on average the targets look like the source, more than by a shift of all "
            f"columns {measured}.",
            odds,
        )
    if odds < -DECISIVE:
        return Finding(
            "dense",
            f"a shift of all columns explains the targets, more than at most {largest} columns do {measured}.",
            odds,
        )
    neither = f"the targets do not tell few moved columns from all of them {measured}; the source has"
    if dense:
        return Finding("dense", f"{neither} the structure the dense model needs, and the samples to fit it.", odds)
    return Finding("sparse", f"{neither} not the structure the dense model needs, or too few samples to fit it.", odds)


def _without_dense(odds: float, certain: bool, largest: int) -> Finding:
    """Put evidence for a dense shift into words where no dense model can answer."""
    seen = f"a shift of all columns explains the targets, more than at most {largest} columns do (log odds {odds:+.1f})"
    if certain:
        return Finding("dense", f"{seen}; there is no dense model, so the sparse one answers.", odds)
    return Finding("sparse", f"{seen}, but samples of the source look so, too; the sparse model answers.", odds)


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


def changing_dimension(size: Tensor) -> list[int]:
    """Return d_s of every run, at least 1: how many dimensions its samples moved, by the (R, m) sizes of their sets.

    Samples of a run share their shift, but a moved dimension may land where the source was; so the largest set counts,
    but for one in ten of the samples that moved at all. Too small a d_s would leave a moved dimension among those that
    are trusted, too large a one costs a dimension that could have been: with few samples the largest set decides.
    """
    size = size.sort(-1, descending=True).values
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
    return multiples(without.predict(x) - source.y[:, out], without.spread(x), level)


def flow_multiple(model: DenseModel, x: Tensor, y: Tensor, level: float) -> Tensor:
    """Return the multiple for the flow, from source samples (R, m, d) and their standardised numbers (R, m)."""
    mean, spread = model.moments(x)
    return multiples(mean - y, spread, level)
