"""What the sparsity constraint left: gates, and the effective rank of the update of each layer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from offsupport.bench.results import parts_of
from offsupport.bench.store import Record
from offsupport.report import figures
from offsupport.report.page import Figure, Section, Table

LAYERS = 24
"""Layers with a line; of more, those that changed most."""
LINES = 6
Findings = dict[str, list[dict[str, Any]]]


def constraint_sections(records: Sequence[Record]) -> list[Section]:
    """Return the section about gates and ranks, if any result holds them."""
    found = _findings(records)
    if not found:
        return []
    means = {method: update_means(own) for method, own in found.items()}
    rows = [
        [method, f"{100 * zeros:.1f}", f"{rank:.2f}", f"{100 * change:.3g}", str(len(found[method]))]
        for method, (zeros, rank, change) in means.items()
    ]
    names = ["method", "gates at zero (%)", "effective rank", "change of the weights (%)", "cells"]
    table = Table(names, rows, "Means over layers and cells, at the end of each stream.")
    shown = dict(list(found.items())[:LINES])
    drawings = [_ranks(shown), *_gates(shown)]
    prose = (
        "A method under the constraint adapts a low-rank update of each layer, with a gate per rank. The change is the "
        "size of the update relative to the weights it is added to."
    )
    return [Section("Gates and ranks", prose, [table], drawings)]


def _findings(records: Sequence[Record]) -> Findings:
    """What constrained adapters reported, by method as the tables name it; each result once."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for part in parts_of(records):
        told = part.record.deterministic.get("findings", {})
        if "updates" in told and "gates" in told:
            found.setdefault(part.method, {})[part.record.key] = told
    return {method: list(own.values()) for method, own in found.items()}


def _ranks(found: Findings) -> Figure:
    """Mean effective rank of each layer, from the smallest to the largest over cells."""
    change: dict[str, float] = {}
    for told in (each for own in found.values() for each in own):
        for layer, update in told["updates"].items():
            change[layer] = max(change.get(layer, 0.0), update["change"])
    kept = set(sorted(change, key=lambda layer: -change[layer])[:LAYERS])
    series: dict[str, dict[str, figures.Interval]] = {}
    for method, own in found.items():
        for layer in (layer for layer in own[0]["updates"] if layer in kept):
            ranks = [each["updates"][layer]["effective_rank"] for each in own if layer in each["updates"]]
            series.setdefault(method, {})[layer] = statistics.fmean(ranks), min(ranks), max(ranks)
    only = f" The {LAYERS} of {len(change)} layers that changed most." if len(change) > LAYERS else ""
    caption = f"Effective rank by layer: the mean over cells, and its range.{only}"
    return Figure(figures.intervals(series, "effective rank"), caption)


def _gates(found: Findings) -> list[Figure]:
    values = {m: [g for each in own for layer in each["gates"].values() for g in layer] for m, own in found.items()}
    values = {method: gates for method, gates in values.items() if gates}
    caption = "Values of the gates over all layers and cells, at the end of each stream."
    return [Figure(figures.histogram(values, "gate"), caption)] if values else []


def update_means(own: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Return the share of gates at zero, the effective rank and the relative change, over results and their layers."""
    zeros, rank = (statistics.fmean(each[name] for each in own) for name in ("zero_gates", "mean_effective_rank"))
    return zeros, rank, statistics.fmean(u["change"] for each in own for u in each["updates"].values())
