"""Plug-in: the sparsity constraint on top of each method, by the defaults and as published; and what it leaves behind.

The paper calls the constraint a versatile module for existing methods, and reports it on TeSLA. Here it stands on every
family of methods, each against itself without it on the same images: with the defaults of this library, with its
updates alone, and with the values published for TeSLA on CIFAR-10. That the change is minimal is asked of the network
that a stream leaves behind: how far its weights went, and what it makes of clean images then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.engine.sparsity import SUFFIX
from offsupport.results.intervals import Estimate, difference_estimate
from offsupport.results.rows import Claim, Listing, Row, below, shifted
from offsupport.studies.adaptation import CALIBRATION, AdaptConfig
from offsupport.studies.errors import Part, difference, error_row, estimate, parts_of, row_name
from offsupport.studies.ours.ablation import CORRUPTIONS
from offsupport.studies.ours.tuning_sc import PUBLISHED
from offsupport.studies.paper.table2 import MODEL
from offsupport.studies.tables import Table, TableOptions, register_table

MINIMAL = {"statistics": "minimal"}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{method: (method, {}) for method in ("tent", "shot", "eata", "sar", "ttac", "tesla")},
    row_name("tent", MINIMAL): ("tent", MINIMAL),
}
"""What the constraint is put on: a method and its hyper-parameters, by the name of its row."""
IMAGES, BATCH, CLEAN = 1280, 32, 1000
"""Of each corruption, forty batches; and clean ones that the network is asked about afterwards."""
ALONE: dict[str, Any] = {"freeze_base": True, "ratio_l": 1.0}
"""The updates in place of what a method adapts by itself, at its step size: the least that can change."""
FORMS = {"updates alone": ALONE, "as published": PUBLISHED}
"""What the rows of other forms than the default are called."""
HARM = 0.003
"""The constraint may cost so much before it is said to harm."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: bases without the constraint and with each form of it, on one corruption of each family."""
    for name in options.methods or ():
        if name not in BASES:
            raise ConfigError(f"This table has no method {name!r}.", nearest(name, BASES))
    data: dict[str, Any] = {"dataset": "cifar10-c", "model": MODEL, "limit": IMAGES, "afterwards": CLEAN}
    if scale == "smoke":
        data = {"dataset": "digits-c", "model": "digits-small", "limit": 256, "afterwards": 200}
    return [
        AdaptConfig(
            method=method,
            hyper=hyper,
            corruption=corruption,
            seed=seed,
            batch_size=BATCH,
            **data,
            **(CALIBRATION if scale == "small" and hyper.get("statistics") else {}),
        ).cell()
        for name in options.methods or BASES
        for method, hyper in _arms(name)
        for corruption in (CORRUPTIONS[::2] if scale == "smoke" else CORRUPTIONS)
        for seed in range(options.seeds or 1)
    ]


def _arms(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a base and the same with the constraint; but for statistics of ours, also with its other forms."""
    method, hyper = BASES[name]
    others: list[dict[str, Any]] = [] if hyper else [ALONE, PUBLISHED]
    return [(method, hyper), *((method + SUFFIX, each) for each in (hyper, *others))]


Found = dict[str, list[Part]]
"""Results by row."""


def _label(record: Record) -> str:
    method, hyper = record.cell.config["method"], record.cell.config["hyper"]
    word = next((word for word, other in FORMS.items() if hyper == other), "")
    return f"{method}, {word}" if word else row_name(method, hyper)


def by_row(records: Sequence[Record]) -> Found:
    """Sort results by the names of their rows."""
    found: Found = {}
    for part in parts_of(records):
        found.setdefault(_label(part.record), []).append(part)
    return found


def afterwards(parts: Sequence[Part]) -> list[Part]:
    """Return, for each of some results, the answers on clean images of the network that was left behind."""
    left = [{"domains": {"clean": part.record.deterministic["afterwards"]}} for part in parts]
    return [Part(replace(part.record, deterministic=each), "clean") for part, each in zip(parts, left, strict=True)]


def whole_rows(records: Sequence[Record]) -> Found:
    """Return the rows that have every corruption that any has: averages of others would compare different things."""
    found = by_row(records)
    domains = {part.domain for parts in found.values() for part in parts}
    return {name: parts for name, parts in found.items() if {part.domain for part in parts} == domains}


def _paired(found: Found, arm: str, base: str) -> tuple[list[Part], list[Part]]:
    """Return the results of two rows on the seeds that both have, corruption by corruption."""
    ours, theirs = ({(part.domain, part.record.cell.config["seed"]): part for part in found[n]} for n in (arm, base))
    return [ours[key] for key in ours if key in theirs], [theirs[key] for key in ours if key in theirs]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error on each corruption, on all of them, and on clean images afterwards."""
    made, whole = [], whole_rows(records)
    for name, parts in by_row(records).items():
        for domain in dict.fromkeys(part.domain for part in parts):
            one = [part for part in parts if part.domain == domain]
            made.append(error_row(name, f"{parts[0].dataset}/{domain.partition('/')[0]}", one, {}))
        if name in whole:
            made.append(error_row(name, f"{parts[0].dataset}/avg", parts, {}))
            made.append(error_row(name, "clean afterwards", afterwards(parts), {}))
    return made


def claims(records: Sequence[Record]) -> list[Claim]:
    """Ask of each base whether the constraint does harm, helps, moves the weights less and keeps more of the source."""
    found, made = whole_rows(records), []
    for name, (method, hyper) in BASES.items():
        ours = row_name(method + SUFFIX, hyper)
        for arm in (ours, *(f"{ours}, {word}" for word in FORMS)):
            if name not in found or arm not in found:
                continue
            both = _paired(found, arm, name)
            cost = difference(*both)
            limit, quantity = f"{100 * HARM:g} points", f"error({arm}) - error({name})"
            harm = shifted(cost, HARM)
            made.append(below(f"{arm} errs at most {limit} more than {name}", harm, f"{quantity} - {limit}"))
            made.append(below(f"{arm} errs less than {name}", cost, quantity))
            moved = _moved_apart(*both)
            made.append(below(f"{arm} moves the weights less than {name}", moved, f"change({arm}) - change({name})"))
            left = difference(*map(afterwards, both))
            made.append(below(f"{arm} leaves a lower error on clean images than {name}", left, f"clean {quantity}"))
    return made


def _moved_apart(ours: Sequence[Part], theirs: Sequence[Part]) -> Estimate:
    """Return how much more of their size the parameters of one side moved by; resampled are parameters."""
    sides = [[part.record.deterministic["afterwards"]["changes"] for part in side] for side in (ours, theirs)]
    names = [name for name in sides[0][0] if all(name in each for side in sides for each in side)]
    one, other = (np.array([[each[name] for each in side] for name in names]) for side in sides)
    return replace(difference_estimate(one, other), cells=tuple(part.record.key for part in (*ours, *theirs)))


def summary(records: Sequence[Record]) -> list[Listing]:
    """Return, row by row, the error, how far the weights went and what is left of the source model, all in percent.

    With the constraint, also how much more than without it, with intervals.
    """
    found, lines = whole_rows(records), []
    for name, parts in found.items():
        left = [part.record.deterministic["afterwards"] for part in parts]
        mean = {word: 100 * fmean(each[word] for each in left) for word in ("change", "disagreement")}
        # Without the constraint: the form stands behind a comma, the hyper-parameters in brackets.
        base = name.partition(",")[0].replace(SUFFIX, "")
        both = _paired(found, name, base) if SUFFIX in name and base in found else None
        cost = difference(*both) if both else None
        kept = difference(*map(afterwards, both)) if both else None
        numbers = (f"{100 * estimate(parts).value:.2f}", _points(cost), f"{mean['change']:.2f}")
        clean = (f"{100 * estimate(afterwards(parts)).value:.2f}", _points(kept), f"{mean['disagreement']:.2f}")
        lines.append((name, *numbers, *clean))
    columns = (
        "method",
        "error",
        "over the method",
        "change of weights",
        "clean error after",
        "over it",
        "answers changed",
    )
    return [Listing("minimal_change", columns, lines)] if lines else []


def _points(found: Estimate | None) -> str:
    if found is None:
        return ""
    return f"{100 * found.value:+.2f} ({100 * found.low:+.2f} to {100 * found.high:+.2f})"


register_table(
    Table(
        name="plugin",
        title="The sparsity constraint on every kind of method, and what it leaves behind (severity 5, batches of 32)",
        scales={
            "smoke": "256 images of the embedded digits in two corruptions, a small network trained on the spot",
            "small": f"{IMAGES:,} images of CIFAR-10-C in four corruptions, the joint model of the zoo",
        },
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
        summaries=summary,
    )
)
