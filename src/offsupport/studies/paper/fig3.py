"""Figure 3: TENT under impulse noise, by the severity of the noise and the side of the square it is limited to.

The paper names neither the sides nor the noise beyond severity 5, and its numbers stand in a picture only: the sides
are ours, the noise continues as in :mod:`offsupport.data.corruptions.registry`, and no printed number is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from offsupport.bench.cell import Cell
from offsupport.bench.store import Record
from offsupport.results.intervals import Estimate
from offsupport.results.rows import Claim, Row, below, shifted
from offsupport.studies.adaptation import CALIBRATION, OURS, our_methods
from offsupport.studies.errors import Part, difference, error_row, estimate, parts_of
from offsupport.studies.grids import expand
from offsupport.studies.published import fixed_settings
from offsupport.studies.tables import Table, TableOptions, register_table

METHODS = ("source", "tent")
BLOCKS = (8, 16, 24, 32)
"""Sides of the square in pixels; 32 is the whole image."""
SEVERITIES = tuple(range(1, 11))
IMAGES = 5000
"""Of each combination at small scale: forty batches."""
FLAT, DECLINE, COLLAPSE = 0.05, 0.20, 0.80
"""What "almost constant", "dramatically declines" and "collapses" are taken to mean: two rises and an error."""
NAMES = {"tent": "TENT"}
"""As the paper spells them."""
SUPERVISED = "zoo:cifar10-resnet18x0.25-supervised"
Curves = dict[tuple[str, int, int], list[Part]]
"""Results by method, block and severity."""


def _fixed(scale: str) -> dict[str, Any]:
    if scale == "paper":
        return fixed_settings("cifar10-c")
    if scale == "small":
        return {"dataset": "cifar10-c", "model": SUPERVISED, "preset": "cifar10", "limit": IMAGES}
    return {"dataset": "digits-c", "model": "digits-small"}


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells; the same images, the same squares and orders everywhere."""
    axes = {"block": BLOCKS, "severity": SEVERITIES, "seed": range(options.seeds or 1)}
    fixed = {"corruption": "impulse_noise", **_fixed(scale)}
    ours = CALIBRATION if scale == "small" else {}
    methods = options.methods or (METHODS if scale == "paper" else (*METHODS, *our_methods()))
    return [
        cell
        for method in methods
        for cell in expand({"method": [method], **axes}, **fixed, **(ours if method in OURS else {}))
    ]


def curves(records: Sequence[Record]) -> Curves:
    """Sort results by method, block and severity."""
    found: Curves = {}
    for part in parts_of(records):
        config = part.record.cell.config
        found.setdefault((config["method"], config["block"], config["severity"]), []).append(part)
    return found


def rows(records: Sequence[Record]) -> list[Row]:
    """Return the error at every block and severity."""
    found = sorted(curves(records).items())
    return [error_row(m, f"block-{block}/severity-{severity}", parts, {}) for (m, block, severity), parts in found]


def claims(records: Sequence[Record]) -> list[Claim]:
    """Ask whether TENT stays flat under sparse shifts, and declines and collapses under dense ones; and so of ours."""
    found = curves(records)
    made = _regimes(found, "tent")
    made += _by_size(found, SEVERITIES[-1]) if made else []
    for method in OURS:
        made += [*_regimes(found, method), *_beside_tent(found, method)]
    return made


def _regimes(found: Curves, method: str) -> list[Claim]:
    """Judge the sentences of the paper about one method, if the corners of the figure are there."""
    sparse, dense, mild, harsh = BLOCKS[0], BLOCKS[-1], SEVERITIES[0], SEVERITIES[-1]
    corners = [(method, block, severity) for block in (sparse, dense) for severity in (mild, harsh)]
    if not all(corner in found for corner in corners):
        return []
    name = NAMES.get(method, method)
    sparse_mild, sparse_harsh, dense_mild, dense_harsh = (found[corner] for corner in corners)
    rise = f"rise of the error from severity {mild} to {harsh}"
    flat = shifted(difference(sparse_harsh, sparse_mild), FLAT)
    declining = shifted(difference(dense_mild, dense_harsh), -DECLINE)
    # The mean over two columns is half of their sum.
    half = difference(sparse_harsh + dense_mild, sparse_mild + dense_harsh)
    gap = Estimate(2 * half.value, 2 * half.low, 2 * half.high, half.n, half.cells)
    last = estimate(dense_harsh)
    collapsing = Estimate(COLLAPSE - last.value, COLLAPSE - last.high, COLLAPSE - last.low, last.n, last.cells)
    return [
        below(
            f"{name} is almost constant over severities in the sparse regime (block-{sparse}, {100 * FLAT:.0f} points)",
            flat,
            f"{rise} at block-{sparse}, less {100 * FLAT:.0f} points",
        ),
        below(
            f"{name} declines dramatically in the dense regime (block-{dense}, {100 * DECLINE:.0f} points)",
            declining,
            f"{100 * DECLINE:.0f} points less the {rise} at block-{dense}",
        ),
        below(
            f"the error of {name} rises less with severity in the sparse regime than in the dense one",
            gap,
            f"{rise} at block-{sparse}, less that at block-{dense}",
        ),
        below(
            f"{name} collapses in the dense regime (block-{dense}: an error above {100 * COLLAPSE:.0f} %)",
            collapsing,
            f"{100 * COLLAPSE:.0f} % less the error at severity {harsh}",
        ),
    ]


def _by_size(found: Curves, severity: int) -> list[Claim]:
    """Errors rise with the size of the square, one step after the other."""
    present = [block for block in BLOCKS if ("tent", block, severity) in found]
    return [
        below(
            f"the error of TENT is lower at block-{small} than at block-{large} (severity {severity})",
            difference(found["tent", small, severity], found["tent", large, severity]),
            f"error(block-{small}) - error(block-{large})",
        )
        for small, large in itertools.pairwise(present)
    ]


def _beside_tent(found: Curves, method: str) -> list[Claim]:
    """Ask of each square whether a method of ours errs less than TENT, over all severities."""
    made = []
    for block in BLOCKS:
        both = [s for s in SEVERITIES if (method, block, s) in found and ("tent", block, s) in found]
        ours, theirs = ([part for s in both for part in found[name, block, s]] for name in (method, "tent"))
        if both:
            sentence = f"{method} errs less than TENT at block-{block}, over severities {both[0]} to {both[-1]}"
            made.append(below(sentence, difference(ours, theirs), f"error({method}) - error(tent)"))
    return made


register_table(
    Table(
        name="fig3",
        title="TENT under impulse noise by severity and by the side of the corrupted square (online)",
        scales={
            "smoke": "the embedded digits, a small network trained on the spot",
            "small": f"{IMAGES:,} images of CIFAR-10 per combination, corrupted as read; the zoo's supervised model",
            "paper": "10,000 images of CIFAR-10 per combination, the published ResNet-50, one GPU per worker",
        },
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=rows,
        claims=claims,
    )
)
