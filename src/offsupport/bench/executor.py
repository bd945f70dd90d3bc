"""The local executor: worker processes that are replaced when they die; no cell stops the others.

What runs where and in which order has no part in the results: a cell says all they depend on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from offsupport.bench.cell import Cell, Place, prepare
from offsupport.bench.store import Invalid, Store
from offsupport.bench.worker import Report, work
from offsupport.core.processes import single_thread_children
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
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = None


def run_cells(
    cells: Sequence[Cell],
    place: Place,
    workers: int = 1,
    announce: Callable[[str], None] = lambda line: None,
    begin: Callable[[], None] = lambda: None,
) -> Summary:
    """Compute the cells that have no valid result yet, and say what became of all of them.

    Args:
        cells: The grid. The caller holds the lock of its folder.
        place: The run folder and the data.
        workers: How many processes.
        announce: Given a line for people when something needs their attention.
        begin: Called once the missing cells have been found able to run.
    """
    store = Store(place.folder)
    summary = Summary()
    missing: list[Cell] = []
    for cell in dict.fromkeys(cells):
        found = store.read(cell.key)
        if isinstance(found, Invalid):
            missing.append(cell)
            if found.found:
                announce(f"{label(cell)}: the stored result is {found.reason}; computing it again.")
        else:
            summary.present.append(cell.key)
    prepare(missing, place)
    begin()
    if missing:
        _Pool(missing, place, store, summary, announce).run(min(workers, len(missing)))
    return summary


class _Pool:
    def __init__(
        self, cells: Sequence[Cell], place: Place, store: Store, summary: Summary, announce: Callable[[str], None]
    ) -> None:
        self.waiting = deque(cells)
        self.total = len(cells)
        self.place, self.store, self.summary, self.announce = place, store, summary, announce
        self.deaths: Counter[str] = Counter()
        self.workers: list[_Worker] = []

    def run(self, workers: int) -> None:
        try:
            with progress("Cells", self.total) as advance:
                self.workers = [self._start() for _ in range(workers)]
                for worker in self.workers:
                    self._feed(worker)
                while any(worker.cell for worker in self.workers):
                    for worker in self._ready():
                        self._handle(worker, advance)
        finally:
            self._stop()

    def _start(self) -> _Worker:
        # spawn, not fork: a fork of a process that has used torch or OpenMP can hang
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=work, args=(there, self.place), daemon=True)
        with single_thread_children():
            process.start()
        there.close()
        return _Worker(process, here)

    def _feed(self, worker: _Worker) -> None:
        worker.cell = self.waiting.popleft() if self.waiting else None
        with contextlib.suppress(OSError):  # it died just now; its closed pipe is handled in the next round
            worker.pipe.send(worker.cell)

    def _ready(self) -> list[_Worker]:
        busy = {worker.pipe: worker for worker in self.workers if worker.cell}
        return [busy[pipe] for pipe in wait(list(busy)) if isinstance(pipe, Connection)]

    def _handle(self, worker: _Worker, advance: Callable[..., None]) -> None:
        cell = worker.cell
        assert cell is not None  # noqa: S101 - only busy workers are waited for
        try:
            report: Report = worker.pipe.recv()
        except (EOFError, OSError):
            if self._buried(worker, cell):
                advance(note=label(cell))
            return
        if report.failure is None:
            self.summary.computed.append(cell.key)
        else:
            self._fail(cell, report.failure)
        advance(note=label(cell))
        self._feed(worker)

    def _buried(self, worker: _Worker, cell: Cell) -> bool:
        """Replace a dead worker; its cell is tried again, or given up. Returns whether it was given up."""
        worker.process.join()
        self.deaths[cell.key] += 1
        end = f"its worker ended with exit code {worker.process.exitcode}"
        given_up = self.deaths[cell.key] >= ATTEMPTS
        if given_up:
            self._fail(cell, f"{end}, {ATTEMPTS} times")
        else:
            self.announce(f"{label(cell)}: {end}; trying again.")
            self.waiting.append(cell)
        worker.pipe.close()
        self.workers.remove(worker)
        if self.waiting:
            replacement = self._start()
            self.workers.append(replacement)
            self._feed(replacement)
        return given_up

    def _fail(self, cell: Cell, message: str) -> None:
        self.summary.failed[cell.key] = message
        self.announce(f"{label(cell)} failed: {message}")
        with contextlib.suppress(OSError):  # a full disk: what cannot be noted has been said
            self.store.write_failure(cell, message)

    def _stop(self) -> None:
        for worker in self.workers:
            if worker.cell is not None:
                worker.process.terminate()  # results are whole or absent, so this is safe at any moment
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(timeout=5)


def label(cell: Cell) -> str:
    """Return a few words that tell a person which cell this is."""
    config = cell.config
    words = [config.get("method"), config.get("dataset"), config.get("corruption")]
    named = [str(word) for word in words if isinstance(word, str)]
    return f"{' '.join(named)} {cell.key[:8]}".strip()
