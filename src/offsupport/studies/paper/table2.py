"""Table 2: test-time adaptation methods on common corruptions at severity 5, online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError, nearest
from offsupport.data import STANDARD
from offsupport.results.rows import Claim, Listing
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
PHOTOGRAPHS: dict[str, Any] = {
    "dataset": "imagenet-folder-c",
    "model": "pip:efficientnet-lite0",
    "preset": "imagenet",
    "batch_size": 50,
    "source_images": 500,
}
"""The scale ``imagenette``: a network of a thousand classes at 224 pixels, with weights that others trained."""
PHOTOGRAPH_METHODS = ("source", "bn", "tent", "shot", "eata", "sar", "ttac")
"""On all of its images. It has no projection head, which tttpp needs."""
BESIDE_TESLA = ("source", "bn", "tent", "shot")
"""Run on the images of the TeSLA rows as well: of a stream that short a method has seen little."""
FEWER = (("gaussian_noise", "defocus_blur", "fog", "jpeg_compression"), 250)
"""Corruptions, one of each family, and images of each that the TeSLA rows meet: a batch takes them twenty passes."""
PARTS = {"small": ("cifar10", "tiny100"), "imagenette": ("photographs", "tesla")}
"""Of the scales that have any; the first of the small scale is what runs there unless asked."""
STAND_INS = (
    ("hundred_classes", "tiny100-c", "cifar100-c/avg", "CIFAR-100-C"),
    ("thousand_classes", "imagenet-folder-c", "imagenet-c/avg", "ImageNet-C"),
)
"""Data that stands in for what cannot be had everywhere: other photographs of as many classes, of the same size."""
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
    parts = _parts(scale, options)
    if scale == "smoke":
        return _smoke(options)
    if scale in PARTS:
        of = {"cifar10": _ten, "tiny100": _hundred, "photographs": _photographs, "tesla": _tesla_on_photographs}
        return [cell for part in parts for cell in of[part](options)]
    cells = []
    for fixed in map(fixed_settings, SETTINGS):
        cells += [cell for seed in _seeds(options) for cell in _cells(fixed, options, seed)]
        methods = [method for method in _methods(fixed) if method.removesuffix("+sc") in SCORED_AFTER]
        cells += _running_statistics(fixed, options, methods)
    return cells


def _parts(scale: str, options: TableOptions) -> Sequence[str]:
    known = PARTS.get(scale, ())
    for part in options.parts or ():
        if part not in known:
            raise ConfigError(
                f"table2 has no part {part!r} at the scale {scale}.",
                nearest(part, known) if known else f"Leave --parts out: only {' and '.join(PARTS)} have any.",
            )
    return options.parts or (known[:1] if scale == "small" else known)


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


def _photographs(options: TableOptions) -> list[Cell]:
    """Return the rows on all photographs, one seed unless asked; TeSLA's only where they are asked for."""
    asked = replace(options, methods=options.methods or (*PHOTOGRAPH_METHODS, *our_methods()), seeds=options.seeds or 1)
    return [cell for seed in _seeds(asked) for cell in _cells({**PHOTOGRAPHS, "limit": 1000}, asked, seed)]


def _tesla_on_photographs(options: TableOptions) -> list[Cell]:
    """Return the TeSLA rows, and those they are compared with on the same images."""
    tesla = [method for method in METHODS if method.startswith("tesla")]
    corruptions, images = FEWER
    asked = replace(options, methods=options.methods or (*BESIDE_TESLA, *tesla), seeds=options.seeds or 1)
    fixed = {**PHOTOGRAPHS, "limit": images}
    return [cell for seed in _seeds(asked) for cell in _cells(fixed, asked, seed, corruptions)]


def _seeds(options: TableOptions) -> range:
    return range(options.seeds or max(SEEDS.values()))


def _smoke(options: TableOptions) -> list[Cell]:
    # A network trained on the spot has no projection head, which tttpp needs.
    methods = options.methods or [*(method for method in METHODS if method != "tttpp"), *our_methods()]
    axes = {"method": methods, "corruption": STANDARD, "seed": range(options.seeds or 1)}
    return expand(axes, dataset="digits-c", severity=5, protocol="online", model="digits-small", batch_size=128)


def _cells(
    fixed: Mapping[str, Any], options: TableOptions, seed: int, corruptions: Sequence[str] = STANDARD
) -> list[Cell]:
    return [
        AdaptConfig(method=method, corruption=corruption, seed=seed, **fixed, **_calibration(method, fixed)).cell()
        for method in options.methods or _methods(fixed)
        if seed < (options.seeds or SEEDS.get(method, 1))
        for corruption in corruptions
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


def _streams(records: Sequence[Record]) -> dict[str, dict[int | None, list[Record]]]:
    """Sort results by data set and by the number of images: a short stream is not compared with a long one."""
    found: dict[str, dict[int | None, list[Record]]] = {}
    for record in records:
        config = record.cell.config
        found.setdefault(str(config["dataset"]), {}).setdefault(config["limit"], []).append(record)
    return found


def claims(records: Sequence[Record]) -> list[Claim]:
    """Hold the paper's order against what was measured, among rows of the same images."""
    made = []
    for limits in _streams(records).values():
        for limit, found in limits.items():
            where = f", {limit} images each" if len(limits) > 1 else ""
            made += [replace(claim, claim=f"{claim.claim}{where}") for claim in below_claims(found, CLAIMS)]
    return made


def summaries(records: Sequence[Record]) -> list[Listing]:
    """Return errors beside those printed for what the data stands in for: they are no row's own number."""
    listings, streams = [], _streams(records)
    for name, dataset, column, printed in STAND_INS:
        columns = ("method", f"error on {dataset}, %", "95 % interval", "images", f"printed for {printed}, %")
        rows = [row for found in streams.get(dataset, {}).values() for row in error_rows(found)]
        lines = [
            (
                row.method,
                round(row.value, 2),
                f"{row.low:.1f} to {row.high:.1f}",
                row.n,
                PRINTED.get((row.method, column)),
            )
            for row in rows
            if row.column == f"{dataset}/avg"
        ]
        listings += [Listing(name, columns, lines)] if lines else []
    return listings


TABLE = register_table(
    Table(
        name="table2",
        title="Test-time adaptation methods under common corruptions (severity 5, online)",
        scales={
            "smoke": "all fifteen corruptions of the embedded digits, a small network trained on the spot",
            "small": "all fifteen corruptions of CIFAR-10-C, 10,000 images each, the joint model of the zoo; "
            "with --parts tiny100 those of tiny100, 2,000 images each",
            "imagenette": "photographs of ImageNet classes at 224 pixels, EfficientNet-Lite0 with a thousand classes: "
            "1,000 under each of the fifteen corruptions; TeSLA on 250 under four",
            "paper": "CIFAR-10-C, CIFAR-100-C and ImageNet-C, the published ResNet-50s, one GPU per worker",
        },
        options=frozenset({"methods", "seeds", "parts"}),
        grid=grid,
        rows=lambda records: error_rows(records, PRINTED),
        claims=claims,
        summaries=summaries,
    )
)
