"""The form in which a table or figure of the paper is declared: what to run, what was printed, what was claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.core.registry import Registry
from offsupport.results.intervals import Estimate

Verdict: TypeAlias = Literal["holds", "does-not-hold", "undecided"]
ENOUGH = 20
"""Fewer predictions decide nothing: the bootstrap of a handful that happen to agree has no width."""
SCALES = ("smoke", "small", "paper")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may change about a table; None leaves it to the table."""

    runs: int | None = None
    """Independent data sets, for synthetic tables."""
    seeds: int | None = None
    """Seeds 0, 1, ... of each cell."""
    methods: tuple[str, ...] | None = None
    """Only these."""


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


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper, held against what was measured."""

    claim: str
    verdict: Verdict
    evidence: Mapping[str, Any]
    cells: tuple[str, ...] = ()
    """Keys of the results behind it; for the report, not printed."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure.

    Args:
        name: What ``reproduce`` is given.
        title: One line for people.
        scales: The scales it can run at, with a line about each.
        options: The fields of :class:`Options` it knows.
        grid: The cells of a scale.
        rows: The numbers; from whatever results are there.
        claims: The claims that can be checked with these results.
        more: What else ``reproduce --json`` prints, by key; follows from the package alone.
    """

    name: str
    title: str
    scales: Mapping[str, str]
    options: frozenset[str]
    grid: Callable[[str, Options], list[Cell]]
    rows: Callable[[Sequence[Record]], list[Row]]
    claims: Callable[[Sequence[Record]], list[Claim]]
    more: Callable[[], Mapping[str, Any]] = dict


TABLES: Registry[Table] = Registry("table")


def cells_of(table: Table, scale: str, options: Options) -> list[Cell]:
    """Return the cells of a table; a scale or an option it does not have is an error that says what there is."""
    if scale not in table.scales:
        remedy = nearest(scale, table.scales) if scale not in SCALES else f"It has: {', '.join(table.scales)}."
        raise ConfigError(f"{table.name} has no scale {scale!r}.", remedy)
    for name, value in asdict(options).items():
        if value is not None and name not in table.options:
            known = ", ".join(f"--{option}" for option in sorted(table.options)) or "no options"
            raise ConfigError(f"{table.name} takes no --{name}.", f"It takes: {known}.")
    return table.grid(scale, options)


def payload(table: Table, scale: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return what ``reproduce --json`` prints."""
    return {
        "table": table.name,
        "scale": scale,
        "rows": [row_values(row) for row in table.rows(records)],
        "claims": [claim_values(claim) for claim in table.claims(records)],
        **table.more(),
    }


def row_values(row: Row) -> dict[str, Any]:
    """Return a row as plain values; a deviation only where there is one."""
    values = {name: value for name, value in asdict(row).items() if name != "deviation" or value is not None}
    del values["cells"]
    return values


def claim_values(claim: Claim) -> dict[str, Any]:
    """Return a claim as plain values."""
    return {"claim": claim.claim, "verdict": claim.verdict, "evidence": dict(claim.evidence)}


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
    verdict: Verdict = "undecided"
    if difference.n >= ENOUGH and difference.high < 0:
        verdict = "holds"
    elif difference.n >= ENOUGH and difference.low > 0:
        verdict = "does-not-hold"
    scale = 100 if unit == "percentage points" else 1
    evidence = {
        "quantity": quantity,
        "unit": unit,
        "value": scale * difference.value,
        "low": scale * difference.low,
        "high": scale * difference.high,
        "n": difference.n,
    }
    return Claim(claim=claim, verdict=verdict, evidence=evidence, cells=difference.cells)


def within(claim: str, difference: Estimate, margin: float, quantity: str) -> Claim:
    """Judge a claim that some difference of errors is smaller than ``margin`` in either direction."""
    ends = sorted((abs(difference.low), abs(difference.high)))
    nearest_end = 0.0 if difference.low <= 0 <= difference.high else ends[0]
    size = replace(difference, value=abs(difference.value) - margin, low=nearest_end - margin, high=ends[1] - margin)
    return below(claim, size, f"|{quantity}|, less {100 * margin:g} points")
