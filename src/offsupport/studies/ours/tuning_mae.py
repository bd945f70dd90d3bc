"""How the settings of Tables 3 and 4 were chosen: on shifts that the tables then do not report.

On photographs these are the four extra corruptions, and both methods get the same step sizes on the same images, for
each model they adapt. Where a batch is an episode, reconstruction has step sizes, and the entropy steps have their own
and what they may move.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.data import EXTRA
from offsupport.results.rows import Row
from offsupport.studies.errors import Part, error_row
from offsupport.studies.mae_arms import (
    CHOSEN_ON,
    Arm,
    Scale,
    adapted_models,
    by_arm,
    config_of,
    method_of,
    scale_of,
    whole,
)
from offsupport.studies.tables import Table, TableOptions, register_table

FACTORS = (1 / 3, 1, 3, 10)
"""Of the published step size."""
ARMS = (0, 1)
"""Entropy steps of what is tuned; more of them take the step size of one."""
IMAGES = {"smoke": 32, "small": 24, "digits": 96, "batches": 64, "online": 128}
"""Of each corruption."""
RECONSTRUCTION = (3e-5, 1e-4, 3e-4)
"""Step sizes of reconstruction in batches."""
ENTROPY = (3e-4, 1e-3, 3e-3)
"""Step sizes of the entropy steps in batches, at the reconstruction that was chosen."""
PARTS = ("norms", "encoder", "encoder-and-head")
"""What they may move."""
_NAMED = ("lr", "em_lr", "em_tune")


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: models x methods x settings x shifts."""
    found = scale_of("table4", scale)
    return [
        dataclasses.replace(config, hyper={**config.hyper, **own}).cell()
        for model in tuned_models(found)
        for steps in ARMS
        for own in candidates(scale, steps)
        for corruption in (EXTRA if found.dataset == "cifar10-c" else CHOSEN_ON)
        for config in [config_of(found, Arm(model, steps), corruption, seed=0, limit=IMAGES[scale])]
    ]


def tuned_models(scale: Scale) -> list[str]:
    """Return the regimes whose settings are tried."""
    adapted = adapted_models(scale)
    return [regime for regime in adapted if regime in scale.tuned] or adapted


def candidates(scale: str, steps: int) -> list[Mapping[str, Any]]:
    """Return the settings that are tried for an arm."""
    if scale == "small":
        return [{"lr": rate} for rate in rates()]
    if not steps:
        return [{"lr": rate} for rate in RECONSTRUCTION]
    return [{"em_lr": rate, "em_tune": part} for part in PARTS for rate in ENTROPY]


def rates() -> list[float]:
    """Return the step sizes that are tried on single photographs."""
    from offsupport.methods import METHODS

    published = METHODS["mae-ttt"].config_class().lr  # type: ignore[attr-defined]
    return [float(f"{factor * published:.2g}") for factor in FACTORS]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error of every candidate on every shift and on average."""
    table: dict[str, dict[str, list[Part]]] = {}
    for arm, columns in by_arm(records).items():
        for corruption, parts in columns.items():
            for part in parts:
                hyper = part.record.cell.config["hyper"]
                words = ", ".join(f"{name}={_word(hyper[name])}" for name in _NAMED if name in hyper)
                name = f"{method_of(arm)} ({arm.model}, {words})"
                table.setdefault(name, {}).setdefault(f"{part.dataset}/{corruption}", []).append(part)
    found = []
    for name, laid in table.items():
        found += [error_row(name, column, parts, {}) for column, parts in laid.items()]
        if len(laid) == len(EXTRA) == len(CHOSEN_ON):
            dataset = next(iter(laid)).partition("/")[0]
            found.append(error_row(name, f"{dataset}/avg", whole(laid), {}))
    return found


def _word(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


register_table(
    Table(
        name="tuning-mae",
        record=True,
        title="Settings of MAE test-time training, tried on four shifts that are not reported (severity 5)",
        scales={
            "smoke": f"{IMAGES['smoke']} embedded digits per shift, the zoo's autoencoder",
            "small": f"{IMAGES['small']} images of CIFAR-10-C per corruption, the zoo's autoencoders",
            "digits": f"{IMAGES['digits']} embedded digits per shift, the zoo's autoencoder",
            "batches": f"{IMAGES['batches']} images of CIFAR-10-C per corruption in batches, the larger joint model",
            "online": f"{IMAGES['online']} images likewise, never put back",
        },
        grid=grid,
        rows=rows,
    )
)
