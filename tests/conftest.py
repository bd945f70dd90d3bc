"""What tests of several folders share."""

import os
import signal
from pathlib import Path

import pytest


def pytest_configure():
    """Let Ctrl-C be heard here and in processes that tests start.

    A shell tells what it starts in the background to ignore it, and they would pass that on; a terminal does not.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def in_process(monkeypatch):
    """Cells are computed in this process: workers take seconds to start, and most tests are about something else."""
    from offsupport.bench.cell import home_of
    from offsupport.bench.executor import Local, Task, attempt

    def run(self, job):
        for cell in job.cells:
            failure = attempt(Task(cell, home_of(cell)), job.place, job.store.keep)
            if failure:
                job.failed(cell, failure)
            else:
                job.done(cell)

    monkeypatch.setattr(Local, "_run", run)


@pytest.fixture(scope="session")
def start_ray():
    """Return what starts a node by a function: Ray gives it half a minute, which a busy machine may not have."""

    def children():
        path = Path(f"/proc/self/task/{os.getpid()}/children")
        return set(map(int, path.read_text().split())) if path.exists() else set()

    def start(begin, tries=5):
        before = children()
        try:
            return begin()
        except Exception as error:
            if tries == 1 or "timed out during startup" not in str(error):
                raise
            for left in children() - before:  # Ray keeps what it has begun
                os.kill(left, signal.SIGKILL)
        return start(begin, tries - 1)

    return start
