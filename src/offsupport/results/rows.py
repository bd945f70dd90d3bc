"""Rows and claims: the numbers of a table with their intervals, and sentences held against them.

They keep their types from the results to the page. JSON is made of them at the edge alone, by ``to_dict``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from offsupport.results.intervals import Estimate

Verdict: TypeAlias = Literal["holds", "does-not-hold", "undecided"]
ENOUGH = 20
"""Fewer predictions decide nothing: the bootstrap of a handful that happen to agree has no width."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a table, as the paper prints such numbers."""

    method: str
    column: str
    metric: Literal["accuracy", "error", "mse", "log-likelihood"]
    unit: Literal["fraction", "percent", "squared units", "nats"]
    value: float
    low: float
    high: float
    n: int
    """Predictions behind the value."""
    paper: float | None = None
    """The printed number."""
    deviation: float | None = None
    """Standard deviation over seeds, in tables that state it."""
    cells: tuple[str, ...] = ()
    """Keys of the results behind it; for the report, not printed."""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints; a deviation only where there is one."""
        values = asdict(self)
        del values["cells"]
        if self.deviation is None:
            del values["deviation"]
        return values


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a verdict rests on: a quantity that was measured, with its interval."""

    quantity: str
    """What was subtracted from what, or divided by what."""
    unit: str
    value: float
    low: float
    high: float
    n: int
    """Predictions, or runs, behind the value."""
    bound: float = 0.0
    """What the claim allows, in the unit; it was subtracted from the value and its interval. For the report."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper, or of ours, held against what was measured."""

    claim: str
    verdict: Verdict
    evidence: Evidence
    cells: tuple[str, ...] = ()
    """Keys of the results behind it; for the report, not printed."""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints: values less the bound, as ``quantity`` says."""
        evidence = asdict(self.evidence)
        del evidence["bound"]
        return {"claim": self.claim, "verdict": self.verdict, "evidence": evidence}


@dataclass(frozen=True)
class Listing:
    """What a table lists beside its rows, such as hyper-parameters.

    Args:
        name: Its key in JSON.
        columns: What each value of a line is.
        lines: The values; all lines are as long as ``columns``.
        filters: Columns by which a page offers to leave lines out.
    """

    name: str
    columns: tuple[str, ...]
    lines: Sequence[tuple[Any, ...]]
    filters: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the lines with their values by column."""
        return [dict(zip(self.columns, line, strict=True)) for line in self.lines]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All that was measured by the cells of a run: of a table, or of a grid of the user's own."""

    rows: Sequence[Row]
    claims: Sequence[Claim] = ()
    listings: Sequence[Listing] = ()
    table: str = ""
    """Name of the table; empty for a grid of the user's own."""
    scale: str = ""
    """The scale it ran at; empty likewise."""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``reproduce --json`` prints."""
        asked = {"table": self.table, "scale": self.scale} if self.table else {}
        return {
            **asked,
            "rows": [row.to_dict() for row in self.rows],
            "claims": [claim.to_dict() for claim in self.claims],
            **{listing.name: listing.to_dicts() for listing in self.listings},
        }


# Verdicts: decided only where the interval leaves no doubt.


def shifted(found: Estimate, by: float) -> Estimate:
    """Return an estimate less a bound, which it remembers."""
    value, low, high = found.value - by, found.low - by, found.high - by
    return replace(found, value=value, low=low, high=high, bound=found.bound + by)


def negated(found: Estimate) -> Estimate:
    """Return an estimate of the negative: its bounds change places."""
    return replace(found, value=-found.value, low=-found.high, high=-found.low)


def below(
    claim: str,
    difference: Estimate,
    quantity: str,
    *,
    unit: Literal["percentage points", "squared units", "nats"] = "percentage points",
) -> Claim:
    """Judge a claim that some difference of errors is negative: decided only when its interval excludes zero.

    Args:
        claim: The sentence.
        difference: What was measured.
        quantity: What was subtracted from what.
        unit: What it is shown in; fractions are shown as percentage points, everything else as it is.
    """
    scale = 100 if unit == "percentage points" else 1
    evidence = Evidence(
        quantity=quantity,
        unit=unit,
        value=scale * difference.value,
        low=scale * difference.low,
        high=scale * difference.high,
        n=difference.n,
        bound=scale * difference.bound,
    )
    verdict = _verdict(difference.n, holds=difference.high < 0, fails=difference.low > 0)
    return Claim(claim=claim, verdict=verdict, evidence=evidence, cells=difference.cells)


def within(claim: str, difference: Estimate, margin: float, quantity: str) -> Claim:
    """Judge a claim that some difference of errors is smaller than ``margin`` in either direction."""
    ends = sorted((abs(difference.low), abs(difference.high)))
    # An interval that holds zero reaches down to it in size, however far away both of its ends are.
    nearest_end = 0.0 if difference.low <= 0 <= difference.high else ends[0]
    size = replace(difference, value=abs(difference.value), low=nearest_end, high=ends[1])
    return below(claim, shifted(size, margin), f"|{quantity}|, less {100 * margin:g} points")


def at_least(claim: str, found: Estimate, threshold: float, quantity: str) -> Claim:
    """Judge a claim that some quantity reaches a threshold; it is shown as it is, not as a difference."""
    evidence = Evidence(quantity=quantity, unit=quantity, value=found.value, low=found.low, high=found.high, n=found.n)
    verdict = _verdict(found.n, holds=found.low >= threshold, fails=found.high < threshold)
    return Claim(claim=claim, verdict=verdict, evidence=evidence, cells=found.cells)


def _verdict(n: int, *, holds: bool, fails: bool) -> Verdict:
    if n < ENOUGH:
        return "undecided"
    return "holds" if holds else "does-not-hold" if fails else "undecided"
