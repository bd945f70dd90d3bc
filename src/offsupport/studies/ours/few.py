"""Few: error against the number of target images there are to adapt to; what to pick with a handful of samples.

With n images a method starts from the source model, adapts to a batch of n and predicts it, then starts again
(episodic). With all of them it goes through one corruption in batches of 128, as in the other tables (online).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.data import STANDARD
from offsupport.results.rows import Claim, Row, below
from offsupport.studies.adaptation import CALIBRATION, OURS, AdaptConfig, our_methods
from offsupport.studies.errors import Part, difference, error_row, parts_of
from offsupport.studies.ours.ablation import CORRUPTIONS
from offsupport.studies.paper.fig3 import SUPERVISED
from offsupport.studies.published import fixed_settings
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = (
    *("source", "bn", "tent", "shot", "memo", "eata", "sar", "ttac", "tesla", "tesla-s"),
    *("tent+sc", "tesla+sc", "tesla-s+sc"),
)
"""What runs on a residual network; ``tttpp`` joins where it has a projection head."""
NUMBERS = (1, 4, 16, 64)
Images = tuple[int, int]
IMAGES: dict[str, Images] = {"smoke": (64, 128), "small": (256, 1024), "paper": (1024, 10_000)}
"""Images of each corruption: for the columns with few of them, and for ``n-all``, whose first ones are the same."""
Found = dict[str, dict[str, list[Part]]]
"""Results by method and column."""


def _fixed(scale: str) -> dict[str, Any]:
    if scale == "paper":
        return {**fixed_settings("cifar10-c"), "corruption": list(STANDARD)}
    if scale == "small":
        return {"dataset": "cifar10-c", "model": SUPERVISED, "preset": "cifar10", "corruption": list(CORRUPTIONS)}
    return {"dataset": "digits-c", "model": "digits-small", "corruption": list(CORRUPTIONS)}


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: methods x numbers of images; one cell goes through all corruptions."""
    fixed, (few, every) = _fixed(scale), IMAGES[scale]
    own = (*METHODS, "tttpp") if scale == "paper" else (*METHODS, *our_methods())
    columns: list[tuple[Literal["episodic", "online"], int, int]] = [("episodic", n, few) for n in NUMBERS]
    return [
        AdaptConfig(
            method=method,
            protocol=protocol,
            batch_size=size,
            limit=limit,
            seed=seed,
            **fixed,
            **(CALIBRATION if scale == "small" and method in OURS else {}),
        ).cell()
        for seed in range(options.seeds or 1)
        for method in options.methods or own
        for protocol, size, limit in [*columns, ("online", 128, every)]
    ]


def by_number(records: Sequence[Record]) -> Found:
    """Sort results by method and number of images."""
    found: Found = {}
    for part in parts_of(records):
        config = part.record.cell.config
        number = config["batch_size"] if config["protocol"] == "episodic" else "all"
        found.setdefault(config["method"], {}).setdefault(f"{part.dataset}/n-{number}", []).append(part)
    return found


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error of every method with every number of images, over all corruptions."""
    found = by_number(records)
    return [error_row(method, column, parts, {}) for method, own in found.items() for column, parts in own.items()]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Ask of every method and every number of images whether it helps."""
    found = by_number(records)
    bare = found.pop("source", {})
    return [
        below(
            f"{method} errs less than no adaptation on {column}",
            difference(parts, bare[column]),
            f"error({method}) - error(source)",
        )
        for method, own in found.items()
        for column, parts in own.items()
        if column in bare
    ]


def _about(scale: str, where: str) -> str:
    few, every = IMAGES[scale]
    return f"{where}: {few:,} images of each in batches of 1 to 64, {every:,} for n-all"


register_table(
    Table(
        name="few",
        title="Error by the number of target images (severity 5; episodic, n-all online)",
        scales={
            "smoke": _about("smoke", "four corruptions of the embedded digits, a small network trained on the spot"),
            "small": _about("small", "four corruptions of CIFAR-10-C, the zoo's supervised model"),
            "paper": _about("paper", "all corruptions of CIFAR-10-C, the published ResNet-50 on a GPU"),
        },
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
