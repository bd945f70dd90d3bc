"""Ctrl-C in two steps: the first lets the work in hand come to a place it can go on from, the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

EXIT_CODE = 130
"""Of a process that was interrupted."""
FIRST = "Stopping where it can go on from; Ctrl-C again stops at once."


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, as a class of its own.

    ``python -m`` forgets the exit code of a process where the plain one was raised under ``exec`` of a string, as
    dataclasses do while modules load, even if it was handled afterwards.
    """


def interrupted(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT as Python does, but for the class of what is raised."""
    raise Interrupted


def listen() -> None:
    """Let Ctrl-C, and SIGTERM by which ``kill`` and cluster managers ask, raise the class of our own.

    Who ignores or handles one of them already goes on doing so.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # no other thread may set a handler
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, interrupted)


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """Work was left at a place it can be taken up from, because somebody asked to stop."""


class Interrupt:
    """Whether somebody has asked to stop.

    Args:
        announce: Given a line for people when it happens.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.asked = False
        self.tell: Callable[[], None] = lambda: None
        """Called when it happens, for processes that do not hear it themselves."""
        self._announce = announce

    def __bool__(self) -> bool:
        return self.asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; let the second one through."""
        if self.asked:
            raise Interrupted
        self.asked = True
        self.tell()
        self._announce(FIRST)


class StopRequest:
    """Whether a worker has been asked to stop, which it does where it can go on from."""

    asked = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note the signal."""
        self.asked = True


STOP_REQUEST = StopRequest()
"""Of this process; never asked where it is no worker."""


def install_handler() -> None:
    """Called first in a worker: from here on Ctrl-C is noted, also one that came while it was blocked."""
    signal.signal(signal.SIGINT, STOP_REQUEST.handle)
    if sys.platform != "win32":  # which has no masks of signals
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def send_interrupt(pid: int) -> None:
    """Send Ctrl-C to another process; one that has ended just now is no error.

    On Windows this would end the process at once; there a console sends Ctrl-C to all of its processes by itself.
    """
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGINT)


@contextlib.contextmanager
def two_steps(announce: Callable[[str], None]) -> Iterator[Interrupt]:
    """Inside, the first Ctrl-C is only noted; when the block has ended on its own, the interrupt is raised.

    So is SIGTERM, by which ``kill`` and cluster managers ask. Signals reach the main thread alone, and a process told
    to ignore them goes on ignoring them.
    """
    interrupt = Interrupt(announce)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    usual = (signal.default_int_handler, interrupted, signal.SIG_DFL)
    heard = {number: handler for number, handler in before.items() if handler in usual}
    if threading.current_thread() is not threading.main_thread():
        heard = {}
    for number in heard:
        signal.signal(number, interrupt.handle)
    try:
        yield interrupt
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
    if interrupt:
        raise Interrupted


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started inside get no Ctrl-C before they can handle it (:func:`install_handler`).

    A signal mask is inherited and a blocked signal waits, so none is lost while a worker is still importing.
    """
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker  # here: a command listens before it has loaded what takes long

    resource_tracker.ensure_running()  # which unblocks the signal when it starts, as the first process would make it do
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
