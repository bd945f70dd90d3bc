"""Table 1 beside the readings of its text: which of the printed numbers can be had, and how.

The text leaves open how the generator is drawn, whether x is standardised, whether a class has one c, how often the
target is seen, and which likelihood is meant. Every reading is run with everything else as published. What choosing the
weight of the KL term and the epoch by the accuracy on the targets themselves gives is computed from the same fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.seeds import derive_seed
from offsupport.functional import wilson
from offsupport.results.intervals import RESAMPLES, Estimate, Floats
from offsupport.results.rows import Claim, Row, at_least, within
from offsupport.studies.latent_runs import EpochsConfig
from offsupport.studies.paper.table1 import PRINTED
from offsupport.studies.synthetic import FIRST, PLAIN, blocks, estimate, outcomes
from offsupport.studies.tables import Table, TableOptions, register_table

RUNS = {"smoke": 2, "small": 100}
BLOCK = 25
PRINTED_RUNS = 50
"""Runs that the printed accuracies are over: who chooses by them chooses by so many."""
KL = (0.1, 0.01, 0.001)
CLOSE = 0.12
"""How near a printed number counts as had: about one and three quarters of the standard errors of 50 runs."""
TORCH: dict[str, Any] = {"activation": "relu", "weights": "torch", "width": 32}
"""A generator of ``torch.nn.Linear`` layers as they start, ReLU, 32 hidden units."""
RAW: dict[str, Any] = {"standardise": False}
COLUMNS = {"dense": (12.0, 18.0, 24.0, 30.0), "sparse": (18.0, 24.0, 30.0, 36.0)}
VAE_COLUMNS = {"dense": 12.0, "sparse": 18.0}
"""``vae`` is fitted anew for every distance: one column of each kind, the nearest."""


@dataclass(frozen=True)
class Reading:
    """One way to read the text.

    Attributes:
        name: What differs from the published words that leave no choice.
        changes: Fields of the process.
        options: Fields of the estimator.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


ONLY_SOURCE = (
    Reading("leaky square generator, x standardised (Table 1 here)"),
    Reading("ReLU 32, initialised by torch, x standardised", TORCH),
    Reading("ReLU 32, initialised by torch, x as it is", TORCH, RAW),
)
WEIGHTS = tuple(Reading(f"ReLU 32, KL weight {kl:g}", TORCH, {**RAW, "kl": kl}) for kl in KL)
"""The readings that differ in nothing but what the paper says was tuned; the others keep the middle weight."""
VAE = (
    *WEIGHTS,
    Reading("ReLU 32, one c per class", {**TORCH, "embedding": "fixed"}, {**RAW, "kl": 0.01}),
    Reading("ReLU 32, target once per epoch", TORCH, {**RAW, "kl": 0.01, "target_every": 40}),
    Reading("ReLU 32, likelihood of the classes", TORCH, {**RAW, "kl": 0.01, "prior": "classes"}),
    Reading("ReLU 32, s of deviation 5 cut at 10", {**TORCH, "s_sd": 5.0, "radius": 10.0}, {**RAW, "kl": 0.01}),
    Reading("ReLU 32, x standardised", TORCH, {"kl": 0.01}),
    Reading("leaky square generator, x standardised", {}, {"kl": 0.01}),
)
CHOSEN = "KL weight and epoch chosen by target accuracy"
ELSEWHERE = "the same choice, scored on other runs"
PER_RUN = "epoch chosen by target accuracy, run by run"


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; nothing but the package is needed at any scale."""
    runs = options.runs or RUNS[scale]
    plain = TableOptions(runs=runs)
    cells = [
        cell
        for reading in ONLY_SOURCE
        for cell in blocks(
            ("only-source",),
            COLUMNS,
            "classification",
            runs,
            plain,
            changes=dict(reading.changes),
            options=dict(reading.options),
        )
    ]
    return cells + [
        EpochsConfig(
            shift=shift,  # type: ignore[arg-type]  # checked when the cell is prepared
            distances=[distance],
            changes=dict(reading.changes),
            options=dict(reading.options),
            first=FIRST + done,
            runs=min(BLOCK, runs - done),
        ).cell()
        for reading in VAE
        for shift, distance in VAE_COLUMNS.items()
        for done in range(0, runs, BLOCK)
    ]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the accuracy of every reading, and of what choosing by the targets gives."""
    found = [_row(f"only-source: {name}", column, e) for name, column, e in _only_source(records)]
    found += [_row(f"vae: {name}", column, e) for name, column, e in _vae(records)]
    return found + [_row(f"vae: {name}", column, e) for name, column, e in _choices(records)]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Check which readings come near the printed numbers of only-source, and which reach those of ``vae``."""
    found = []
    for name, column, e in _only_source(records):
        printed = PRINTED["only-source", column]
        gap = replace(e, value=e.value - printed, low=e.low - printed, high=e.high - printed)
        sentence = f"only-source is within {CLOSE:g} of the printed {printed:g} at {column} ({name})"
        found.append(within(sentence, gap, CLOSE, "accuracy - printed"))
    for name, column, e in (*_vae(records), *_choices(records)):
        printed = PRINTED["vae", column]
        found.append(at_least(f"vae reaches the printed {printed:g} at {column} ({name})", e, printed, "accuracy"))
    return found


def _row(method: str, column: str, found: Estimate) -> Row:
    printed = PRINTED.get((method.partition(":")[0], column))
    return Row(
        method=method,
        column=column,
        metric="accuracy",
        unit="fraction",
        value=found.value,
        low=found.low,
        high=found.high,
        n=found.n,
        paper=printed,
        cells=found.cells,
    )


def _named(readings: Sequence[Reading], config: Mapping[str, Any]) -> str | None:
    for reading in readings:
        if config["changes"] == dict(reading.changes) and config["options"] == dict(reading.options):
            return reading.name
    return None


def _only_source(records: Sequence[Record]) -> Iterator[tuple[str, str, Estimate]]:
    names = replace(PLAIN, row=lambda config: _named(ONLY_SOURCE, config) or "")
    for name, columns in outcomes(records, names).items():
        for column, outcome in columns.items():
            found = estimate(outcome, "accuracy")
            yield name, column, replace(found, n=len(outcome.mean) * outcome.targets)


def _by_epoch(records: Sequence[Record]) -> dict[tuple[str, str], tuple[Floats, tuple[str, ...]]]:
    """Return by reading and column which runs were right after which epoch, (runs, epochs), and the cells behind it."""
    found: dict[tuple[str, str], dict[int, tuple[list[float], str]]] = {}
    for record in (record for record in records if record.cell.kind == "epochs"):
        config = record.cell.config
        name = _named(VAE, config)
        for at, distance in enumerate(config["distances"]):
            runs = found.setdefault((str(name), f"{config['shift']}-{distance:g}"), {})
            for run, right in enumerate(record.deterministic["right"]):
                runs[config["first"] + run] = right[at], record.key
    return {
        key: (
            np.array([runs[seed][0] for seed in sorted(runs)], dtype=np.float64),
            tuple(dict.fromkeys(key for _, key in runs.values())),
        )
        for key, runs in found.items()
    }


def _vae(records: Sequence[Record]) -> Iterator[tuple[str, str, Estimate]]:
    for (name, column), (right, cells) in _by_epoch(records).items():
        last = right[:, -1]
        low, high = wilson(round(last.sum()), len(last))
        yield name, column, Estimate(float(last.mean()), low, high, len(last), cells)


def _choices(records: Sequence[Record]) -> Iterator[tuple[str, str, Estimate]]:
    """Yield what choosing by the targets gives, for the column of each kind that all KL weights have."""
    found = _by_epoch(records)
    for column in dict.fromkeys(column for _, column in found):
        parts = [found[reading.name, column] for reading in WEIGHTS if (reading.name, column) in found]
        if len(parts) < len(WEIGHTS):
            continue
        right = np.concatenate([part for part, _ in parts], axis=1)  # (runs, weights x epochs)
        cells = tuple(key for _, keys in parts for key in keys)
        yield CHOSEN, column, replace(_chosen(right), cells=cells)
        yield ELSEWHERE, column, replace(_elsewhere(right), cells=cells)
        middle, keys = parts[1]
        any_right = middle.max(1)
        low, high = wilson(round(any_right.sum()), len(any_right))
        yield PER_RUN, column, Estimate(float(any_right.mean()), low, high, len(any_right), keys)


def _chosen(right: Floats) -> Estimate:
    """Return the highest accuracy of any candidate over as many runs as were printed, with a bootstrap over runs."""
    runs = min(PRINTED_RUNS, len(right))
    generator = np.random.default_rng(derive_seed("readings", "chosen"))
    drawn = generator.integers(0, len(right), size=(RESAMPLES, runs))
    best = right[drawn].mean(1).max(1)
    low, high = np.quantile(best, [0.025, 0.975])
    sets = [right[start : start + runs].mean(0).max() for start in range(0, len(right) - runs + 1, runs)]
    return Estimate(float(np.mean(sets)), float(low), float(high), len(right))


def _elsewhere(right: Floats) -> Estimate:
    """Return the accuracy of the candidate that is best on one half of the runs, on the other half."""
    halves = right[: len(right) // 2], right[len(right) // 2 :]
    scored = np.concatenate(
        [there[:, here.mean(0).argmax()] for here, there in (halves, halves[::-1]) if len(here) and len(there)]
    )
    low, high = wilson(round(scored.sum()), len(scored))
    return Estimate(float(scored.mean()), low, high, len(scored))


register_table(
    Table(
        name="readings",
        title="Table 1 beside the readings of its text: only-source and vae",
        scales={scale: f"{runs} runs of every reading, the same seeds" for scale, runs in RUNS.items()},
        options=frozenset({"runs"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
