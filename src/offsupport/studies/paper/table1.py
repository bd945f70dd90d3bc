"""Table 1: accuracy on synthetic data, dense and sparse shifts, by the distance of the target."""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.results.rows import Claim
from offsupport.studies.latent_runs import RadiusConfig
from offsupport.studies.synthetic import (
    BLOCK,
    FIRST,
    SMOKE_SOURCE,
    below_by_column,
    blocks,
    bounded,
    made_quick,
    synthetic_rows,
    without_repeats,
)
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = (
    "only-source",
    "imsda",
    "vae",
    "vae-slab",
    "trimmed-nn",
    "extrapolator",
    "extrapolator-inferred",
    "given-c",
    "constant",
)
COLUMNS = {"dense": (3.5, 5.0, 12.0, 18.0, 24.0, 30.0), "sparse": (18.0, 24.0, 30.0, 36.0)}
"""The printed distances, and two close to the support (radius 3)."""
SMOKE_COLUMNS = {"dense": (5.0, 12.0), "sparse": (18.0, 36.0)}
INFERRED_RUNS = 100
"""Dense runs of the row that infers everything."""
RUNS = {"smoke": 4, "small": 50, "paper": 500}
ABOUT = {scale: f"{runs} runs per column, all methods on the same runs" for scale, runs in RUNS.items()}
ABOUT["smoke"] += f"; {SMOKE_SOURCE:,} source samples each, and flows of fewer steps"
_PRINTED_COLUMNS = [f"dense-{d}" for d in (12, 18, 24, 30)] + [f"sparse-{d}" for d in (18, 24, 30, 36)]
_PRINTED = {
    "only-source": (0.59, 0.55, 0.45, 0.45, 0.54, 0.54, 0.56, 0.52),
    "imsda": (0.46, 0.48, 0.48, 0.50, 0.50, 0.36, 0.40, 0.54),
    "vae": (0.78, 0.69, 0.72, 0.72, 0.72, 0.72, 0.76, 0.70),
}
PRINTED = {(m, c): v for m, values in _PRINTED.items() for c, v in zip(_PRINTED_COLUMNS, values, strict=True)}
"""The paper's "Ours" stands beside ``vae``, its own objective."""
CLAIMS = [
    (better, worse, shift)
    for better, worse in (("vae", "only-source"), ("vae", "imsda"), ("extrapolator", "only-source"))
    for shift in COLUMNS
] + [
    ("extrapolator", "trimmed-nn", "sparse"),
    ("vae-slab", "only-source", "dense"),
    ("vae-slab", "only-source", "sparse"),
]


BOUNDS = {"dense-5": 0.09, "dense-12": 0.28, **{f"sparse-{d:g}": 0.05 for d in COLUMNS["sparse"]}}
"""What the extrapolator is meant to reach: largest shares of errors."""
SLAB_BOUNDS = {f"sparse-{d:g}": 0.07 for d in COLUMNS["sparse"]}
"""The same for the paper's estimator with a slab per column."""
RADIUS_RUNS = 100
"""Runs whose Theorem 1 radius is computed, to be marked in the figures."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; nothing but the package is needed at any scale."""
    columns = SMOKE_COLUMNS if scale == "smoke" else COLUMNS
    cells = blocks(METHODS, columns, "classification", RUNS[scale], options)
    cells = without_repeats(cells, INFERRED_RUNS)
    if scale == "smoke":
        cells = made_quick(cells)
    runs = min(options.runs or RUNS[scale], RADIUS_RUNS)
    radius = [
        RadiusConfig(shift=shift, first=FIRST + done, runs=min(BLOCK, runs - done)).cell()
        for shift in ("dense", "sparse")
        for done in range(0, runs, BLOCK)
    ]
    # What needs no flow is computed while the last ones are fitted that the inferring row will read.
    inferred = next((i for i, cell in enumerate(cells) if cell.config["method"] == "extrapolator-inferred"), len(cells))
    return [*cells[:inferred], *radius, *cells[inferred:]]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Check what the paper says of its method and what ours is meant to reach."""
    inferred = [("extrapolator-inferred", "extrapolator", "sparse")]
    return [
        *below_by_column(records, CLAIMS),
        *bounded(records, "extrapolator", BOUNDS),
        *bounded(records, "vae-slab", SLAB_BOUNDS),
        *below_by_column(records, inferred, margin=0.02),
    ]


register_table(
    Table(
        name="table1",
        title="Synthetic classification: accuracy by kind and distance of the shift",
        scales=ABOUT,
        options=frozenset({"methods", "runs"}),
        grid=grid,
        rows=lambda records: synthetic_rows(records, PRINTED),
        claims=claims,
    )
)
