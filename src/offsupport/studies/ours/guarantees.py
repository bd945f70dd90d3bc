"""What the two theorems promise where their assumptions hold, and what is missing where they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.functional import wilson
from offsupport.results.intervals import Estimate, Floats, bootstrap, mean_estimate
from offsupport.results.rows import Claim, Row, at_least, negated
from offsupport.studies.guarantee_runs import GuaranteeConfig
from offsupport.studies.tables import Table, TableOptions, register_table

RUNS = {"smoke": 2, "small": 25, "paper": 100}
BLOCKS = {"sparse": 5, "inside": 25, "gap": 25}
"""Runs per cell: a flow is fitted fastest for many runs at once."""
CEILING, IDENTIFIED = 0.95, 0.9
"""The share of the accuracy given c that a guarantee asks for, and the least R^2 of c from c_hat."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; the smoke scale leaves out the flows, which take minutes."""
    runs = options.runs or RUNS[scale]
    return [
        GuaranteeConfig(study=study, first=first, runs=min(block, runs - first)).cell()  # type: ignore[arg-type]
        for study, block in BLOCKS.items()
        if scale != "smoke" or study != "gap"
        for first in range(0, runs, block)
    ]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the accuracies, with intervals by a bootstrap over runs."""
    targets = records[0].cell.config["targets"] if records else 0
    return [
        Row(
            method=method,
            column=column,
            metric="accuracy",
            unit="fraction",
            value=(found := mean_estimate(values)).value,
            low=found.low,
            high=found.high,
            n=len(values) * targets,
            cells=tuple(r.key for r in records if column in r.deterministic["accuracy"].get(method, {})),
        )
        for method, columns in _accuracies(records).items()
        for column, values in columns.items()
    ]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Check the guarantees, and what explains the distance of the dense estimator to its oracle."""
    table, scores = _accuracies(records), _scores(records)
    reached = [
        at_least(
            f"extrapolator reaches {CEILING:g} of the accuracy given c at {column}",
            _ratio(values, table["given-c"][column]),
            CEILING,
            "accuracy(extrapolator) / accuracy(given-c)",
        )
        for column, values in table.get("extrapolator", {}).items()
        if column in table.get("given-c", {})
    ]
    if "r2_c" in scores:
        sentence = f"c_hat of sparse targets tells c: R^2 at least {IDENTIFIED:g}"
        reached.append(at_least(sentence, mean_estimate(scores["r2_c"]), IDENTIFIED, "R^2(c from c_hat)"))
    if "gap" in scores:
        reached += _explained(records, table["extrapolator"], scores)
    return reached


def _explained(records: Sequence[Record], table: Mapping[str, Floats], scores: Mapping[str, Floats]) -> list[Claim]:
    short = "the dense fit stops short of the true likelihood"
    begun = "begun at the truth, the same fit stays within 0.1 nats of the true likelihood"
    found = [
        at_least(short, mean_estimate(scores["gap"]), 0.0, "NLL(fitted) - NLL(true), nats"),
        at_least(begun, negated(mean_estimate(scores["gap_oracle"])), -0.1, "NLL(true) - NLL(begun at truth), nats"),
    ]
    for column in ("dense-3.5", "dense-5", "dense-12"):
        sentence = f"runs that miss less likelihood are more accurate at {column}"
        quantity = "correlation of accuracy and -gap over runs"
        found.append(at_least(sentence, _correlation(-scores["gap"], table[column]), 0.0, quantity))
    return found + _failing(records)


def _failing(records: Sequence[Record]) -> list[Claim]:
    gaps = [record for record in records if record.cell.config["study"] == "gap"]
    runs = sum(record.cell.config["runs"] for record in gaps)
    counts: dict[str, int] = {}
    for record in gaps:
        for name, count in record.deterministic["failing"].items():
            counts[name] = counts.get(name, 0) + count
    return [
        at_least(
            f"Theorem 1 does not apply at dense-12: assumption {name} fails",
            Estimate(count / runs, *wilson(count, runs), runs),
            0.5,
            "share of the runs in which diagnose finds a witness",
        )
        for name, count in counts.items()
    ]


def _ratio(a: Floats, b: Floats) -> Estimate:
    return _paired(a, b, lambda pair: pair[..., 0] / pair[..., 1])


def _paired(a: Floats, b: Floats, combine: Callable[[Floats], Floats]) -> Estimate:
    """Combine two means over the same runs, with a bootstrap over runs."""
    both = np.concatenate([a, b], axis=1)
    low, high = np.quantile(combine(bootstrap(both)), [0.025, 0.975])
    return Estimate(float(combine(both.mean(axis=0))), float(low), float(high), len(both))


def _correlation(a: Floats, b: Floats) -> Estimate:
    """Correlate two columns over runs: from the means of a, b, a^2, b^2 and a b, bootstrapped over runs."""
    moments = np.concatenate([a, b, a * a, b * b, a * b], axis=1)

    def correlation(m: Floats) -> Floats:
        spread = np.sqrt((m[..., 2] - m[..., 0] ** 2) * (m[..., 3] - m[..., 1] ** 2))
        return np.asarray((m[..., 4] - m[..., 0] * m[..., 1]) / np.maximum(spread, 1e-12))

    low, high = np.quantile(correlation(bootstrap(moments)), [0.025, 0.975])
    return Estimate(float(correlation(moments.mean(axis=0))), float(low), float(high), len(a))


def _accuracies(records: Sequence[Record]) -> dict[str, dict[str, Floats]]:
    """Return one accuracy per run, (runs, 1), by method and column, runs in the order of their seeds."""
    table: dict[str, dict[str, list[float]]] = {}
    for record in _ordered(records):
        for method, columns in record.deterministic["accuracy"].items():
            for column, values in columns.items():
                table.setdefault(method, {}).setdefault(column, []).extend(values)
    return {m: {c: _column(values) for c, values in columns.items()} for m, columns in table.items()}


def _scores(records: Sequence[Record]) -> dict[str, Floats]:
    found: dict[str, list[float]] = {}
    for record in _ordered(records):
        for name, values in record.deterministic["scores"].items():
            found.setdefault(name, []).extend(values)
    return {name: _column(values) for name, values in found.items()}


def _ordered(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: int(record.cell.config["first"]))


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)[:, None]


register_table(
    Table(
        name="guarantees",
        title="Where the theorems speak: accuracy against that given c, identifiability, and the likelihood gap",
        scales={
            scale: f"{runs} runs of every study" + (", without flows" if scale == "smoke" else "")
            for scale, runs in RUNS.items()
        },
        options=frozenset({"runs"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
