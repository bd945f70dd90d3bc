"""Order: what a method does where the labels come sorted, and where nothing has shifted at all; with `minimal`.

A camera sees one thing for a while, a folder holds one class after the other. Statistics of such a batch are those of
its class. The columns are streams: clean and shifted images, in random order and sorted by label.
"""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.results.rows import Claim, Row, below, shifted
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.errors import Part, difference, error_row, parts_of
from offsupport.studies.paper.fig3 import SUPERVISED
from offsupport.studies.paper.table2 import MODEL
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = ("source", "bn", "tent", "eata", "sar", "minimal")
CORRUPTIONS = (None, "gaussian_noise", "glass_blur", "fog", "contrast", "jpeg_compression")
ORDERS = {"iid": "random", "sorted": "sorted"}
HARM = 0.01
"""A method may err so much more than the model alone before it is said to harm."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: networks x methods x corruptions x orders."""
    smoke = scale == "smoke"
    networks = {"digits-small": "digits"} if smoke else {MODEL: "cifar10", SUPERVISED: "cifar10"}
    return [
        AdaptConfig(
            dataset=f"{data}-c" if corruption else data,
            model=model,
            method=method,
            corruption=corruption,
            order=order,
            limit=256 if smoke else 1000,
            source_images=500,
            batch_size=64,
            seed=seed,
        ).cell()
        for seed in range(options.seeds or 1)
        for model, data in networks.items()
        for method in options.methods or METHODS
        for corruption in (CORRUPTIONS[:1] + CORRUPTIONS[3:5] if smoke else CORRUPTIONS)
        for order in ORDERS
    ]


Found = dict[str, dict[str, list[Part]]]
"""Results by method and column."""


def by_stream(records: Sequence[Record]) -> Found:
    """Sort results by method, and by network, order and whether anything has shifted."""
    found: Found = {}
    for part in parts_of(records):
        config = part.record.cell.config
        network = config["model"].split("@")[0].removeprefix("zoo:").rpartition("-")[2]
        what = "shifted" if config["corruption"] else "clean"
        column = f"{network}/{what}-{ORDERS[config['order']]}"
        found.setdefault(config["method"], {}).setdefault(column, []).append(part)
    return found


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error of every method on every kind of stream; of shifted ones, the average over corruptions."""
    found = by_stream(records)
    return [error_row(method, column, parts, {}) for method, own in found.items() for column, parts in own.items()]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Ask of every method and kind of stream whether it harms, and on shifted ones whether `minimal` is the better."""
    found = by_stream(records)
    bare, made = found.get("source", {}), []
    for method, own in found.items():
        for column, parts in own.items():
            if method != "source" and column in bare:
                sentence = f"{method} errs at most {100 * HARM:g} point more than no adaptation on {column}"
                cost = shifted(difference(parts, bare[column]), HARM)
                made.append(below(sentence, cost, f"error({method}) - error(source) - {100 * HARM:g}"))
            ours = found.get("minimal", {}).get(column)
            if method not in ("source", "minimal") and ours and "shifted" in column:
                made.append(
                    below(
                        f"minimal errs less than {method} on {column}",
                        difference(ours, parts),
                        f"error(minimal) - error({method})",
                    )
                )
    return made


register_table(
    Table(
        name="order",
        title="Error on clean and shifted images, in random order and sorted by label (severity 5, batches of 64)",
        scales={
            "smoke": "256 images of the embedded digits, clean and in two corruptions, a small network",
            "small": "1,000 images of CIFAR-10, clean and in five corruptions, the zoo's joint and supervised models",
        },
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
