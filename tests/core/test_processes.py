"""The peak of memory of one thing after another, in one process."""

import sys

import numpy as np
import pytest

from offsupport.core import processes
from offsupport.core.processes import forget_peak, peak_since


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_peak_is_that_since_it_was_forgotten():
    size = 100_000_000
    held = forget_peak()
    np.ones(size // 8)
    assert 0.9 * size < peak_since() - held < 1.5 * size
    held = forget_peak()
    assert peak_since() - held < 0.2 * size


def test_where_nobody_tells_there_is_no_number(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "_STATUS", tmp_path / "absent")
    assert forget_peak() is None
    assert peak_since() is None
