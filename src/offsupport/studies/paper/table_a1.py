"""Table A1: mean squared error on synthetic data, dense and sparse shifts, by the distance of the target."""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.results.rows import Claim
from offsupport.studies.paper.table1 import ABOUT, RUNS
from offsupport.studies.synthetic import below_by_column, blocks, bounded, made_quick, synthetic_rows, without_repeats
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = (
    "only-source",
    "vae",
    "vae-slab",
    "trimmed-nn",
    "extrapolator",
    "extrapolator-inferred",
    "given-c",
    "constant",
)
COLUMNS = {"dense": (18.0, 24.0, 30.0), "sparse": (18.0, 24.0, 30.0)}
_PRINTED = {
    "only-source": (11.64, 2.44, 3.26, 1.84, 3.32, 5.84),
    "vae": (1.40, 1.60, 1.68, 1.15, 1.48, 1.60),
}
_NAMES = [f"{shift}-{distance:g}" for shift, distances in COLUMNS.items() for distance in distances]
PRINTED = {(m, c): v for m, values in _PRINTED.items() for c, v in zip(_NAMES, values, strict=True)}
"""The paper's "Ours" stands beside ``vae``; predicting the constant 2 would give 1.33."""
CLAIMS = [
    (better, worse, shift)
    for better, worse in (("vae", "only-source"), ("vae", "constant"), ("extrapolator", "only-source"))
    for shift in COLUMNS
] + [
    ("extrapolator", "trimmed-nn", "sparse"),
    ("vae-slab", "only-source", "dense"),
    ("vae-slab", "only-source", "sparse"),
]
BOUNDS = {f"sparse-{distance:g}": 0.30 for distance in COLUMNS["sparse"]}
"""What the extrapolator is meant to reach: largest mean squared errors."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; nothing but the package is needed at any scale."""
    cells = without_repeats(blocks(METHODS, COLUMNS, "regression", RUNS[scale], options), 0)
    return made_quick(cells) if scale == "smoke" else cells


def claims(records: Sequence[Record]) -> list[Claim]:
    """Check what the paper says of its method and what ours is meant to reach."""
    return [*below_by_column(records, CLAIMS), *bounded(records, "extrapolator", BOUNDS)]


register_table(
    Table(
        name="tableA1",
        title="Synthetic regression: mean squared error by kind and distance of the shift",
        scales=ABOUT,
        options=frozenset({"methods", "runs"}),
        grid=grid,
        rows=lambda records: synthetic_rows(records, PRINTED),
        claims=claims,
    )
)
