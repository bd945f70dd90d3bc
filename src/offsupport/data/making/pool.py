"""Worker processes for making data."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from offsupport.core.processes import follow_parent, worker_environment


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh single-thread processes; on an error or an interrupt, work not yet begun is dropped."""
    with worker_environment():
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()
