"""Runs: a grid computed into its folder, and what can be said about a folder without computing anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from offsupport.bench.cell import Cell, Place
from offsupport.bench.executor import Executor, Summary, run_cells
from offsupport.bench.store import Invalid, Record, Sound, Store
from offsupport.core.errors import GridIncompleteError


@dataclass
class Status:
    """Where a run stands; every cell is counted once."""

    done: Sequence[Record] = field(default_factory=list)
    failed: dict[Cell, str] = field(default_factory=dict)
    """What went wrong."""
    missing: dict[Cell, str] = field(default_factory=dict)
    """Why there is no result yet."""
    cells: str = "cells"
    """The folder of the result files, as seen from the run folder."""

    def counts(self) -> dict[str, int]:
        """Return the number of cells in each state, and of all."""
        parts = {"done": len(self.done), "failed": len(self.failed), "missing": len(self.missing)}
        return {"total": sum(parts.values()), **parts}


class Run:
    """A run folder as one command sees it: every result is read and checked once, however many ask for it.

    A result that another process replaces meanwhile is therefore not noticed; results of a cell are equal anyway.

    Args:
        folder: The run folder.
        summary: What became of the cells that this command computed; results it has read are not read again.
    """

    def __init__(self, folder: Path | str, summary: Summary | None = None) -> None:
        self.store = Store(folder)
        self.folder = self.store.folder
        self.summary = summary or Summary()
        self._read = dict(self.summary.read)

    def find(self, cell: Cell) -> Sound | Invalid:
        """Return the result of a cell, or why there is none."""
        if cell.key in self._read:
            return self._read[cell.key]
        found = self.store.sound(cell.key)
        if isinstance(found, Sound):
            self._read[cell.key] = found
        return found

    def status(self, cells: Iterable[Cell] | None = None) -> Status:
        """Return where the run stands.

        Args:
            cells: Only these; by default all cells the folder is for.
        """
        done = _Done()
        status = Status(done, cells=Path(os.path.relpath(self.store.cells, self.folder)).as_posix())
        for cell in self.store.grid() if cells is None else dict.fromkeys(cells):
            found = self.find(cell)
            if isinstance(found, Sound):
                done.files.append(found)
            elif (failure := self.store.failure(cell.key)) is not None:
                status.failed[cell] = failure
            else:
                status.missing[cell] = found.reason
        return status

    def require_complete(self) -> None:
        """Raise an error with exit code 4 when some cells that were to be computed have no result."""
        if not self.summary.complete:
            first = next(iter(self.summary.failed.values()))
            total = sum(map(len, (self.summary.computed, self.summary.present, self.summary.failed)))
            raise GridIncompleteError(
                f"{len(self.summary.failed)} of {total} cells have no result; the first one: {first}",
                f"Run the same command again to try them again, or see: offsupport bench status {self.folder}",
            )


def run_grid(
    cells: Sequence[Cell],
    place: Place,
    request: dict[str, Any],
    workers: int = 1,
    announce: Callable[[str], None] = lambda line: None,
    executor: Executor | None = None,
    cell_minutes: float | None = None,
) -> Run:
    """Compute a grid into its folder, taking up what is there; one run per folder at a time.

    Args:
        cells: The grid.
        place: The run folder and the data.
        request: What was asked, as JSON values, kept for the report.
        workers: How many processes; 0 for one per core, or per GPU where cells need one.
        announce: Given a line for people when something needs their attention.
        executor: Who computes; by default processes on this machine.
        cell_minutes: How long a cell may take; one that takes longer has failed.
    """
    store = Store(place.folder)
    store.require_own()
    with store.locked():
        begin = partial(store.add_to_grid, cells, request)
        summary = run_cells(cells, place, workers, announce, begin, executor, cell_minutes)
    return Run(place.folder, summary)


def status(folder: Path | str, cells: Iterable[Cell] | None = None) -> Status:
    """Return where the run in a folder stands, as :meth:`Run.status` does."""
    return Run(folder).status(cells)


class _Done(Sequence[Record]):
    """Results found intact, parsed when somebody looks into one: counting thousands of them takes no parsing."""

    def __init__(self) -> None:
        self.files: list[Sound] = []

    @cached_property
    def _records(self) -> list[Record]:
        return [file.record for file in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: Any) -> Any:
        return self._records[at]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)
