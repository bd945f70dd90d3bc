"""Runs: a grid computed into its folder, and what can be said about a folder without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from offsupport.bench.cell import Cell, Place
from offsupport.bench.executor import Executor, Summary, label, run_cells
from offsupport.bench.store import Invalid, Record, Store, parse
from offsupport.core.errors import GridIncompleteError


@dataclass
class Status:
    """Where a run stands; every cell is counted once."""

    done: Sequence[Record] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by a label of the cell."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why there is no result yet, by a label of the cell."""

    def counts(self) -> dict[str, int]:
        """Return the number of cells in each state, and of all."""
        parts = {"done": len(self.done), "failed": len(self.failed), "missing": len(self.missing)}
        return {"total": sum(parts.values()), **parts}


def run_grid(
    cells: Sequence[Cell],
    place: Place,
    request: dict[str, Any],
    workers: int = 1,
    announce: Callable[[str], None] = lambda line: None,
    executor: Executor | None = None,
) -> Summary:
    """Compute a grid into its folder, taking up what is there; one run per folder at a time.

    Args:
        cells: The grid.
        place: The run folder and the data.
        request: What was asked, kept for the report.
        workers: How many processes; 0 for one per core, or per GPU where cells need one.
        announce: Given a line for people when something needs their attention.
        executor: Who computes; by default processes on this machine.
    """
    store = Store(place.folder)
    with store.locked():
        return run_cells(cells, place, workers, announce, lambda: store.add_to_grid(cells, request), executor)


def status(folder: Path | str, cells: Sequence[Cell] | None = None) -> Status:
    """Return where a run stands.

    Args:
        folder: The run folder.
        cells: Only these; by default all cells the folder is for.
    """
    store = Store(folder)
    done = _Done()
    found = Status(done)
    for cell in store.grid() if cells is None else dict.fromkeys(cells):
        result = store.sound(cell.key)
        if not isinstance(result, Invalid):
            done.files.append(result)
        elif (failure := store.failure(cell.key)) is not None:
            found.failed[label(cell)] = failure
        else:
            found.missing[label(cell)] = result.reason
    return found


class _Done(Sequence[Record]):
    """Results found intact, parsed when somebody looks into them: counting thousands takes no parsing."""

    def __init__(self) -> None:
        self.files: list[bytes] = []

    @cached_property
    def _records(self) -> list[Record]:
        return [parse(data) for data in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: Any) -> Any:
        return self._records[at]


def require_complete(summary: Summary, total: int, folder: Path) -> None:
    """Raise an error with exit code 4 when some cells have no result."""
    if not summary.complete:
        first = next(iter(summary.failed.values()))
        raise GridIncompleteError(
            f"{len(summary.failed)} of {total} cells have no result; the first one: {first}",
            f"Run the same command again to try them again, or see: offsupport bench status {folder}",
        )
