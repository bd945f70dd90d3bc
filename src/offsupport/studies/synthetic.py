"""Cells, rows and claims of the synthetic tables: one or more targets per run, runs paired over methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.functional import wilson
from offsupport.latent.process.process import Process
from offsupport.results.intervals import Estimate, difference_estimate, mean_estimate
from offsupport.results.rows import Claim, Row, below, shifted
from offsupport.studies.errors import Printed
from offsupport.studies.latent_runs import FLOWS, KL, TRANSDUCTIVE, LatentConfig
from offsupport.studies.tables import TableOptions

# What the runs of a synthetic table gave, by row and column, and the estimates behind its numbers and claims.


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


SUPPORT_RADIUS = Process().radius
"""Where the source support of s ends, and with it, as c is continuous here, what Theorem 1 guarantees."""
FIRST = 1000
"""Process seed of the first run: results of the seeds below were seen while the estimators were built."""
BLOCK = 25
"""Runs per cell: small enough to resume, large enough to be batched."""
TRANSDUCTIVE_BLOCK = 50
"""The same for the methods that fit anew for every distance: their steps are small, so larger batches pay."""
TARGETS = 10
"""Targets per run of the methods whose fit does not depend on the target; the others fit anew for their only one."""


PLAIN = Names()


def _row_with_options(config: Config) -> str:
    usual = KL.get((config["method"], config["task"], config["shift"]))
    options = {name: value for name, value in config["options"].items() if (name, value) != ("kl", usual)}
    return ", ".join([config["method"], *_settings(options)])


def _group_with_changes(config: Config) -> str:
    process = [] if config["process"] == "table" else [f"process={config['process']}"]
    return ", ".join([config["shift"], *process, *_settings(config["changes"])])


def _settings(values: Config) -> list[str]:
    words = {name: f"{value:g}" if isinstance(value, float) else value for name, value in sorted(values.items())}
    return [f"{name}={word}" for name, word in words.items()]  # 9.0 is 9, as in a stored cell


WITH_CHANGES = Names(_row_with_options, _group_with_changes)
"""Rows say which options, columns which process differs from Table 1."""


def blocks(
    methods: Sequence[str],
    columns: Mapping[str, Sequence[float]],
    task: Literal["classification", "regression"],
    runs: int,
    asked: TableOptions,
    **settings: Any,
) -> list[Cell]:
    """Return the cells of a synthetic table: methods x kinds of shift x blocks of runs, seeds from :data:`FIRST` on.

    Args:
        methods: The rows.
        columns: Distances by kind of shift.
        task: What is predicted.
        runs: How many, unless the user says otherwise.
        asked: What the user may change.
        **settings: Fields of :class:`LatentConfig` that hold for all cells.
    """
    for method in asked.methods or ():
        if method not in methods:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, methods))
    return [
        cell
        for method in asked.methods or methods
        for shift, distances in columns.items()
        for cell in method_blocks(method, shift, distances, asked.runs or runs, task=task, **settings)
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
            first=FIRST + done,
            runs=min(block, runs - done),
            **{**defaults, **settings},
        ).cell()
        for done in range(0, runs, block)
    ]


SMOKE_SOURCE = 4000
"""Source samples of a run where a table only shows that everything runs, instead of the 10,000 of Table 1."""
SMOKE_FLOW = {"rounds": 2}
"""How its flows are fitted there, beside their defaults: a third of the rounds."""


def made_quick(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells that take a third of the time: the same rows and runs, learnt from less and in fewer steps."""
    found = []
    for cell in cells:
        config = LatentConfig(**cell.config)
        flow = {"flow": SMOKE_FLOW} if config.method in FLOWS else {}
        changes, options = {**config.changes, "n_source": SMOKE_SOURCE}, {**config.options, **flow}
        found.append(replace(config, changes=changes, options=options).cell())
    return found


def without_repeats(cells: Sequence[Cell], kept: int) -> list[Cell]:
    """Leave out dense runs of the row that infers everything: its flows are those of ``extrapolator``, fitted again.

    Args:
        cells: Blocks of runs.
        kept: How many of its runs stay.
    """
    repeated = ("extrapolator-inferred", "dense")
    return [c for c in cells if (c.config["method"], c.config["shift"]) != repeated or c.config["first"] < FIRST + kept]


def synthetic_rows(records: Sequence[Record], printed: Printed, names: Names = PLAIN) -> list[Row]:
    """Return the accuracy or mean squared error of every column.

    Intervals are Wilson's for accuracies of one target per run, else from a bootstrap over runs.
    """
    metric = metric_of(records)
    rows = []
    for row, columns in outcomes(records, names).items():
        for name, column in columns.items():
            found = estimate(column, metric)
            rows.append(
                Row(
                    method=row,
                    column=name,
                    metric=metric,
                    unit="fraction" if metric == "accuracy" else "squared units",
                    value=found.value,
                    low=found.low,
                    high=found.high,
                    n=len(column.mean) * column.targets,
                    paper=printed.get((row, name)),
                    cells=found.cells,
                )
            )
    return rows


def below_by_column(
    records: Sequence[Record], pairs: Sequence[tuple[str, str, str]], margin: float = 0.0, names: Names = PLAIN
) -> list[Claim]:
    """Check for each (a, b, group), in every column of that group, that a errs less than b on the same runs.

    Args:
        records: The results.
        pairs: Which rows in which group of columns.
        margin: How much more than b a may err, as a fraction or in squared units.
        names: How the table names its rows and columns.
    """
    table, metric = outcomes(records, names), metric_of(records)
    claims = []
    for better, worse, group in pairs:
        shared = [name for name in table.get(better, {}) if name in table.get(worse, {})]
        for column in (name for name in shared if name.startswith(f"{group}-")):
            found = difference(table[better][column], table[worse][column], metric)
            what, over = _words(metric), f", or at most {margin:g} more," if margin else ""
            sentence = f"{better} has a lower {what}{over} than {worse} at {column}"
            quantity = f"{what}({better}) - {what}({worse})" + (f" - {margin:g}" if margin else "")
            claims.append(below(sentence, shifted(found, margin), quantity, unit=_unit(metric)))
    return claims


def bounded(records: Sequence[Record], method: str, bounds: Mapping[str, float]) -> list[Claim]:
    """Check that the error of a method is below a bound.

    Args:
        records: The results.
        method: Whose.
        bounds: Largest share of errors, or mean squared error, by column.
    """
    columns, metric = outcomes(records, PLAIN).get(method, {}), metric_of(records)
    claims = []
    for name in (name for name in bounds if name in columns):
        found = estimate(columns[name], metric)
        if metric == "accuracy":
            found = Estimate(1 - found.value, 1 - found.high, 1 - found.low, found.n, found.cells)
            sentence = f"{method} is right at least {1 - bounds[name]:.3g} of the time at {name}"
        else:
            sentence = f"{method} has a mean squared error of at most {bounds[name]:g} at {name}"
        quantity = f"{_words(metric)}({method}) - {bounds[name]:.3g}"
        claims.append(below(sentence, shifted(found, bounds[name]), quantity, unit=_unit(metric)))
    return claims


def _words(metric: Metric) -> str:
    return "error" if metric == "accuracy" else "squared error"


def _unit(metric: Metric) -> Literal["percentage points", "squared units"]:
    return "percentage points" if metric == "accuracy" else "squared units"
