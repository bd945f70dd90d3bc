"""Table 2: test-time adaptation methods on common corruptions at severity 5, online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.data import STANDARD
from offsupport.results.rows import Listing
from offsupport.studies.adaptation import CALIBRATION, OURS, AdaptConfig, our_methods
from offsupport.studies.errors import Printed, below_claims, error_rows, row_name
from offsupport.studies.grids import expand
from offsupport.studies.published import SETTINGS, fixed_settings
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = (
    "source",
    "bn",
    "tent",
    "shot",
    "tttpp",
    "ttac",
    "tesla",
    "tesla+sc",
    "tesla-s",
    "tesla-s+sc",
    "eata",
    "sar",
)
MODEL = "zoo:cifar10-resnet18x0.25-joint"
"""The source model at small scale: the one of the zoo with a projection head, which tttpp needs."""
HUNDRED = "zoo:tiny100-resnet18x0.25-joint"
"""The one of the part ``tiny100``."""
HUNDRED_METHODS = ("source", "bn", "tent", "shot", "eata", "tesla", "tesla+sc")
HUNDRED_IMAGES = 2000
"""Of each corruption, out of the 5,000 that tiny100 has to test."""
PARTS = ("cifar10", "tiny100")
"""Of the small scale; the first is what runs unless asked."""
STAND_IN = ("tiny100-c/avg", "cifar100-c/avg")
"""A column, and the one it stands in for: other photographs of as many classes, of the same size and number."""
SCORED_AFTER = ("tesla", "tesla-s", "ttac", "tttpp")
"""Methods that are scored after their step, by the statistics of the batch or by the running ones, as published."""
RUNNING = {"score_stats": "running"}
SEEDS = dict.fromkeys(("bn", "tent", "tesla", "tesla+sc", "tesla-s", "tesla-s+sc"), 3)
"""Of the rows that the claims are about; one seed of the others."""
_COLUMNS = ("cifar10-c/avg", "cifar100-c/avg", "imagenet-c/avg")
_PRINTED = {
    "source": (29.1, 60.4, 81.8),
    "bn": (15.6, 43.7, 67.7),
    "tent": (14.1, 39.0, 57.4),
    "shot": (13.9, 39.2, 68.7),
    "tttpp": (15.8, 44.4, 59.3),
    "ttac": (13.4, 41.7, 58.7),
    "tesla-s": (12.1, 37.3, 53.1),
    "tesla-s+sc": (11.7, 37.0, 50.9),
    "tesla": (12.5, 38.2, 55.0),
    "tesla+sc": (12.1, 38.0, 54.5),
}


def however_scored(printed: Printed) -> Printed:
    """Return printed numbers for the rows of both statistics that a method may be scored by."""
    rows = (({method, row_name(method, RUNNING)}, column, value) for (method, column), value in printed.items())
    return {(row, column): value for both, column, value in rows for row in both}


PRINTED = however_scored(
    {(m, column): value for m in _PRINTED for column, value in zip(_COLUMNS, _PRINTED[m], strict=True)}
)
"""Average error in percent; they stand only beside columns of the same data."""
CLAIMS = (
    ("bn", "source"),
    ("tent", "bn"),
    ("shot", "bn"),
    ("tesla", "tent"),
    ("tesla+sc", "tesla"),
    ("tesla-s+sc", "tesla-s"),
    ("tesla-s", "tesla"),
    ("tesla-s+sc", "tesla+sc"),
)
"""TeSLA below TENT below BN below Source; the constraint below its base; source statistics help."""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; the embedded digits are all that ``smoke`` needs."""
    if scale == "smoke":
        _parts(options, ())
        return _smoke(options)
    if scale == "small":
        of = {"cifar10": _ten, "tiny100": _hundred}
        return [cell for part in _parts(options) for cell in of[part](options)]
    _parts(options, ())
    cells = []
    for fixed in map(fixed_settings, SETTINGS):
        cells += [cell for seed in _seeds(options) for cell in _cells(fixed, options, seed)]
        methods = [method for method in _methods(fixed) if method.removesuffix("+sc") in SCORED_AFTER]
        cells += _running_statistics(fixed, options, methods)
    return cells


def _parts(options: TableOptions, known: Sequence[str] = PARTS) -> Sequence[str]:
    for part in options.parts or ():
        if part not in known:
            raise ConfigError(
                f"table2 has no part {part!r} at this scale.",
                nearest(part, known) if known else "Parts are of the scale small: leave --parts out.",
            )
    return options.parts or known[:1]


def _ten(options: TableOptions) -> list[Cell]:
    """Return the small scale on CIFAR-10-C."""
    fixed: dict[str, Any] = {"dataset": "cifar10-c", "preset": "cifar10-small", "model": MODEL}
    first, *others = _seeds(options)
    rows = [*_cells(fixed, options, first), *_running_statistics(fixed, options, ("ttac", "tesla"))]
    return rows + [cell for seed in others for cell in _cells(fixed, options, seed)]


def _hundred(options: TableOptions) -> list[Cell]:
    """Return the small scale on a hundred classes, one seed unless asked."""
    fixed: dict[str, Any] = {"dataset": "tiny100-c", "preset": "cifar100", "model": HUNDRED, "limit": HUNDRED_IMAGES}
    methods = options.methods or (*HUNDRED_METHODS, *our_methods())
    asked = replace(options, methods=tuple(methods), seeds=options.seeds or 1)
    return [cell for seed in _seeds(asked) for cell in _cells(fixed, asked, seed)]


def _seeds(options: TableOptions) -> range:
    return range(options.seeds or max(SEEDS.values()))


def _smoke(options: TableOptions) -> list[Cell]:
    # A network trained on the spot has no projection head, which tttpp needs.
    methods = options.methods or [*(method for method in METHODS if method != "tttpp"), *our_methods()]
    axes = {"method": methods, "corruption": STANDARD, "seed": range(options.seeds or 1)}
    return expand(axes, dataset="digits-c", severity=5, protocol="online", model="digits-small", batch_size=128)


def _cells(fixed: Mapping[str, Any], options: TableOptions, seed: int) -> list[Cell]:
    return [
        AdaptConfig(method=method, corruption=corruption, seed=seed, **fixed, **_calibration(method, fixed)).cell()
        for method in options.methods or _methods(fixed)
        if seed < (options.seeds or SEEDS.get(method, 1))
        for corruption in STANDARD
    ]


def _methods(fixed: Mapping[str, Any]) -> list[str]:
    # The published network on ImageNet has no projection head either.
    published = [method for method in METHODS if method != "tttpp" or fixed["dataset"] != "imagenet-c"]
    return [*published, *(our_methods() if fixed["model"] == MODEL else [])]


def _calibration(method: str, fixed: Mapping[str, Any]) -> Mapping[str, Any]:
    return CALIBRATION if method in OURS and fixed["model"] in (MODEL, HUNDRED) else {}


def _running_statistics(fixed: Mapping[str, Any], options: TableOptions, methods: Sequence[str]) -> list[Cell]:
    """Return the rows scored by running statistics, as published; by default ours are scored by those of the batch."""
    return [
        AdaptConfig(method=method, hyper=RUNNING, corruption=corruption, **fixed).cell()
        for method in methods
        if method in (options.methods or METHODS)
        for corruption in STANDARD
    ]


def summaries(records: Sequence[Record]) -> list[Listing]:
    """Return errors on tiny100-c beside those printed for CIFAR-100-C: other data, so they are no row's own number."""
    ours, theirs = STAND_IN
    columns = ("method", "error on tiny100-c, %", "95 % interval", "images", "printed for CIFAR-100-C, %")
    lines = [
        (
            row.method,
            round(row.value, 2),
            f"{row.low:.1f} to {row.high:.1f}",
            row.n,
            PRINTED.get((row.method, theirs)),
        )
        for row in error_rows(records)
        if row.column == ours
    ]
    return [Listing("hundred_classes", columns, lines)] if lines else []


TABLE = register_table(
    Table(
        name="table2",
        title="Test-time adaptation methods under common corruptions (severity 5, online)",
        scales={
            "smoke": "all fifteen corruptions of the embedded digits, a small network trained on the spot",
            "small": "all fifteen corruptions of CIFAR-10-C, 10,000 images each, the joint model of the zoo; "
            "with --parts tiny100 those of tiny100, 2,000 images each",
            "paper": "CIFAR-10-C, CIFAR-100-C and ImageNet-C, the published ResNet-50s, one GPU per worker",
        },
        options=frozenset({"methods", "seeds", "parts"}),
        grid=grid,
        rows=lambda records: error_rows(records, PRINTED),
        claims=lambda records: below_claims(records, CLAIMS),
        summaries=summaries,
    )
)
