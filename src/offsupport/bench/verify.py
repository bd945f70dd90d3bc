"""Recompute a sample of results and compare: exactly where versions and CPU agree, else within a tolerance."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offsupport.bench.cell import Place
from offsupport.bench.compare import of_records
from offsupport.bench.executor import label, run_cells
from offsupport.bench.runs import status
from offsupport.bench.store import Record, Store
from offsupport.bench.versions import versions
from offsupport.core.errors import GridIncompleteError
from offsupport.core.seeds import derive_seed

TOLERANCE = 0.02
"""Elsewhere kernels round differently and single predictions flip: numbers may differ by this much, or this share."""
_FINE = {"trace", "per_class", "images", "events", "warnings"}
"""Details in which one flipped prediction weighs more: only their sums are compared elsewhere."""


@dataclass
class Verified:
    """What a check of a sample found."""

    done: int
    """Results the run has."""
    sample: int
    """How many were computed again."""
    exact: int = 0
    """Compared bit for bit."""
    tolerant: int = 0
    """Computed elsewhere, and compared within the tolerance."""
    different: dict[str, str] = field(default_factory=dict)
    """What differs, by a label of the cell."""

    def words(self) -> str:
        """Return what was compared, and how, as a sentence."""
        ways = [
            f"{self.exact} bit for bit" if self.exact else "",
            f"{self.tolerant} within {TOLERANCE:g}, because versions or CPU are others" if self.tolerant else "",
        ]
        how = " and ".join(filter(None, ways)) or "none to compare"
        return f"{self.sample} of {self.done} results computed again: {how}."


def verify(
    folder: Path | str,
    data: Path | None = None,
    sample: int = 5,
    seed: int = 0,
    workers: int = 1,
    announce: Callable[[str], None] = lambda line: None,
) -> Verified:
    """Compute some results of a run again, in a folder of their own, and compare.

    Args:
        folder: The run folder; it is only read.
        data: The folder of the data sets.
        sample: How many results; all if there are fewer.
        seed: Seed of the choice.
        workers: How many processes; 0 for one per core, or per GPU where cells need one.
        announce: Given a line for people when something needs their attention.
    """
    done = list(status(folder).done)
    if not done:
        raise GridIncompleteError(f"{folder} has no results yet.", "Run its grid first.")
    chosen = random.Random(derive_seed("verify", seed)).sample(done, min(sample, len(done)))  # noqa: S311 - no secret
    found = Verified(len(done), len(chosen))
    with tempfile.TemporaryDirectory() as scratch:
        if (Path(folder) / "models").is_dir():  # the weights are part of what is verified, not made again
            shutil.copytree(Path(folder) / "models", Path(scratch) / "models")
        summary = run_cells([record.cell for record in chosen], Place(Path(scratch), data), workers, announce)
        for stored in chosen:
            now = Store(scratch).read(stored.key)
            failure = summary.failed.get(stored.key, "no result")
            said = _verdict(stored, now, found) if isinstance(now, Record) else f"failed now: {failure}"
            if said:
                found.different[label(stored.cell)] = said
    return found


def _verdict(stored: Record, now: Record, found: Verified) -> str:
    """Count how two results were compared, and return what differs, or nothing."""
    exact = all(stored.provenance.get(name) == now.provenance[name] for name in versions())
    found.exact += exact
    found.tolerant += not exact
    differences = of_records(stored, now) if exact else [d for d in of_records(stored, now) if not _tolerable(*d)]
    return "; ".join(f"{path} was {a!r}, is {b!r}" for path, a, b in differences[:3])


def _tolerable(path: str, a: Any, b: Any) -> bool:
    if path.removeprefix("provenance.") in versions() or _FINE & set(re.split(r"[.\[]", path)):
        return True
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (a, b))
    return numbers and abs(a - b) <= TOLERANCE * max(1.0, abs(a))


def require_same(found: Verified, folder: Path) -> None:
    """Raise an error with exit code 4 when results came out differently."""
    if found.different:
        first, said = next(iter(found.different.items()))
        raise GridIncompleteError(
            f"{len(found.different)} of {found.sample} results came out differently; {first}: {said}",
            f"Delete {folder / 'cells'} and run the grid again, or find out what changed: offsupport bench diff.",
        )
