"""Rows and claims of the synthetic tables: one target per run, runs paired over methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from offsupport.bench.cell import Cell
from offsupport.bench.latent_cell import LatentConfig
from offsupport.bench.stats import Estimate, Floats, difference_estimate, mean_estimate
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.functional import wilson
from offsupport.latent.process import Process
from offsupport.paper.declare import Claim, Options, Row, below
from offsupport.paper.errors import Printed

SUPPORT_RADIUS = Process().radius
"""Where the source support of s ends, and with it, as c is continuous here, what Theorem 1 guarantees."""
BLOCK = 25
"""Runs per cell: small enough to resume, large enough to be batched."""
Outcomes = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By method, column and seed."""


def blocks(
    methods: Sequence[str], columns: Mapping[str, Sequence[float]], task: str, runs: int, options: Options
) -> list[Cell]:
    """Return the cells of a synthetic table: methods x kinds of shift x blocks of runs with seeds 0, 1, ..."""
    runs = options.runs or runs
    for method in options.methods or ():
        if method not in methods:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, methods))
    return [
        LatentConfig(
            method=method,
            shift=shift,  # type: ignore[arg-type]  # checked when the cell is prepared
            distances=list(distances),
            task=task,  # type: ignore[arg-type]
            first=first,
            runs=min(BLOCK, runs - first),
        ).cell()
        for first in range(0, runs, BLOCK)
        for shift, distances in columns.items()
        for method in options.methods or methods
    ]


def outcomes(records: Sequence[Record]) -> Outcomes:
    """Return what every run of every method gave: correctness, or squared error."""
    table: dict[str, dict[str, dict[int, float]]] = {}
    for record in records:
        config = record.cell.config
        seeds = range(config["first"], config["first"] + config["runs"])
        for at, distance in enumerate(config["distances"]):
            column = table.setdefault(config["method"], {}).setdefault(f"{config['shift']}-{distance:g}", {})
            column.update({seed: row[at] for seed, row in zip(seeds, record.deterministic["outcome"], strict=True)})
    return table


def synthetic_rows(records: Sequence[Record], printed: Printed) -> list[Row]:
    """Return the accuracy (Wilson interval) or the mean squared error (bootstrap over runs) of every column."""
    metric: Literal["accuracy", "mse"] = records[0].deterministic["metric"] if records else "accuracy"
    rows = []
    for method, columns in outcomes(records).items():
        for column, runs in columns.items():
            found = _accuracy(runs) if metric == "accuracy" else mean_estimate(_column(runs, sorted(runs)))
            rows.append(
                Row(
                    method=method,
                    column=column,
                    metric=metric,
                    unit="fraction",
                    value=found.value,
                    low=found.low,
                    high=found.high,
                    n=found.n,
                    paper=printed.get((method, column)),
                )
            )
    return rows


def below_by_column(records: Sequence[Record], pairs: Sequence[tuple[str, str, str]]) -> list[Claim]:
    """Check for each (a, b, shift), in every column of that shift, that a errs less than b on the same runs."""
    table = outcomes(records)
    accuracy = bool(records) and records[0].deterministic["metric"] == "accuracy"
    claims = []
    for better, worse, shift in pairs:
        shared = [name for name in table.get(better, {}) if name in table.get(worse, {})]
        for column in (name for name in shared if name.startswith(f"{shift}-")):
            ours, theirs = table[better][column], table[worse][column]
            seeds = sorted(ours.keys() & theirs.keys())
            a, b = _column(ours, seeds), _column(theirs, seeds)
            difference = difference_estimate(1 - a, 1 - b) if accuracy else difference_estimate(a, b)
            what = "error" if accuracy else "squared error"
            sentence = f"{better} has a lower {what} than {worse} at {column}"
            quantity = f"{what}({better}) - {what}({worse})"
            claims.append(below(sentence, difference, quantity, percent=accuracy))
    return claims


def _column(runs: Mapping[int, float], seeds: Sequence[int]) -> Floats:
    return np.array([[runs[seed]] for seed in seeds], dtype=np.float64)


def _accuracy(runs: Mapping[int, float]) -> Estimate:
    right = round(sum(runs.values()))
    low, high = wilson(right, len(runs))
    return Estimate(right / len(runs), low, high, len(runs))
