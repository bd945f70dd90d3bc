"""How the defaults of the sparsity constraint were chosen for each method: on the four extra corruptions.

The constraint was published on TeSLA, whose teacher holds the student. Its values do harm elsewhere: a rank above the
channels of a layer multiplies every step there. Each method gets the same candidates: the published values, and updates
of rank 4 with a tenth of the method's step size and with all of it, without gates, and by themselves, at once and ten
times its step size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.data import EXTRA
from offsupport.engine.sparsity import PRESETS, SUFFIX
from offsupport.results.rows import Claim, Listing
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.errors import below_claims, error_rows, row_name
from offsupport.studies.paper.table2 import MODEL
from offsupport.studies.tables import Table, TableOptions, register_table

BASES = ("tent", "sar", "ttac")
"""Where the published values do most harm; others keep the defaults of all, ``tesla`` has candidates in ``tuning``."""
IMAGES, BATCH = 640, 32
"""Of each corruption, one after the other without a reset: eighty batches. What harms in the end may help at first."""
PUBLISHED: dict[str, Any] = {**PRESETS["cifar10"], "ratio_l": 1, "gates": True, "freeze_base": False}
"""The constraint as published for TeSLA on CIFAR-10; whole numbers as results have them, whose rows they name."""
PLAIN: dict[str, Any] = {"rank": 4, "ratio_l": 1, "gates": True, "penalty": "l1", "freeze_base": False}
CANDIDATES: dict[str, dict[str, Any]] = {
    "as published": PUBLISHED,
    "rank 4, a tenth": {**PLAIN, "ratio_l": 0.1},
    "rank 4": PLAIN,
    "rank 4, no gates": {**PLAIN, "gates": False, "penalty": "none"},
    "updates alone": {**PLAIN, "freeze_base": True},
    "updates alone, tenfold": {**PLAIN, "freeze_base": True, "ratio_l": 10},
}
"""Settings that are tried, in words and in full: a default that changes later does not change what was tried."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: methods as they are and with each candidate, each through all of the extra corruptions."""
    for method in options.methods or ():
        if method not in BASES:
            raise ConfigError(f"This table has no method {method!r}.", nearest(method, BASES))
    data: dict[str, Any] = {"dataset": "cifar10-c", "model": MODEL, "limit": IMAGES}
    if scale == "smoke":
        data = {"dataset": "digits-c", "model": "digits-small", "limit": 64}
    arms: list[tuple[str, dict[str, Any]]] = [
        arm
        for base in options.methods or BASES
        for arm in ((base, {}), *((base + SUFFIX, hyper) for hyper in CANDIDATES.values()))
    ]
    data |= {"corruption": list(EXTRA), "protocol": "continual", "batch_size": BATCH}
    return [AdaptConfig(method=method, hyper=hyper, **data).cell() for method, hyper in arms]


def chosen(claims: Sequence[Claim]) -> dict[str, dict[str, Any]]:
    """Return for each method that has all candidates the one that is surest to do no harm.

    That is the one whose error less that of the method itself has the lowest upper bound. The candidate without gates
    stands for comparison: there would be nothing left to be sparse.
    """
    worst = {claim.evidence.quantity: claim.evidence.high for claim in claims}
    best = {}
    for base in BASES:
        tried = {f"error({row_name(base + SUFFIX, hyper)}) - error({base})": hyper for hyper in CANDIDATES.values()}
        if all(quantity in worst for quantity in tried):
            best[base] = tried[min((each for each in tried if tried[each]["gates"]), key=worst.__getitem__)]
    return best


def tried(records: Sequence[Record]) -> list[Listing]:
    """Return the average error of each method, as it is and with every candidate, in percent."""
    averages = {row.method: f"{row.value:.2f}" for row in error_rows(records) if row.column.endswith("/avg")}
    lines = [
        (base, averages[base], *(averages.get(row_name(base + SUFFIX, hyper)) for hyper in CANDIDATES.values()))
        for base in BASES
        if base in averages
    ]
    return [Listing("tried", ("method", "without", *CANDIDATES), lines)] if lines else []


PAIRS = [(row_name(base + SUFFIX, hyper), base) for base in BASES for hyper in CANDIDATES.values()]

register_table(
    Table(
        name="tuning-sc",
        record=True,
        title="The sparsity constraint on each kind of method, tried on the four extra corruptions (severity 5)",
        scales={
            "smoke": "64 images of the embedded digits, a small network trained on the spot",
            "small": f"{IMAGES:,} images of CIFAR-10-C per corruption, the joint model of the zoo",
        },
        options=frozenset({"methods"}),
        grid=grid,
        claims=lambda records: below_claims(records, PAIRS),
        summaries=tried,
    )
)
