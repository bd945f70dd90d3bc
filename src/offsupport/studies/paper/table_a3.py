"""Table A3: does adaptation gain more from a supervised source model than from an equally accurate MoCo model?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.data import STANDARD
from offsupport.results.rows import Claim, Row, below, within
from offsupport.studies.errors import Part, difference, parts_of
from offsupport.studies.grids import expand
from offsupport.studies.mae_arms import accuracy_row
from offsupport.studies.published import brought
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = ("tent", "eata", "bn", "sar")
COLUMNS = ("supervised", "moco")
_PRINTED = {"tent": (38.13, 8.94), "eata": (42.77, 1.25), "bn": (29.13, 20.13), "sar": (41.47, 12.23)}
PRINTED = {(m, column): value for m in _PRINTED for column, value in zip(COLUMNS, _PRINTED[m], strict=True)}
"""Percent on ImageNet-C. The paper does not say of what; above the worst possible errors, it must be accuracy."""
IMAGES = 5000
"""Of each corruption at small scale."""
ALIKE = 0.02
"""Clean accuracies that differ by less count as similar; the paper's are "approximately 69.7 %" both."""
CLEAN = "source (clean)"
_ZOO = {
    "supervised": "zoo:cifar10-resnet18x0.25-supervised-early",
    "moco": "zoo:cifar10-resnet18x0.25-moco",
}
_DIGITS = {"supervised": "digits-small-early", "moco": "digits-moco"}
_BROUGHT = {column: f"imagenet-resnet50-{column}" for column in COLUMNS}


def _settings(scale: str, column: str) -> dict[str, Any]:
    if scale == "paper":
        model = brought(_BROUGHT[column], f"a {column} ResNet-50 of about 69.7 % accuracy on ImageNet")
        return {"dataset": "imagenet-c", "model": model, "preset": "imagenet", "batch_size": 64, "device": "cuda"}
    if scale == "small":
        return {"dataset": "cifar10-c", "model": _ZOO[column], "preset": "cifar10", "limit": IMAGES}
    return {"dataset": "digits-c", "model": _DIGITS[column]}


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells: all methods and no adaptation, from both models, and both on clean images."""
    methods, seeds = ("source", *(options.methods or METHODS)), range(options.seeds or 1)
    cells = []
    for column in COLUMNS:
        fixed = _settings(scale, column)
        cells += expand({"method": methods, "corruption": STANDARD, "seed": seeds}, **fixed)
        cells += expand({"method": ["source"], "seed": seeds}, **fixed)
    return list(dict.fromkeys(cells))


Found = Mapping[tuple[str, str], list[Part]]
"""Results by row and column."""


def by_source(records: Sequence[Record]) -> Found:
    """Sort results by method and source model."""
    found: dict[tuple[str, str], list[Part]] = {}
    for part in parts_of(records):
        config = part.record.cell.config
        column = "moco" if "moco" in config["model"] else "supervised"
        row = CLEAN if config["corruption"] is None else str(config["method"])
        found.setdefault((row, column), []).append(part)
    return found


def rows(records: Sequence[Record]) -> list[Row]:
    """Return accuracies averaged over corruptions; those without adaptation and on clean images are ours."""
    found = by_source(records)
    methods = dict.fromkeys(method for method, _ in found)
    keys = [(method, column) for method in methods for column in COLUMNS if (method, column) in found]
    return [accuracy_row(*key, found[key], PRINTED.get(key)) for key in keys]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Ask whether the models are alike on clean images, and which one each method does better from."""
    found = by_source(records)
    quantity = "error(supervised) - error(moco)"
    verdicts: list[Claim] = []
    for method in dict.fromkeys(method for method, _ in found):
        if not all((method, column) in found for column in COLUMNS):
            continue
        lead = difference(found[method, "supervised"], found[method, "moco"])
        if method == CLEAN:
            sentence = f"both source models are equally accurate on clean images, within {100 * ALIKE:.0f} points"
            verdicts.append(within(sentence, lead, ALIKE, quantity))
        else:
            verdicts.append(below(f"{method} errs less from the supervised model than from MoCo", lead, quantity))
    return verdicts


register_table(
    Table(
        name="tableA3",
        title="Adaptation from supervised and from MoCo source models (severity 5, online; the paper's: ImageNet-C)",
        scales={
            "smoke": "all fifteen corruptions of the embedded digits, two small networks trained on the spot",
            "small": f"{IMAGES:,} images of CIFAR-10-C per corruption, two models of the zoo",
            "paper": "ImageNet-C, two ResNet-50 of about 69.7 % clean accuracy, one GPU per worker",
        },
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
