"""Computing the cells of a grid that have no result yet, on whatever computes them; no cell stops the others.

What runs where and in which order has no part in the results: a cell says all they depend on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

from offsupport.bench.cell import Cell, Place, checkpoint_of, compute, home_of, label, prepare
from offsupport.bench.store import Invalid, Sound, Store, result_file
from offsupport.core.errors import CellTimeoutError, ConfigError, OffsupportError, nearest
from offsupport.core.interrupts import (
    STOP_REQUEST,
    Interrupt,
    Stopped,
    install_handler,
    interrupts_blocked,
    send_interrupt,
    two_steps,
)
from offsupport.core.processes import cores, follow_parent, gpus, worker_environment
from offsupport.core.progress import progress

# Devices: which cells need a GPU, who gets which, and the sentence where there is none.


DEVICES = ("cpu", "cuda")


def needs_gpu(cell: Cell) -> bool:
    """Return whether a cell, of whatever kind, has the setting ``device`` at ``cuda``."""
    return cell.config.get("device") == "cuda"


def check_device(device: str) -> None:
    """Refuse a device that nobody has heard of; whether it is there can only be said where the cell is computed."""
    if device not in DEVICES:
        raise ConfigError(f"There is no device {device!r}.", nearest(device, DEVICES))


def require_gpus() -> list[str]:
    """Return the GPUs of this process; to have none is an error."""
    found = gpus()
    if not found:
        raise ConfigError("These cells need a GPU, and torch finds none.", "Run them where torch.cuda.is_available().")
    return found


def assign(devices: Sequence[str], workers: int) -> list[str | None]:
    """Return the device of each worker: one each while they last, then shared; None for all where there are none."""
    return [devices[number % len(devices)] if devices else None for number in range(workers)]


# One worker process: takes cells from a pipe, computes them, writes each result itself, says how it went.


class Task(NamedTuple):
    """A cell for another process."""

    cell: Cell
    home: str
    """The module that makes its kind known there."""
    minutes: float | None = None
    """How long it may take."""


class Report(NamedTuple):
    """What a worker says about a cell it has finished with."""

    key: str
    failure: str | None
    """What went wrong; None when the result is stored."""
    stopped: bool = False
    """Whether it was left half-way, to be taken up from its checkpoint."""


def work(pipe: Connection, place: Place) -> None:
    """Compute cells until the pipe says None or the parent is gone; Ctrl-C leaves one where it can be taken up."""
    install_handler()
    follow_parent()
    store = Store(place.folder)
    with contextlib.suppress(EOFError, BrokenPipeError):
        for task in iter(pipe.recv, None):
            pipe.send(_worked(task, place, store))


def _worked(task: Task, place: Place, store: Store) -> Report:
    cell = task.cell
    try:
        return Report(cell.key, attempt(task, place, store.keep))
    except Stopped:
        STOP_REQUEST.asked = False
        return Report(cell.key, None, stopped=True)


def attempt(task: Task, place: Place, keep: Callable[[Cell, bytes], None]) -> str | None:
    """Compute a cell and hand its result file to ``keep``; return what went wrong, if anything."""
    cell = task.cell
    try:
        # The process that sent the cell knew this module already: nothing is named here by a file.
        importlib.import_module(task.home)
        with limited(task.minutes):
            outcome = compute(cell, place)
        keep(cell, result_file(cell, outcome))
        checkpoint_of(cell, place).unlink(missing_ok=True)
    except Stopped:
        raise
    except OffsupportError as error:
        return str(error)
    except Exception as error:  # a cell that fails must not take the others with it
        return f"{type(error).__name__}: {error}"
    return None


# A limit on the time of a cell, kept by the process that computes it: it alone knows when it has begun.


GRACE = 20.0
"""Seconds a cell whose time is over has to come to a checkpoint, or as long as its time was; then its process ends."""

MOST_MINUTES = 1e6
"""Almost two years."""


def require_minutes(minutes: float | None) -> None:
    """Refuse a limit that is none."""
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(f"A cell cannot take {minutes:g} minutes.", "Give some, or leave --cell-minutes out for all.")


def too_long(minutes: float) -> CellTimeoutError:
    """Return what is said of a cell that took longer than it may."""
    return CellTimeoutError(
        f"It took longer than {minutes:g} minutes.",
        "Run again with more (--cell-minutes): a cell that keeps checkpoints goes on from its last one.",
    )


@contextlib.contextmanager
def limited(minutes: float | None) -> Iterator[None]:
    """Inside, work is asked to stop when its time is over; a process in which it does not is ended.

    Args:
        minutes: The time; None for no limit.

    Raises:
        CellTimeoutError: When it was asked, and has stopped at a checkpoint. What is finished all the same counts.
    """
    if minutes is None:
        yield
        return
    seconds, over = 60 * minutes, threading.Event()

    def ask() -> None:
        over.set()
        STOP_REQUEST.asked = True

    timer = threading.Timer(seconds, ask)
    timer.daemon = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # A watchdog that runs no Python: what hangs may never let another thread of Python's run.
    faulthandler.dump_traceback_later(seconds + min(GRACE, seconds), exit=True, file=nowhere)
    timer.start()
    try:
        yield
    except Stopped:
        if over.is_set():
            raise too_long(minutes) from None
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.close(nowhere)
        timer.cancel()
        timer.join()
        if over.is_set():  # the next cell has a time of its own
            STOP_REQUEST.asked = False


# A job: cells to compute, and what becomes of them.


ATTEMPTS = 3
"""How often a cell whose worker died is tried before it counts as failed."""


@dataclass
class Summary:
    """What became of the cells of a grid."""

    computed: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    read: dict[str, Sound] = field(default_factory=dict, repr=False, compare=False)
    """The results that were present, so that nobody has to read and check them again."""

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
    minutes: float | None = None
    """How long a cell may take."""
    deaths: Counter[str] = field(default_factory=Counter)
    sent: dict[str, float] = field(default_factory=dict)

    def task(self, cell: Cell) -> Task:
        """Return what is sent to whoever computes a cell, now."""
        self.sent[cell.key] = time.monotonic()
        return Task(cell, home_of(cell), self.minutes)

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
        """Note that whoever computed a cell is gone; return whether to try again, else it has failed.

        Whoever is gone after the time of the cell was ended for it, and would be again.
        """
        if self.minutes is not None and time.monotonic() - self.sent[cell.key] >= 60 * self.minutes:
            self.failed(cell, str(too_long(self.minutes)))
            return False
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
    cell_minutes: float | None = None,
) -> Summary:
    """Compute the cells that have no valid result yet, and say what became of all of them.

    Args:
        cells: The grid. The caller holds the lock of its folder.
        place: The run folder and the data.
        workers: How many processes; 0 for one per core, or per GPU where cells need one.
        announce: Given a line for people when something needs their attention.
        begin: Called once the missing cells have been found able to run.
        executor: Who computes; by default processes on this machine.
        cell_minutes: How long a cell may take from where its worker begins with it; one that takes longer has failed.

    Raises:
        KeyboardInterrupt: After a first Ctrl-C when the cells in hand, or how far they are, are stored; after a second
            one at once.
    """
    require_minutes(cell_minutes)
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
            summary.read[cell.key] = found
    if not missing:
        begin()
        return summary
    with (executor or Local(workers)).ready() as run:
        prepare(missing, place)
        begin()
        with two_steps(announce) as stop, progress("Cells", len(missing)) as advance:
            run(Job(missing, place, store, summary, announce, advance, stop, cell_minutes))
    return summary


# The executors of this machine: worker processes that are replaced when they die, or the process that asks.


@dataclass(frozen=True)
class Local:
    """Processes on this machine; where cells need a GPU, each process sees one, its own while there are enough.

    Args:
        workers: How many; 0 for one per core, or per GPU where cells need one.
    """

    workers: int = 1

    @contextlib.contextmanager
    def ready(self) -> Iterator[Callable[[Job], None]]:
        """Return what computes the cells of a job; every worker writes the results of its cells itself."""
        yield self._run

    def _run(self, job: Job) -> None:
        devices = require_gpus() if any(map(needs_gpu, job.cells)) else []
        workers = self.workers or len(devices) or cores()
        _Pool(job).run(assign(devices, min(workers, len(job.cells))))


@dataclass(frozen=True)
class Here:
    """This process, a cell after the other: for a few that take less time than a process does to start.

    A cell that brings this process down, or that outlasts its limit and does not stop, takes the others with it.
    """

    @contextlib.contextmanager
    def ready(self) -> Iterator[Callable[[Job], None]]:
        """Return what computes the cells of a job."""
        yield self._run

    def _run(self, job: Job) -> None:
        for cell in job.cells:
            if job.stop:
                return
            failure = attempt(job.task(cell), job.place, job.store.keep)
            if failure is None:
                job.done(cell)
            else:
                job.failed(cell, failure)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Any
    """Its end of the pipe here; of another type on Windows than elsewhere."""
    gpu: str | None
    cell: Cell | None = None


class _Pool:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.waiting = deque(job.cells)
        self.workers: list[_Worker] = []

    def run(self, gpus: list[str | None]) -> None:
        """Compute with one worker per entry."""
        self.job.stop.tell = self._interrupt
        try:
            for gpu in gpus:
                self._add(gpu)
            while any(worker.cell for worker in self.workers):
                for worker in self._ready():
                    self._handle(worker)
        finally:
            self.job.stop.tell = lambda: None
            self._stop()

    def _add(self, gpu: str | None) -> None:
        worker = _start(self.job.place, gpu)
        self.workers.append(worker)
        self._feed(worker)

    def _feed(self, worker: _Worker) -> None:
        worker.cell = self.waiting.popleft() if self.waiting and not self.job.stop else None
        with contextlib.suppress(OSError):  # it died just now; its closed pipe is handled in the next round
            worker.pipe.send(worker.cell and self.job.task(worker.cell))

    def _ready(self) -> list[_Worker]:
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self.workers if worker.cell}
        return [busy[pipe] for pipe in wait(list(busy))]

    def _handle(self, worker: _Worker) -> None:
        cell = worker.cell
        assert cell is not None  # noqa: S101 - only busy workers are waited for
        try:
            report: Report = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(worker, cell)
            return
        if report.stopped:
            self.waiting.appendleft(cell)
        elif report.failure is None:
            self.job.done(cell)
        else:
            self.job.failed(cell, report.failure)
        self._feed(worker)

    def _replace(self, worker: _Worker, cell: Cell) -> None:
        self.workers.remove(worker)  # first: once it has been waited for, its number may be another process's
        worker.process.join()
        if self.job.died(cell, f"its worker ended with exit code {worker.process.exitcode}"):
            self.waiting.append(cell)
        worker.pipe.close()
        if self.waiting and not self.job.stop:
            self._add(worker.gpu)

    def _interrupt(self) -> None:
        """Pass Ctrl-C on: a terminal sends it to all of them, but whoever sends it to this process alone does not."""
        for pid in [worker.process.pid for worker in self.workers]:
            if pid is not None:
                send_interrupt(pid)

    def _stop(self) -> None:
        for worker in self.workers:
            if worker.cell is not None:
                worker.process.terminate()  # results are whole or absent, so this is safe at any moment
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(timeout=5)


def _start(place: Place, gpu: str | None) -> _Worker:
    # spawn, not fork: a fork of a process that has used torch or OpenMP can hang
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, place), daemon=True)
    with worker_environment(gpu), interrupts_blocked():
        process.start()
    there.close()
    return _Worker(process, here, gpu)  # type: ignore[arg-type,unused-ignore]  # a PipeConnection on Windows
