"""Computing the cells of a grid that have no result yet, on whatever computes them; no cell stops the others.

What runs where and in which order has no part in the results: a cell says all they depend on.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from offsupport.bench.cell import Cell, Place, prepare
from offsupport.bench.store import Invalid, Store
from offsupport.core.interrupts import Interrupt, two_steps
from offsupport.core.progress import progress

ATTEMPTS = 3
"""How often a cell whose worker died is tried before it counts as failed."""


@dataclass
class Summary:
    """What became of the cells of a grid."""

    computed: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every cell has a result."""
        return not self.failed


@dataclass
class Job:
    """Cells to compute, for an executor, and where it says what became of each."""

    cells: Sequence[Cell]
    place: Place
    store: Store
    summary: Summary
    announce: Callable[[str], None]
    advance: Callable[..., None]
    stop: Interrupt
    """True once somebody has asked to stop: what is in hand comes to its end or to a checkpoint, nothing new begins."""
    deaths: Counter[str] = field(default_factory=Counter)

    def done(self, cell: Cell) -> None:
        """Note that the result of a cell is stored."""
        self.summary.computed.append(cell.key)
        self.advance(note=label(cell))

    def failed(self, cell: Cell, message: str) -> None:
        """Note that there will be no result, and why."""
        self.summary.failed[cell.key] = message
        self.announce(f"{label(cell)} failed: {message}")
        with contextlib.suppress(OSError):  # a full disk: what cannot be noted has been said
            self.store.write_failure(cell, message)
        self.advance(note=label(cell))

    def died(self, cell: Cell, end: str) -> bool:
        """Note that whoever computed a cell is gone; return whether to try again, else it has failed."""
        self.deaths[cell.key] += 1
        if self.deaths[cell.key] < ATTEMPTS:
            self.announce(f"{label(cell)}: {end}; trying again.")
            return True
        self.failed(cell, f"{end}, {ATTEMPTS} times")
        return False


class Executor(Protocol):
    """Who computes cells."""

    def ready(self) -> AbstractContextManager[Callable[[Job], None]]:
        """Return what computes the cells of a job, until all are done or have failed or the job says stop.

        Entered before anything costly is done, so that an executor that cannot work says so first.
        """


def run_cells(
    cells: Sequence[Cell],
    place: Place,
    workers: int = 1,
    announce: Callable[[str], None] = lambda line: None,
    begin: Callable[[], None] = lambda: None,
    executor: Executor | None = None,
) -> Summary:
    """Compute the cells that have no valid result yet, and say what became of all of them.

    Args:
        cells: The grid. The caller holds the lock of its folder.
        place: The run folder and the data.
        workers: How many processes; 0 for one per core, or per GPU where cells need one.
        announce: Given a line for people when something needs their attention.
        begin: Called once the missing cells have been found able to run.
        executor: Who computes; by default processes on this machine.

    Raises:
        KeyboardInterrupt: After a first Ctrl-C when the cells in hand, or how far they are, are stored; after a second
            one at once.
    """
    from offsupport.bench.local import Local

    store = Store(place.folder)
    summary = Summary()
    missing: list[Cell] = []
    for cell in dict.fromkeys(cells):
        found = store.sound(cell.key)
        if isinstance(found, Invalid):
            missing.append(cell)
            if found.found:
                announce(f"{label(cell)}: the stored result is {found.reason}; computing it again.")
        else:
            summary.present.append(cell.key)
    if not missing:
        begin()
        return summary
    with (executor or Local(workers)).ready() as run:
        prepare(missing, place)
        begin()
        with two_steps(announce) as stop, progress("Cells", len(missing)) as advance:
            run(Job(missing, place, store, summary, announce, advance, stop))
    return summary


def label(cell: Cell) -> str:
    """Return a few words that tell a person which cell this is."""
    config = cell.config
    words = [config.get("method"), config.get("dataset"), config.get("corruption")]
    named = [str(word) for word in words if isinstance(word, str)]
    return f"{' '.join(named)} {cell.key[:8]}".strip()
