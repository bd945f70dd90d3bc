"""Cells that take longer than they may."""

import faulthandler
import math
import time

import pytest
from bench_kinds import square_cell

from offsupport.bench import Place, Store, run_cells
from offsupport.bench.cell import checkpoint_of, home_of
from offsupport.bench.executor import Task, attempt
from offsupport.core.errors import ConfigError
from offsupport.core.interrupts import STOP_REQUEST
from offsupport.data import Stream
from offsupport.studies import AdaptConfig

TOLD = "It took longer than 0.02 minutes. Run again with more (--cell-minutes): "
TOLD += "a cell that keeps checkpoints goes on from its last one."


def test_a_cell_that_hangs_is_ended_once_and_the_others_are_computed(tmp_path):
    cells = [square_cell(0), square_cell(1, "slow"), square_cell(2), square_cell(3)]
    lines: list[str] = []
    began = time.monotonic()
    summary = run_cells(cells, Place(tmp_path), workers=1, announce=lines.append, cell_minutes=0.02)
    assert time.monotonic() - began < 25  # the cell would take 30 s
    assert sorted(summary.computed) == sorted(cell.key for cell in (cells[0], cells[2], cells[3]))
    assert summary.failed == {cells[1].key: TOLD}
    assert Store(tmp_path).failure(cells[1].key) == TOLD
    assert sorted(map(int, (tmp_path / "computed.log").read_text().split())) == [0, 1, 2, 3]
    assert [line.partition(" failed: ")[2] for line in lines] == [TOLD]


@pytest.fixture
def slow_batches(monkeypatch):
    """Batches take a tenth of a second to come; the list of numbers that streams were begun at."""
    starting_at, begun = Stream.starting_at, []

    def slowly(self, first):
        begun.append(first)
        for batch in starting_at(self, first):
            time.sleep(0.1)
            yield batch

    monkeypatch.setattr(Stream, "starting_at", slowly)
    # It would end this process, should the machine be busy.
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *given, **more: None)
    return begun


def test_a_cell_stopped_on_its_way_is_gone_on_with_and_ends_with_the_same_result(slow_batches, tmp_path):
    settings = {"method": "tent", "corruption": "fog", "model": "bench_models:tiny", "limit": 64, "batch_size": 8}
    cell = AdaptConfig(dataset="digits-c", **settings).cell()

    def tried(name: str, minutes: float | None) -> str | None:
        return attempt(Task(cell, home_of(cell), minutes), place(name), Store(tmp_path / name).keep)

    def place(name: str) -> Place:
        return Place(tmp_path / name, code=frozenset({"bench_models:tiny"}))

    assert tried("limited", 0.004) == TOLD.replace("0.02", "0.004")
    assert checkpoint_of(cell, place("limited")).is_file()
    assert not STOP_REQUEST.asked
    assert tried("limited", 5) is None
    assert slow_batches[0] == 0 < slow_batches[1]
    assert not checkpoint_of(cell, place("limited")).exists()
    assert tried("whole", None) is None
    ends = [Store(tmp_path / name).read(cell.key).fingerprint for name in ("limited", "whole")]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf])
def test_a_limit_that_is_none_is_refused(minutes, tmp_path):
    with pytest.raises(ConfigError, match="--cell-minutes"):
        run_cells([square_cell(0)], Place(tmp_path), cell_minutes=minutes)
    assert not list(tmp_path.iterdir())
