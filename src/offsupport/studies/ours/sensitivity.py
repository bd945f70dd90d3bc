"""How much Table 1 depends on what the paper leaves open: the support, the generator, and the weights of ``vae``."""

from __future__ import annotations

from typing import Any

from offsupport.bench.cell import Cell
from offsupport.studies.synthetic import WITH_CHANGES, below_by_column, blocks, synthetic_rows
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = ("only-source", "vae", "trimmed-nn", "extrapolator", "given-c")
COLUMNS = {"dense": (5.0, 12.0, 30.0), "sparse": (18.0, 36.0)}
RUNS = {"smoke": 2, "paper": 50}
PROCESSES: tuple[dict[str, Any], ...] = (
    {},
    {"changes": {"s_sd": 1.0, "radius": 2.0}},
    {"changes": {"s_sd": 3.0, "radius": 9.0}},
    {"process": "paper"},
)
"""As in Table 1; a smaller and a larger support; and the ReLU generator as published (width 6 dense, 4 sparse)."""
VAE: tuple[dict[str, Any], ...] = (
    {"kl": 0.1},
    {"kl": 0.01},
    {"kl": 0.001},
    {"kl": 0.1, "prior": "classes"},
    {"kl": 0.1, "reconstruct_target": False},
    {"kl": 0.1, "distance_to": "support"},
)
"""The published KL weights, and the other readings of the objective; the first is the one of Table 1."""
GROUPS = (
    "dense",
    "sparse",
    *(f"{s}, radius={r}, s_sd={sd}" for r, sd in ((2, 1), (9, 3)) for s in ("dense", "sparse")),
)
CLAIMS = [
    ("extrapolator", "only-source", group) for group in (*GROUPS, "dense, process=paper", "sparse, process=paper")
]


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; nothing but the package is needed at any scale."""
    runs = RUNS[scale]
    cells = [c for how in PROCESSES for c in blocks(METHODS, COLUMNS, "classification", runs, options, **how)]
    if options.methods and "vae" not in options.methods:
        return cells
    only_vae = TableOptions(runs=options.runs, methods=("vae",))
    cells += [c for w in VAE for c in blocks(METHODS, COLUMNS, "classification", runs, only_vae, options=w)]
    return list(dict.fromkeys(cells))


register_table(
    Table(
        name="sensitivity",
        record=True,
        title="Synthetic classification: what the result owes to the support, the generator and the weights of vae",
        scales={scale: f"{runs} runs per column, all methods on the same runs" for scale, runs in RUNS.items()},
        options=frozenset({"methods", "runs"}),
        grid=grid,
        rows=lambda records: synthetic_rows(records, {}, WITH_CHANGES),
        claims=lambda records: below_by_column(records, CLAIMS, names=WITH_CHANGES),
    )
)
