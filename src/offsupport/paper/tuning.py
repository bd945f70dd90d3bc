"""How the settings of Table 2 were chosen: on the four extra corruptions, which no table reports.

Every method gets the same number of candidates on the same images: its published step size, a third and three times
of it, and one choice of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offsupport.bench.adapt_cell import AdaptConfig
from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.data import EXTRA
from offsupport.paper.declare import TABLES, Options, Row, Table
from offsupport.paper.errors import error_rows

METHODS = ("tent", "shot", "eata", "sar", "tttpp", "ttac", "tesla", "tesla-s", "tesla+sc", "tesla-s+sc")
MODEL = "zoo:cifar10-resnet18x0.25-joint"
IMAGES = 2560
"""Of each corruption: twenty batches for every method."""
OTHER_STATISTICS = {"tesla": "running", "tesla-s": "running", "ttac": "batch", "tttpp": "batch"}
"""The statistics a method is scored with when it is not its default."""


def candidates(method: str) -> list[dict[str, Any]]:
    """Return the settings that are tried for a method, four for each."""
    from offsupport.methods.registry import METHODS as REGISTERED

    adapter = REGISTERED[method]
    default: Any = adapter.config_class()
    published = float(adapter.presets["cifar10"].get("lr", default.lr))
    tried: list[dict[str, Any]] = [{"lr": float(f"{factor * published:.2g}")} for factor in (1 / 3, 1, 3)]
    if method.endswith("+sc"):
        return [*tried, {"penalty": "prox"}]
    if method in OTHER_STATISTICS:
        return [*tried, {"score_stats": OTHER_STATISTICS[method]}]
    return [*tried, {"lr": float(f"{10 * published:.2g}")}]


def grid(scale: str, options: Options) -> list[Cell]:
    """Return the cells: methods x candidates x extra corruptions; ``smoke`` needs nothing but the package."""
    for method in options.methods or ():
        if method not in METHODS:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, METHODS))
    data = {"dataset": "cifar10-c", "model": MODEL, "limit": IMAGES, "preset": "cifar10"}
    if scale == "smoke":
        data = {"dataset": "digits-c", "model": "digits-small"}
    methods = [m for m in options.methods or METHODS if scale != "smoke" or m != "tttpp"]
    return [
        AdaptConfig(method=method, hyper=hyper, corruption=corruption, **data).cell()  # type: ignore[arg-type]
        for method in methods
        for hyper in candidates(method)
        for corruption in EXTRA
    ]


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error of every candidate on every extra corruption and on average."""
    return error_rows(records, {})


def chosen(found: Sequence[Row]) -> dict[str, str]:
    """Return the candidate with the lowest average error of each method, as its row is called."""
    best: dict[str, Row] = {}
    for row in found:
        method = row.method.partition(" ")[0]
        if row.column.endswith("/avg") and (method not in best or row.value < best[method].value):
            best[method] = row
    return {method: row.method for method, row in best.items()}


TABLES.register("tuning")(
    Table(
        name="tuning",
        title="Settings of the adaptation methods, tried on the four extra corruptions (severity 5, online)",
        scales={
            "smoke": "the embedded digits, a small network trained on the spot",
            "small": f"{IMAGES:,} images of CIFAR-10-C per corruption, the joint model of the zoo",
        },
        options=frozenset({"methods"}),
        grid=grid,
        rows=rows,
        claims=lambda records: [],
    )
)
