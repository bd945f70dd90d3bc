"""The local executor: worker processes that are replaced when they die."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from offsupport.bench.cell import Cell, Place
from offsupport.bench.devices import assign, needs_gpu, require_gpus
from offsupport.bench.executor import Job
from offsupport.bench.worker import Report, work
from offsupport.core.interrupts import deaf_children
from offsupport.core.processes import cores, worker_environment


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


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
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
            worker.pipe.send(worker.cell)

    def _ready(self) -> list[_Worker]:
        busy = {worker.pipe: worker for worker in self.workers if worker.cell}
        return [busy[pipe] for pipe in wait(list(busy)) if isinstance(pipe, Connection)]

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
                with contextlib.suppress(OSError):  # it ended just now
                    os.kill(pid, signal.SIGINT)

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
    with worker_environment(gpu), deaf_children():
        process.start()
    there.close()
    return _Worker(process, here, gpu)
