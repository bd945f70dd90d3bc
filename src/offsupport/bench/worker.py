"""One worker process: takes cells from a pipe, computes them, writes each result itself, says how it went."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

from offsupport.bench.cell import Cell, Place, checkpoint_of, compute
from offsupport.bench.store import Store, result_file
from offsupport.core.errors import OffsupportError
from offsupport.core.interrupts import HEARD, Stopped, heed
from offsupport.core.processes import follow_parent


class Report(NamedTuple):
    """What a worker says about a cell it has finished with."""

    key: str
    failure: str | None
    """What went wrong; None when the result is stored."""
    stopped: bool = False
    """Whether it was left half-way, to be taken up from its checkpoint."""


def work(pipe: Connection, place: Place) -> None:
    """Compute cells until the pipe says None or the parent is gone; Ctrl-C leaves one where it can be taken up."""
    heed()
    follow_parent()
    store = Store(place.folder)
    with contextlib.suppress(EOFError, BrokenPipeError):
        for cell in iter(pipe.recv, None):
            pipe.send(_worked(cell, place, store))


def _worked(cell: Cell, place: Place, store: Store) -> Report:
    try:
        return Report(cell.key, attempt(cell, place, store.keep))
    except Stopped:
        HEARD.asked = False
        return Report(cell.key, None, stopped=True)


def attempt(cell: Cell, place: Place, keep: Callable[[Cell, bytes], None]) -> str | None:
    """Compute a cell and hand its result file to ``keep``; return what went wrong, if anything."""
    try:
        keep(cell, result_file(cell, compute(cell, place)))
        checkpoint_of(cell, place).unlink(missing_ok=True)
    except Stopped:
        raise
    except OffsupportError as error:
        return str(error)
    except Exception as error:  # a cell that fails must not take the others with it
        return f"{type(error).__name__}: {error}"
    return None
