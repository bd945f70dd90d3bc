"""What tests of several folders share."""

import pytest


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
