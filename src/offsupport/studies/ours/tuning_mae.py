"""How the step sizes of Tables 3 and 4 were chosen: on the four extra corruptions, which no table reports.

Both methods get the same candidates on the same images, for each model they adapt.
"""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.data import EXTRA
from offsupport.results.rows import Row
from offsupport.studies.errors import Part, error_row
from offsupport.studies.mae_arms import SCALES, Arm, adapted_models, by_arm, config_of, method_of, whole
from offsupport.studies.tables import Table, TableOptions, register_table

FACTORS = (1 / 3, 1, 3, 10)
"""Of the published step size."""
ARMS = (0, 1)
"""Entropy steps of what is tuned; more of them take the step size of one."""
IMAGES = 24
"""Of each corruption."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: models x methods x step sizes x extra corruptions."""
    found = SCALES[scale]
    limit = min(IMAGES, found.limit or IMAGES)
    return [
        config_of(found, Arm(model, steps), corruption, seed=0, lr=rate, limit=limit).cell()
        for model in adapted_models(found)
        for steps in ARMS
        for rate in rates()
        for corruption in EXTRA
    ]


def rates() -> list[float]:
    """Return the step sizes that are tried."""
    from offsupport.methods import METHODS

    published = METHODS["mae-ttt"].config_class().lr  # type: ignore[attr-defined]
    return [float(f"{factor * published:.2g}") for factor in FACTORS]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error of every candidate on every extra corruption and on average."""
    table: dict[str, dict[str, list[Part]]] = {}
    for arm, columns in by_arm(records).items():
        for corruption, parts in columns.items():
            for part in parts:
                name = f"{method_of(arm)} ({arm.model}, lr={part.record.cell.config['hyper']['lr']:g})"
                table.setdefault(name, {}).setdefault(f"{part.dataset}/{corruption}", []).append(part)
    found = []
    for name, laid in table.items():
        found += [error_row(name, column, parts, {}) for column, parts in laid.items()]
        if len(laid) == len(EXTRA):
            dataset = next(iter(laid)).partition("/")[0]
            found.append(error_row(name, f"{dataset}/avg", whole(laid), {}))
    return found


register_table(
    Table(
        name="tuning-mae",
        record=True,
        title="Step sizes of MAE test-time training, tried on the four extra corruptions (severity 5, episodic)",
        scales={
            "smoke": "six embedded digits per corruption, a tiny autoencoder trained on the spot",
            "small": f"{IMAGES} images of CIFAR-10-C per corruption, the zoo's autoencoders",
        },
        grid=grid,
        rows=rows,
    )
)
