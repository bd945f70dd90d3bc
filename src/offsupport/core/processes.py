"""Worker processes: one thread each unless they ask for more, and none outlives the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

WORKER_VARIABLES = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(2**30)),
    "PYTHONSAFEPATH": "1",
}
"""What a worker finds in its environment.

One thread, which numeric libraries read when they load; and an allocator that keeps freed memory: the C library would
return every large tensor to the system and have its pages made anew for the next one (``benchmarks/allocator.py``).
And no modules of the working folder, where Python would look first while it starts (from 3.11 on; 3.10 does not know
the variable): a folder of results may hold a file that is called like a module.
"""


def cores() -> int:
    """Return how many cores this process may use."""
    if sys.platform == "linux":  # elsewhere nobody tells which cores are allowed, only how many there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> int:
    """Return the most bytes this process has held in memory at once; 0 on Windows, which does not tell this way."""
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # the one counts bytes, the others kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> int | None:
    """Give back what is free, forget the peak of memory so far, and return what is held now; None but on Linux.

    A process that computes one thing after another would otherwise state the peak of the hungriest for all of them.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # each system fails in its own way
        ctypes.CDLL(None).malloc_trim(0)
        _REFERENCES.write_text("5")
        return _held("VmRSS")
    return None


def peak_since() -> int | None:
    """Return the most bytes held at once since :func:`forget_peak`; None but on Linux."""
    with contextlib.suppress(OSError):
        return _held("VmHWM")
    return None


def _held(name: str) -> int | None:
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    return None


def gpus() -> list[str]:
    """Return the GPUs this process may use, each as ``CUDA_VISIBLE_DEVICES`` would name it."""
    import torch

    count = torch.cuda.device_count()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(count))) if listed is None else [name.strip() for name in listed.split(",")]
    return names[:count]  # CUDA ignores what follows the first name it does not know


@contextlib.contextmanager
def worker_environment(gpu: str | None = None) -> Iterator[None]:
    """Processes started inside find :data:`WORKER_VARIABLES` in their environment, and see this GPU alone if given."""
    variables = WORKER_VARIABLES if gpu is None else {**WORKER_VARIABLES, "CUDA_VISIBLE_DEVICES": gpu}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def follow_parent() -> None:
    """Called first in a worker: when its parent is gone, so is the worker."""
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A run killed without a chance to say so leaves nobody behind who would go on computing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # at once: an orderly end would wait for the very work that nobody wants any more
