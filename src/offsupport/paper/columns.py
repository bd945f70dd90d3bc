"""What the runs of a synthetic table gave, by row and column, and the estimates behind its numbers and claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from offsupport.bench.stats import Estimate, difference_estimate, mean_estimate
from offsupport.bench.store import Record
from offsupport.functional import wilson

Metric = Literal["accuracy", "mse"]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """What one method gave at one distance, by seed: correctness or squared error.

    Attributes:
        mean: Mean over the targets of a run.
        first: The first target alone, which is the same whatever the number of targets.
        targets: Targets per run.
        cells: Keys of the results behind it.
    """

    mean: dict[int, float]
    first: dict[int, float]
    targets: int
    cells: list[str] = field(default_factory=list)


Outcomes = Mapping[str, Mapping[str, Column]]
"""By row and column."""


@dataclass(frozen=True)
class Names:
    """How a table names what it shows.

    Attributes:
        row: The row of a cell, from its settings.
        group: The first part of the names of its columns; the distance is the second.
    """

    row: Callable[[Config], str] = lambda config: str(config["method"])
    group: Callable[[Config], str] = lambda config: str(config["shift"])


def outcomes(records: Sequence[Record], names: Names) -> Outcomes:
    """Return what every run gave, by row and column."""
    table: dict[str, dict[str, Column]] = {}
    for record in (record for record in records if record.cell.kind == "latent"):
        config, found = record.cell.config, record.deterministic
        seeds = range(config["first"], config["first"] + config["runs"])
        row = table.setdefault(names.row(config), {})
        for at, distance in enumerate(config["distances"]):
            column = row.setdefault(f"{names.group(config)}-{distance:g}", Column({}, {}, config.get("targets", 1)))
            column.cells.append(record.key)
            for part, name in ((column.mean, "outcome"), (column.first, "first_target")):
                values = found.get(name, found["outcome"])
                part.update({seed: value[at] for seed, value in zip(seeds, values, strict=True)})
    return table


def estimate(column: Column, metric: Metric) -> Estimate:
    """Return the mean of a column; the runs are what is independent, not their targets."""
    values = list(column.mean.values())
    if metric == "accuracy" and column.targets == 1:
        right = round(sum(values))
        low, high = wilson(right, len(values))
        return Estimate(right / len(values), low, high, len(values), tuple(column.cells))
    return replace(mean_estimate(np.array(values)[:, None]), cells=tuple(column.cells))


def difference(ours: Column, theirs: Column, metric: Metric) -> Estimate:
    """Return how much more ours errs than theirs on the same runs, and on the same targets.

    Columns with the same number of targets per run are compared on all of them, others on the first.
    """
    alike = ours.targets == theirs.targets
    a, b = (column.mean if alike else column.first for column in (ours, theirs))
    seeds = sorted(a.keys() & b.keys())
    left, right = (np.array([[values[seed]] for seed in seeds], dtype=np.float64) for values in (a, b))
    pair = (1 - left, 1 - right) if metric == "accuracy" else (left, right)
    return replace(difference_estimate(*pair), cells=(*ours.cells, *theirs.cells))


def shifted(found: Estimate, by: float) -> Estimate:
    """Return an estimate less a constant."""
    return replace(found, value=found.value - by, low=found.low - by, high=found.high - by)


def metric_of(records: Sequence[Record]) -> Metric:
    """Return what was measured; all records of a table agree."""
    found: list[Metric] = [r.deterministic["metric"] for r in records if r.cell.kind == "latent"]
    return found[0] if found else "accuracy"


def radii_of(records: Sequence[Record]) -> dict[str, dict[str, list[float]]]:
    """Return the Theorem 1 radius of every run, by shift and way of computing it; empty if not measured."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in (record for record in records if record.cell.kind == "radius"):
        for way, values in record.deterministic["radius"].items():
            found.setdefault(str(record.cell.config["shift"]), {}).setdefault(way, []).extend(values)
    return found


def median_radii(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return the median over runs of the Theorem 1 radius, by shift and way of computing it."""
    return {
        shift: {way: float(np.median(values)) for way, values in ways.items()}
        for shift, ways in radii_of(records).items()
    }
