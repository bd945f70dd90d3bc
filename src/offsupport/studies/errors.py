"""Rows and claims about classification errors, shared by the tables that print them and by grids of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from offsupport.bench.store import Record
from offsupport.core.files import canonical_json
from offsupport.functional import wilson
from offsupport.results.correctness import Bools, Rows, unpack
from offsupport.results.intervals import Estimate, Floats, difference_estimate, mean_estimate
from offsupport.results.rows import Claim, Row, below

# Results of a run, laid out for comparison: per method and domain, image by image.


_COLUMNS = {"method", "hyper", "dataset", "corruption", "severity", "seed", "shard"}
"""Settings that a row or column of a table tells by itself, and the seed, over which it averages."""
_SOURCE = {"source_images", "source_split"}
"""Settings of source statistics: part of a method's name only where one method has several of them."""


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
    differing = tuple(name for name in sorted(set(names) - _COLUMNS) if _differs(name, adapted))
    whole: dict[str, list[Record]] = {}
    for record in adapted:
        settings = dict(record.cell.config)
        # Shards of one stream belong together; a result that is no shard has no company.
        alone = settings.pop("shard", None) is None
        whole.setdefault(record.key if alone else canonical_json(settings), []).append(record)
    return [
        Part(found[0], domain, differing, tuple(found))
        for found in whole.values()
        for domain in found[0].deterministic["domains"]
    ]


def _differs(name: str, records: Sequence[Record]) -> bool:
    """Say whether a setting is not the same in all results; one of source statistics, in all of some method."""
    first: dict[str, Any] = {}
    for config in (record.cell.config for record in records):
        owner = config["method"] if name in _SOURCE else ""
        if first.setdefault(owner, config.get(name)) != config.get(name):
            return True
    return False


def mixed_weights(records: Iterable[Record]) -> list[str]:
    """Return a sentence for every model whose results were computed with more than one set of weights."""
    weights: dict[str, set[str]] = {}
    for record in records:
        if record.cell.kind == "adapt":
            model, hash_ = record.cell.config.get("model"), record.provenance.get("weights_sha256")
            weights.setdefault(str(model), set()).add(str(hash_))
    return [
        f"The results of {model} were computed with {len(found)} different sets of weights and should not be compared."
        for model, found in weights.items()
        if len(found) > 1
    ]


def estimate(parts: Sequence[Part], *, repeated: bool = False) -> Estimate:
    """Return the error averaged over parts: Wilson's interval for one, else a bootstrap over images.

    Args:
        parts: What is averaged.
        repeated: An image may come several times within a part: then images are drawn for a single one as well.
    """
    if len(parts) == 1 and not repeated:
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


Printed = Mapping[tuple[str, str], float]
"""The paper's numbers by method and column."""


Columns = dict[str, dict[str, list[Part]]]
"""Results by method and column."""


def error_rows(records: Sequence[Record], printed: Printed = MappingProxyType({})) -> list[Row]:
    """Return the error of each method on each corruption and on average, in percent.

    The average is left out for a method that lacks a column others have: it would compare different things.
    """
    rows = []
    for dataset, table in _by_dataset(records).items():
        columns = list(dict.fromkeys(column for found in table.values() for column in found))
        for method, found in table.items():
            rows += [error_row(method, column, found[column], printed) for column in columns if column in found]
            if len(columns) > 1 and all(column in found for column in columns):
                every = [part for column in columns for part in found[column]]
                rows.append(error_row(method, f"{dataset}/avg", every, printed))
    return rows


def below_claims(records: Sequence[Record], pairs: Sequence[tuple[str, str]]) -> list[Claim]:
    """Check for each data set and pair (a, b) that the average error of a is below that of b, on shared columns.

    Only seeds that both have are compared: a seed is an order of the stream, and some orders are easier.
    """
    claims = []
    for dataset, table in _by_dataset(records).items():
        for better, worse in pairs:
            shared = [column for column in table.get(better, {}) if column in table.get(worse, {})]
            if shared:
                both = [_same_seeds(table[better][column], table[worse][column]) for column in shared]
                ours, theirs = ([part for found in side for part in found] for side in zip(*both, strict=True))
                sentence = f"{better} has a lower average error than {worse} on {dataset}"
                claims.append(below(sentence, difference(ours, theirs), f"error({better}) - error({worse})"))
    return claims


def below_each(records: Sequence[Record], better: str, worse: str) -> list[Claim]:
    """Check for each column that the error of one method is below that of another."""
    claims = []
    for table in _by_dataset(records).values():
        ours, theirs = table.get(better, {}), table.get(worse, {})
        for column in (column for column in ours if column in theirs):
            sentence = f"{better} has a lower error than {worse} on {column}"
            found = difference(*_same_seeds(ours[column], theirs[column]))
            claims.append(below(sentence, found, f"error({better}) - error({worse})"))
    return claims


def _same_seeds(ours: Sequence[Part], theirs: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """Return what both sides have of the seeds that both have; all, where they have none in common."""
    seeds = {_seed(part) for part in ours} & {_seed(part) for part in theirs}
    if not seeds:
        return list(ours), list(theirs)
    return [part for part in ours if _seed(part) in seeds], [part for part in theirs if _seed(part) in seeds]


def _seed(part: Part) -> int:
    return int(part.record.cell.config["seed"])


def _by_dataset(records: Sequence[Record]) -> dict[str, Columns]:
    """Lay results out by data set; settings that differ between data sets only are no part of a method's name."""
    own: dict[str, list[Record]] = {}
    for record in (record for record in records if record.cell.kind == "adapt"):
        own.setdefault(str(record.cell.config["dataset"]), []).append(record)
    return {dataset: _by_method_and_column(found) for dataset, found in own.items()}


def _by_method_and_column(records: Sequence[Record]) -> Columns:
    parts = parts_of(records)
    severities = {part.domain.rpartition("/")[2] for part in parts if "/" in part.domain}
    table: Columns = {}
    for part in parts:
        corruption = part.domain.rpartition("/")[0] if len(severities) == 1 and "/" in part.domain else part.domain
        table.setdefault(part.method, {}).setdefault(f"{part.dataset}/{corruption}", []).append(part)
    return table


def error_row(method: str, column: str, parts: Sequence[Part], printed: Printed) -> Row:
    """Return the error over parts in percent, with its interval."""
    found = estimate(parts)
    return Row(
        method=method,
        column=column,
        metric="error",
        unit="percent",
        value=100 * found.value,
        low=100 * found.low,
        high=100 * found.high,
        n=found.n,
        paper=printed.get((method, column)),
        cells=found.cells,
    )
