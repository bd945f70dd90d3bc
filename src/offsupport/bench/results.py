"""Results of a run, laid out for comparison: per method and domain, image by image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from offsupport.bench.correctness import Bools, Rows, unpack
from offsupport.bench.stats import Estimate, Floats, difference_estimate, mean_estimate
from offsupport.bench.store import Record
from offsupport.functional import wilson


@dataclass(frozen=True)
class Part:
    """One method on one domain with one seed."""

    record: Record
    domain: str

    @property
    def method(self) -> str:
        """The method, with the hyper-parameters that were set for it."""
        config = self.record.cell.config
        hyper = ", ".join(f"{name}={value}" for name, value in sorted(config["hyper"].items()))
        return f"{config['method']} ({hyper})" if hyper else str(config["method"])

    @property
    def dataset(self) -> str:
        """The data set."""
        return str(self.record.cell.config["dataset"])

    @cached_property
    def images(self) -> tuple[Rows, Bools]:
        """The rows seen, ascending, and whether each was right."""
        return unpack(self.record.deterministic["domains"][self.domain]["images"])


def parts_of(records: Iterable[Record]) -> list[Part]:
    """Return every domain of every adaptation result."""
    adapted = (record for record in records if record.cell.kind == "adapt")
    return [Part(record, domain) for record in adapted for domain in record.deterministic["domains"]]


def estimate(parts: Sequence[Part]) -> Estimate:
    """Return the error averaged over parts: Wilson's interval for one, else a bootstrap over images."""
    if len(parts) == 1:
        _, correct = parts[0].images
        wrong = int((~correct).sum())
        low, high = wilson(wrong, len(correct))
        return Estimate(wrong / len(correct), low, high, len(correct))
    return mean_estimate(_matrices([parts])[0])


def difference(parts: Sequence[Part], baseline: Sequence[Part]) -> Estimate:
    """Return how much the average error of ``parts`` lies above that of ``baseline``, paired by image."""
    ours, theirs = _matrices([parts, baseline])
    return difference_estimate(ours, theirs)


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
