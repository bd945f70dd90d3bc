"""What each part of the sparsity constraint does: low rank, gates, their penalties, and a frozen base."""

from __future__ import annotations

from typing import Any

from offsupport.bench.cell import Cell
from offsupport.core.errors import ConfigError, nearest
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.errors import below_claims, row_name
from offsupport.studies.paper.table2 import MODEL
from offsupport.studies.tables import Table, TableOptions, register_table

BASES = ("tesla", "tent")
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "jpeg_compression")
"""One of each family: noise, blur, weather, digital."""
PROXIMAL: dict[str, Any] = {"penalty": "prox", "prox": 1e-2, "ratio_g": 10}
"""As chosen on the extra corruptions (``tuning-prox``)."""
PARTS: tuple[dict[str, Any], ...] = (
    {"gates": False, "penalty": "none"},
    {"penalty": "none"},
    {"penalty": "l1"},
    PROXIMAL,
    {**PROXIMAL, "freeze_base": True},
)
"""Low rank alone; with gates; with the published penalty; with the proximal step; and the updates alone."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: each base, and each of the parts on top of it."""
    for method in options.methods or ():
        if method not in BASES:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, BASES))
    data: dict[str, Any] = {"dataset": "cifar10-c", "model": MODEL, "preset": "cifar10"}
    if scale == "smoke":
        data = {"dataset": "digits-c", "model": "digits-small"}
    rows: list[tuple[str, dict[str, Any]]] = [
        row for base in options.methods or BASES for row in ((base, {}), *((f"{base}+sc", part) for part in PARTS))
    ]
    return [
        AdaptConfig(method=method, hyper=part, corruption=corruption, seed=seed, **data).cell()
        for method, part in rows
        for corruption in CORRUPTIONS
        for seed in range(options.seeds or 1)
    ]


CLAIMS = [(row_name(f"{base}+sc", part), base) for base in BASES for part in PARTS]

register_table(
    Table(
        name="ablation",
        title="The sparsity constraint in parts, on four corruptions (severity 5, online)",
        scales={
            "smoke": "the embedded digits, a small network trained on the spot",
            "small": "10,000 images of CIFAR-10-C per corruption, the joint model of the zoo",
        },
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        claims=lambda records: below_claims(records, CLAIMS),
    )
)
