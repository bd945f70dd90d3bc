"""One worker process: takes cells from a pipe, computes them, writes each result itself, says how it went."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

from offsupport.bench.cell import Cell, Place, compute
from offsupport.bench.store import Store
from offsupport.core.errors import OffsupportError

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Report(NamedTuple):
    """What a worker says about a cell it has finished with."""

    key: str
    failure: str | None
    """What went wrong; None when the result is stored."""


def work(pipe: Connection, place: Place) -> None:
    """Compute cells until the pipe says None or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    store = Store(place.folder)
    with contextlib.suppress(EOFError, BrokenPipeError):
        for cell in iter(pipe.recv, None):
            pipe.send(Report(cell.key, _attempt(cell, place, store)))


def _attempt(cell: Cell, place: Place, store: Store) -> str | None:
    try:
        store.write(cell, compute(cell, place))
    except OffsupportError as error:
        return str(error)
    except Exception as error:  # a cell that fails must not take the others with it
        return f"{type(error).__name__}: {error}"
    return None


def _die_with_parent() -> None:
    """A run killed without a chance to say so leaves nobody behind who would go on computing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Processes started inside find one thread in their environment; a cell that asks for more sets them itself."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
