"""Runs: a grid computed into its folder, and what can be said about a folder without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offsupport.bench.cell import Cell, Place
from offsupport.bench.executor import Summary, label, run_cells
from offsupport.bench.store import Record, Store
from offsupport.core.errors import GridIncompleteError


@dataclass
class Status:
    """Where a run stands; every cell is counted once."""

    done: list[Record] = field(default_factory=list)
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
) -> Summary:
    """Compute a grid into its folder, taking up what is there; one run per folder at a time.

    Args:
        cells: The grid.
        place: The run folder and the data.
        request: What was asked, kept for the report.
        workers: How many processes.
        announce: Given a line for people when something needs their attention.
    """
    store = Store(place.folder)
    with store.locked():
        return run_cells(cells, place, workers, announce, begin=lambda: store.add_to_grid(cells, request))


def status(folder: Path | str, cells: Sequence[Cell] | None = None) -> Status:
    """Return where a run stands.

    Args:
        folder: The run folder.
        cells: Only these; by default all cells the folder is for.
    """
    store = Store(folder)
    found = Status()
    for cell in store.grid() if cells is None else dict.fromkeys(cells):
        result = store.read(cell.key)
        if isinstance(result, Record):
            found.done.append(result)
        elif (failure := store.failure(cell.key)) is not None:
            found.failed[label(cell)] = failure
        else:
            found.missing[label(cell)] = result.reason
    return found


def require_complete(summary: Summary, total: int, folder: Path) -> None:
    """Raise an error with exit code 4 when some cells have no result."""
    if not summary.complete:
        first = next(iter(summary.failed.values()))
        raise GridIncompleteError(
            f"{len(summary.failed)} of {total} cells have no result; the first one: {first}",
            f"Run the same command again to try them again, or see: offsupport bench status {folder}",
        )
