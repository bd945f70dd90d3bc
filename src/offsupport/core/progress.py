"""Progress on standard error: a bar on a terminal, a plain line now and then elsewhere, nothing for short work."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from offsupport.core.escaping import escape

T = TypeVar("T")
SHOW_AFTER = 2.0
LINE_EVERY = 10.0


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[..., None]]:
    """Show how far a job of ``total`` units is; yields ``advance(units=1, note="")``.

    Work that ends within two seconds shows nothing.
    """
    bar = _bar(title, total) if sys.stderr.isatty() else _lines(title, total)
    with bar as advance:
        yield advance


def steps(title: str, items: Sequence[T]) -> Iterator[T]:
    """Yield items, and show how far they are."""
    with progress(title, len(items)) as advance:
        for item in items:
            yield item
            advance()


@contextlib.contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[..., None]]:
    # Deferred: rich takes longer to import than short commands take.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # Transient, and on standard error: what stays on the screen and what a pipe reads is the result alone.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    display = Progress(*columns, console=Console(stderr=True), transient=True)
    task = display.add_task(escape(title), total=total)
    started = time.monotonic()
    shown = False

    def advance(units: int = 1, note: str = "") -> None:
        nonlocal shown
        if not shown and time.monotonic() - started > SHOW_AFTER:
            display.start()
            shown = True
        display.update(task, advance=units, description=escape(f"{title} {note}".strip()))

    try:
        yield advance
    finally:
        if shown:
            display.stop()


@contextlib.contextmanager
def _lines(title: str, total: int) -> Iterator[Callable[..., None]]:
    done = 0
    started = time.monotonic()
    next_line = started + SHOW_AFTER

    def advance(units: int = 1, note: str = "") -> None:
        nonlocal done, next_line
        done += units
        now = time.monotonic()
        if now >= next_line or (done >= total and now - started > SHOW_AFTER):
            left = (now - started) / max(done, 1) * (total - done)
            line = escape(f"{title}: {done}/{total} {note}".rstrip())
            sys.stderr.write(f"{line} (about {left:.0f} s left)\n")
            sys.stderr.flush()
            next_line = now + LINE_EVERY

    yield advance
