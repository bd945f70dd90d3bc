"""Sparse shifts that are harder than the paper's: dimensions of influence that vary with z, and observation noise."""

from __future__ import annotations

from typing import Any

from offsupport.bench.cell import Cell
from offsupport.studies.paper.table1 import COLUMNS, RUNS
from offsupport.studies.synthetic import WITH_CHANGES, below_by_column, blocks, synthetic_rows
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = ("trimmed-nn", "extrapolator", "given-c")
PROCESSES: tuple[dict[str, Any], ...] = ({"influence": "varying"}, {"noise": 0.05})
CLAIMS = [("extrapolator", "trimmed-nn", f"sparse, {name}={value}") for p in PROCESSES for name, value in p.items()]


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; nothing but the package is needed at any scale."""
    sparse = {"sparse": COLUMNS["sparse"]}
    return [
        cell
        for changes in PROCESSES
        for cell in blocks(METHODS, sparse, "classification", RUNS[scale], options, changes=changes)
    ]


register_table(
    Table(
        name="harder",
        record=True,
        title="Synthetic classification: sparse shifts with varying influence, and with observation noise",
        scales={scale: f"{runs} runs per column, all methods on the same runs" for scale, runs in RUNS.items()},
        options=frozenset({"methods", "runs"}),
        grid=grid,
        rows=lambda records: synthetic_rows(records, {}, WITH_CHANGES),
        claims=lambda records: below_by_column(records, CLAIMS, names=WITH_CHANGES),
    )
)
