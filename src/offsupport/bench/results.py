"""Results of a run, laid out for comparison: per method and domain, image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from offsupport.bench.correctness import Bools, Rows, unpack
from offsupport.bench.stats import Estimate, Floats, difference_estimate, mean_estimate
from offsupport.bench.store import Record
from offsupport.core.files import canonical_json
from offsupport.functional import wilson

_COLUMNS = {"method", "hyper", "dataset", "corruption", "severity", "seed", "shard"}
"""Settings that a row or column of a table tells by itself, and the seed, over which it averages."""


def row_name(method: str, settings: Mapping[str, Any]) -> str:
    """Return what the row of a method with these settings is called."""
    words = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
    return f"{method} ({words})" if words else method


@dataclass(frozen=True)
class Part:
    """One method on one domain with one seed."""

    record: Record
    domain: str
    differing: tuple[str, ...] = ()
    """Settings that are not the same in all results it is laid out with, beside seed, method and data."""
    shards: tuple[Record, ...] = ()
    """The results of all its shards, where the stream was split."""

    @property
    def method(self) -> str:
        """The method, with the hyper-parameters that were set for it and the settings that tell it from others."""
        config = self.record.cell.config
        return row_name(config["method"], {**config["hyper"], **{name: config[name] for name in self.differing}})

    @property
    def dataset(self) -> str:
        """The data set."""
        return str(self.record.cell.config["dataset"])

    @property
    def cells(self) -> tuple[str, ...]:
        """The keys of its results."""
        return tuple(record.key for record in self.shards or (self.record,))

    @cached_property
    def images(self) -> tuple[Rows, Bools]:
        """The rows seen, ascending, and whether each was right."""
        found = [unpack(r.deterministic["domains"][self.domain]["images"]) for r in self.shards or (self.record,)]
        rows, correct = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(rows, kind="stable")
        return rows[order], correct[order]


def parts_of(records: Iterable[Record]) -> list[Part]:
    """Return every domain of every adaptation result."""
    adapted = [record for record in records if record.cell.kind == "adapt"]
    names = adapted[0].cell.config if adapted else {}
    differing = tuple(
        name
        for name in sorted(set(names) - _COLUMNS)
        if len({canonical_json(record.cell.config.get(name)) for record in adapted}) > 1
    )
    whole: dict[str, list[Record]] = {}
    for record in adapted:
        settings = {name: value for name, value in record.cell.config.items() if name != "shard"}
        whole.setdefault(canonical_json(settings), []).append(record)
    return [
        Part(found[0], domain, differing, tuple(found))
        for found in whole.values()
        for domain in found[0].deterministic["domains"]
    ]


def mixed_weights(records: Iterable[Record]) -> list[str]:
    """Return a sentence for every model whose results were computed with more than one set of weights."""
    weights: dict[str, set[str]] = {}
    for record in records:
        if record.cell.kind == "adapt":
            weights.setdefault(record.cell.config["model"], set()).add(record.provenance["weights_sha256"])
    return [
        f"The results of {model} were computed with {len(found)} different sets of weights and should not be compared."
        for model, found in weights.items()
        if len(found) > 1
    ]


def estimate(parts: Sequence[Part]) -> Estimate:
    """Return the error averaged over parts: Wilson's interval for one, else a bootstrap over images."""
    if len(parts) == 1:
        _, correct = parts[0].images
        wrong = int((~correct).sum())
        low, high = wilson(wrong, len(correct))
        return Estimate(wrong / len(correct), low, high, len(correct), parts[0].cells)
    return replace(mean_estimate(_matrices([parts])[0]), cells=_cells(parts))


def difference(parts: Sequence[Part], baseline: Sequence[Part]) -> Estimate:
    """Return how much the average error of ``parts`` lies above that of ``baseline``, paired by image."""
    ours, theirs = _matrices([parts, baseline])
    return replace(difference_estimate(ours, theirs), cells=_cells([*parts, *baseline]))


def _cells(parts: Sequence[Part]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for part in parts for key in part.cells))


def _matrices(groups: Sequence[Sequence[Part]]) -> list[Floats]:
    """One matrix per group with the same images in the same rows; one column per part, NaN where it lacks an image."""
    every = [part.images[0] for group in groups for part in group]
    rows = np.unique(np.concatenate(every))
    return [np.stack([_column(part, rows) for part in group], axis=1) for group in groups]


def _column(part: Part, rows: Rows) -> Floats:
    seen, correct = part.images
    at = np.searchsorted(rows, seen)
    times = np.bincount(at, minlength=len(rows))
    wrong = np.bincount(at, weights=(~correct).astype(np.float64), minlength=len(rows))
    with np.errstate(invalid="ignore"):
        column: Floats = wrong / times
    return column
