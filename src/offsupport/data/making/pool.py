"""Worker processes for making data: one thread each, and none outlives the process that started it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh single-thread processes; on an error or an interrupt, work not yet begun is dropped."""
    with _one_thread_each():
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(os.getpid(),))
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Numeric libraries read their number of threads when they are loaded, so children must inherit it."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _start(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """End this process when the parent is gone, even if it was killed outright and could not say so."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
