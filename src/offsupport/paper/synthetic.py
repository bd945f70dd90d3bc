"""Rows and claims of the synthetic tables: one or more targets per run, runs paired over methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from offsupport.bench.cell import Cell
from offsupport.bench.latent_cell import LatentConfig
from offsupport.bench.stats import Estimate, difference_estimate, mean_estimate
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.functional import wilson
from offsupport.latent.process import Process
from offsupport.latent.score import KL, TRANSDUCTIVE
from offsupport.paper.declare import Claim, Options, Row, below
from offsupport.paper.errors import Printed

SUPPORT_RADIUS = Process().radius
"""Where the source support of s ends, and with it, as c is continuous here, what Theorem 1 guarantees."""
BLOCK = 25
"""Runs per cell: small enough to resume, large enough to be batched."""
TRANSDUCTIVE_BLOCK = 50
"""The same for the methods that fit anew for every distance: their steps are small, so larger batches pay."""
TARGETS = 10
"""Targets per run of the methods whose fit does not depend on the target; the others fit anew for their only one."""


@dataclass(frozen=True)
class Column:
    """What one method gave at one distance, by seed: correctness or squared error.

    Attributes:
        mean: Mean over the targets of a run.
        first: The first target alone, which is the same whatever the number of targets.
        targets: Targets per run.
    """

    mean: dict[int, float]
    first: dict[int, float]
    targets: int


Outcomes = Mapping[str, Mapping[str, Column]]
"""By method and column."""


def blocks(
    methods: Sequence[str],
    columns: Mapping[str, Sequence[float]],
    task: Literal["classification", "regression"],
    runs: int,
    options: Options,
    **settings: Any,
) -> list[Cell]:
    """Return the cells of a synthetic table: methods x kinds of shift x blocks of runs with seeds 0, 1, ...

    Args:
        methods: The rows.
        columns: Distances by kind of shift.
        task: What is predicted.
        runs: How many, unless the options say otherwise.
        options: What the user asked for.
        **settings: Fields of :class:`LatentConfig` that hold for all cells.
    """
    for method in options.methods or ():
        if method not in methods:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, methods))
    return [
        cell
        for method in options.methods or methods
        for shift, distances in columns.items()
        for cell in method_blocks(method, shift, distances, options.runs or runs, task=task, **settings)
    ]


def method_blocks(method: str, shift: str, distances: Sequence[float], runs: int, **settings: Any) -> list[Cell]:
    """Return the cells of one method under one kind of shift."""
    fits_targets = method in TRANSDUCTIVE
    block = TRANSDUCTIVE_BLOCK if fits_targets else BLOCK
    defaults: dict[str, Any] = {"targets": 1 if fits_targets else TARGETS}
    if fits_targets:  # spelt out, so that the cell says all its result depends on
        defaults["options"] = {"kl": KL[method, settings["task"], shift]}
    return [
        LatentConfig(
            method=method,
            shift=shift,  # type: ignore[arg-type]  # checked when the cell is prepared
            distances=list(distances),
            first=first,
            runs=min(block, runs - first),
            **{**defaults, **settings},
        ).cell()
        for first in range(0, runs, block)
    ]


def outcomes(records: Sequence[Record]) -> Outcomes:
    """Return what every run of every method gave."""
    table: dict[str, dict[str, Column]] = {}
    for record in records:
        config, found = record.cell.config, record.deterministic
        seeds = range(config["first"], config["first"] + config["runs"])
        for at, distance in enumerate(config["distances"]):
            column = table.setdefault(config["method"], {}).setdefault(
                f"{config['shift']}-{distance:g}", Column({}, {}, config["targets"])
            )
            for part, name in ((column.mean, "outcome"), (column.first, "first_target")):
                rows = found.get(name, found["outcome"])
                part.update({seed: row[at] for seed, row in zip(seeds, rows, strict=True)})
    return table


def synthetic_rows(records: Sequence[Record], printed: Printed) -> list[Row]:
    """Return the accuracy or mean squared error of every column.

    Intervals are Wilson's for accuracies of one target per run, else from a bootstrap over runs.
    """
    metric = _metric(records)
    rows = []
    for method, columns in outcomes(records).items():
        for name, column in columns.items():
            found = estimate(column, metric)
            rows.append(
                Row(
                    method=method,
                    column=name,
                    metric=metric,
                    unit="fraction",
                    value=found.value,
                    low=found.low,
                    high=found.high,
                    n=len(column.mean) * column.targets,
                    paper=printed.get((method, name)),
                )
            )
    return rows


def estimate(column: Column, metric: str) -> Estimate:
    """Return the mean of a column; the runs are what is independent, not their targets."""
    values = list(column.mean.values())
    if metric == "accuracy" and column.targets == 1:
        right = round(sum(values))
        low, high = wilson(right, len(values))
        return Estimate(right / len(values), low, high, len(values))
    return mean_estimate(np.array(values)[:, None])


def below_by_column(
    records: Sequence[Record], pairs: Sequence[tuple[str, str, str]], margin: float = 0.0
) -> list[Claim]:
    """Check for each (a, b, shift), in every column of that shift, that a errs less than b on the same runs.

    Methods with the same number of targets per run are compared on all of them, others on the first one.

    Args:
        records: The results.
        pairs: Which methods under which shift.
        margin: How much more than b a may err, as a fraction or in squared units.
    """
    table, metric = outcomes(records), _metric(records)
    claims = []
    for better, worse, shift in pairs:
        shared = [name for name in table.get(better, {}) if name in table.get(worse, {})]
        for column in (name for name in shared if name.startswith(f"{shift}-")):
            found = _difference(table[better][column], table[worse][column], metric)
            what, over = _words(metric), f", or at most {margin:g} more," if margin else ""
            sentence = f"{better} has a lower {what}{over} than {worse} at {column}"
            quantity = f"{what}({better}) - {what}({worse})" + (f" - {margin:g}" if margin else "")
            claims.append(below(sentence, shifted(found, margin), quantity, percent=metric == "accuracy"))
    return claims


def bounded(records: Sequence[Record], method: str, bounds: Mapping[str, float]) -> list[Claim]:
    """Check that the error of a method is below a bound.

    Args:
        records: The results.
        method: Whose.
        bounds: Largest share of errors, or mean squared error, by column.
    """
    columns, metric = outcomes(records).get(method, {}), _metric(records)
    claims = []
    for name in (name for name in bounds if name in columns):
        found, what = estimate(columns[name], metric), _words(metric)
        if metric == "accuracy":
            found = Estimate(1 - found.value, 1 - found.high, 1 - found.low, found.n)
            sentence = f"{method} is right at least {1 - bounds[name]:.3g} of the time at {name}"
        else:
            sentence = f"{method} has a mean squared error of at most {bounds[name]:g} at {name}"
        quantity = f"{what}({method}) - {bounds[name]:.3g}"
        claims.append(below(sentence, shifted(found, bounds[name]), quantity, percent=metric == "accuracy"))
    return claims


def shifted(found: Estimate, by: float) -> Estimate:
    """Return an estimate less a constant."""
    return Estimate(found.value - by, found.low - by, found.high - by, found.n)


def _difference(ours: Column, theirs: Column, metric: str) -> Estimate:
    alike = ours.targets == theirs.targets
    a, b = (column.mean if alike else column.first for column in (ours, theirs))
    seeds = sorted(a.keys() & b.keys())
    left, right = (np.array([[values[seed]] for seed in seeds], dtype=np.float64) for values in (a, b))
    return difference_estimate(1 - left, 1 - right) if metric == "accuracy" else difference_estimate(left, right)


def _metric(records: Sequence[Record]) -> Literal["accuracy", "mse"]:
    metric: Literal["accuracy", "mse"] = records[0].deterministic["metric"] if records else "accuracy"
    return metric


def _words(metric: str) -> str:
    return "error" if metric == "accuracy" else "squared error"
