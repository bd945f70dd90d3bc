"""Why ``vae-slab`` recovers sparse shifts: its parts put in one after the other, on the same fits and runs."""

from __future__ import annotations

from typing import Any

from offsupport.bench.cell import Cell
from offsupport.studies.paper.table1 import COLUMNS, SMOKE_COLUMNS
from offsupport.studies.synthetic import WITH_CHANGES, below_by_column, method_blocks, synthetic_rows
from offsupport.studies.tables import Table, TableOptions, register_table

RUNS = {"smoke": 2, "small": 100}
PARTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("only-source", {}),
    ("vae-slab", {"codes": "encoder"}),
    ("vae-slab", {"codes": "optimised", "slab": 0.0}),
    ("vae-slab", {"codes": "optimised"}),
    ("vae-slab", {}),
)
"""A network without codes; codes from the encoder; codes by optimisation, Gaussian columns; a slab per column; and the
encoder asked about the repaired target."""
STEPS = ("only-source", "vae-slab, codes=encoder", "vae-slab, codes=optimised, slab=0", "vae-slab, codes=optimised")
FINITE = ("only-source", "vae-slab", "vae-classes")
"""The rows of dense shifts where each class has one c, which is what the conditional form is for."""
FINITE_COLUMNS = (5.0, 12.0)
FIXED: dict[str, Any] = {"embedding": "fixed"}
CLAIMS = [
    *(("vae-slab", worse, "sparse") for worse in STEPS),
    *((better, "only-source", "dense, embedding=fixed") for better in FINITE[1:]),
]


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; those without options are Table 1's."""
    distances = (SMOKE_COLUMNS if scale == "smoke" else COLUMNS)["sparse"]
    runs = options.runs or RUNS[scale]
    sparse = [
        cell
        for method, part in PARTS
        for cell in method_blocks(method, "sparse", distances, runs, task="classification", options=part)
    ]
    return sparse + [
        cell
        for method in FINITE
        for cell in method_blocks(method, "dense", FINITE_COLUMNS, runs, task="classification", changes=FIXED)
    ]


register_table(
    Table(
        name="slab",
        title="The parts of vae-slab on sparse shifts, and its conditional form on dense ones",
        scales={scale: f"{runs} runs per column, all rows on the same runs" for scale, runs in RUNS.items()},
        options=frozenset({"runs"}),
        grid=grid,
        rows=lambda records: synthetic_rows(records, {}, WITH_CHANGES),
        claims=lambda records: below_by_column(records, CLAIMS, names=WITH_CHANGES),
    )
)
