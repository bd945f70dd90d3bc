"""Ctrl-C in two steps: the first lets the work in hand come to its end, the second stops at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

FIRST = "Finishing the cells that are being computed; Ctrl-C again stops at once."


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, as a class of its own.

    ``python -m`` forgets the exit code of a process where the plain one was raised under ``exec`` of a string, as
    dataclasses do while modules load, even if it was handled afterwards.
    """


def interrupted(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT as Python does, but for the class of what is raised."""
    raise Interrupted


class Interrupt:
    """Whether somebody has asked to stop."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.asked = False
        self._announce = announce

    def __bool__(self) -> bool:
        return self.asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; let the second one through."""
        if self.asked:
            raise Interrupted
        self.asked = True
        self._announce(FIRST)


@contextlib.contextmanager
def two_steps(announce: Callable[[str], None]) -> Iterator[Interrupt]:
    """Inside, the first Ctrl-C is only noted; when the block has ended on its own, the interrupt is raised.

    Signals reach the main thread alone, and a process told to ignore them goes on ignoring them.
    """
    interrupt = Interrupt(announce)
    before = signal.getsignal(signal.SIGINT)
    raises = before in (signal.default_int_handler, interrupted)
    if threading.current_thread() is not threading.main_thread() or not raises:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupt:
        raise Interrupted


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
    """Processes started inside never hear Ctrl-C: also not in the moment before they can say that they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
