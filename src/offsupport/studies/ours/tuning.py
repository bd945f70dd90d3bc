"""How the settings of Table 2 were chosen: on the four extra corruptions, which no table reports.

Every method gets the same number of candidates on the same images: its published step size, a third and three times
of it, and one choice of its own. What was chosen is the preset ``cifar10-small``. The proximal form of the constraint
is ours, stands in the ablation alone, and has four candidates as well. Two parts of TeSLA's published policy that are
not what they seem, its constant rotation and its uniform sampling, are compared with their corrected forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.core.errors import ConfigError, nearest
from offsupport.data import EXTRA
from offsupport.results.rows import Row
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.errors import below_claims, row_name
from offsupport.studies.paper.table2 import MODEL, RUNNING, SCORED_AFTER
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = ("tent", "shot", "eata", "sar", "tttpp", "ttac", "tesla", "tesla-s", "tesla+sc", "tesla-s+sc")
IMAGES = 2560
"""Of each corruption: twenty batches for every method."""
PROX = ((1e-2, 1), (1e-2, 10), (3e-2, 30), (1e-1, 100))
"""Thresholds per step, and step sizes of the gates as multiples of the method's: from far above what Adam moves a gate
by, to as much; a gate that nothing holds open closes in 100 steps, or in ten."""
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"rotation": "full"},
    {"sampling": "learned"},
    {"rotation": "full", "sampling": "learned"},
)
"""TeSLA's policy as published, with either part corrected, and with both."""


def candidates(method: str) -> list[dict[str, Any]]:
    """Return the settings that are tried for a method, four for each."""
    from offsupport.methods import METHODS as REGISTERED

    adapter = REGISTERED[method]
    default: Any = adapter.config_class()
    published = float(adapter.presets["cifar10"].get("lr", default.lr))
    tried: list[dict[str, Any]] = [{"lr": float(f"{factor * published:.2g}")} for factor in (1 / 3, 1, 3)]
    if method.endswith("+sc"):
        return [*tried, {"rank": 4}]  # the published one is above the number of channels of a narrow network
    if method in SCORED_AFTER:
        return [*tried, RUNNING]
    return [*tried, {"lr": float(f"{10 * published:.2g}")}]


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: methods x candidates x extra corruptions; ``smoke`` needs nothing but the package."""
    for method in options.methods or ():
        if method not in METHODS:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, METHODS))
    methods = [m for m in options.methods or METHODS if scale != "smoke" or m != "tttpp"]
    return _cells(scale, [(method, hyper) for method in methods for hyper in candidates(method)])


def prox_candidates() -> list[dict[str, Any]]:
    """Return the settings of the proximal form that are tried."""
    return [{"penalty": "prox", "prox": prox, "ratio_g": ratio_g} for prox, ratio_g in PROX]


def prox_grid(scale: str, _options: TableOptions) -> list[Cell]:
    """Return the cells: candidates of the proximal form x extra corruptions."""
    return _cells(scale, [("tesla+sc", hyper) for hyper in prox_candidates()])


def policy_grid(scale: str, _options: TableOptions) -> list[Cell]:
    """Return the cells: forms of TeSLA's policy x extra corruptions."""
    return _cells(scale, [("tesla", hyper) for hyper in POLICIES])


def _cells(scale: str, tried: Sequence[tuple[str, dict[str, Any]]]) -> list[Cell]:
    data: dict[str, Any] = {"dataset": "cifar10-c", "model": MODEL, "limit": IMAGES, "preset": "cifar10"}
    if scale == "smoke":
        data = {"dataset": "digits-c", "model": "digits-small"}
    return [
        AdaptConfig(method=method, hyper=hyper, corruption=corruption, **data).cell()
        for method, hyper in tried
        for corruption in EXTRA
    ]


def chosen(found: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the candidate with the lowest average error of each method that has one."""
    averages = {row.method: row.value for row in found if row.column.endswith("/avg")}
    best = {}
    for method in METHODS:
        tried = {row_name(method, hyper): hyper for hyper in candidates(method)}
        measured = [name for name in tried if name in averages]
        if measured:
            best[method] = tried[min(measured, key=averages.__getitem__)]
    return best


_SCALES = {
    "smoke": "the embedded digits, a small network trained on the spot",
    "small": f"{IMAGES:,} images of CIFAR-10-C per corruption, the joint model of the zoo",
}
register_table(
    Table(
        name="tuning",
        record=True,
        title="Settings of the adaptation methods, tried on the four extra corruptions (severity 5, online)",
        scales=_SCALES,
        options=frozenset({"methods"}),
        grid=grid,
    )
)
register_table(
    Table(
        name="tuning-policy",
        record=True,
        title="TeSLA's policy as published and corrected, on the four extra corruptions (severity 5, online)",
        scales=_SCALES,
        grid=policy_grid,
        claims=lambda records: below_claims(records, [(row_name("tesla", hyper), "tesla") for hyper in POLICIES[1:]]),
    )
)
register_table(
    Table(
        name="tuning-prox",
        record=True,
        title="Thresholds of the proximal constraint, tried on the four extra corruptions (severity 5, online)",
        scales=_SCALES,
        grid=prox_grid,
    )
)
