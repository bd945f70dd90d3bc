import contextlib
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench_kinds import square_cell

from offsupport.bench import Cell, Here, Place, Store, run_cells
from offsupport.core.errors import ConfigError

HERE = Path(__file__).parent


def computed(folder: Path) -> list[int]:
    return sorted(int(line) for line in (folder / "computed.log").read_text().split())


def test_results_are_stored_and_computed_once(tmp_path):
    cells = [square_cell(x) for x in range(5)]
    first = run_cells(cells, Place(tmp_path), workers=2)
    second = run_cells([*cells, square_cell(5)], Place(tmp_path), workers=2)
    assert sorted(first.computed) == sorted(cell.key for cell in cells)
    assert sorted(second.present) == sorted(first.computed)
    assert second.computed == [square_cell(5).key]
    assert computed(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert Store(tmp_path).read(cells[3].key).deterministic == {"square": 9}


def test_one_cell_that_raises_does_not_stop_the_others(tmp_path):
    cells = [square_cell(1), square_cell(7, "raise"), square_cell(2)]
    lines: list[str] = []
    summary = run_cells(cells, Place(tmp_path), workers=1, announce=lines.append)
    assert not summary.complete
    assert len(summary.computed) == 2
    assert summary.failed[cells[1].key] == "RuntimeError: seven is right out"
    assert Store(tmp_path).failure(cells[1].key) == "RuntimeError: seven is right out"
    assert sum("failed" in line for line in lines) == 1


def test_cells_that_cannot_work_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="'y'"):
        run_cells([square_cell(1), Cell("test-square", {"y": 1})], Place(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_damaged_result_is_computed_again(tmp_path):
    cell = square_cell(3)
    run_cells([cell], Place(tmp_path))
    path = Store(tmp_path).path(cell.key)
    path.write_bytes(path.read_bytes()[:-7])
    lines: list[str] = []
    assert run_cells([cell], Place(tmp_path), announce=lines.append).computed == [cell.key]
    assert "damaged" in lines[0]
    assert Store(tmp_path).read(cell.key).deterministic == {"square": 9}


def test_no_process_is_left(tmp_path):
    run_cells([square_cell(1), square_cell(2, "raise")], Place(tmp_path), workers=2)
    assert multiprocessing.active_children() == []


@pytest.mark.fault
def test_killed_worker_is_replaced_and_its_cell_tried_again(tmp_path):
    cells = [square_cell(x) for x in range(3)] + [square_cell(3, "die once")]
    lines: list[str] = []
    summary = run_cells(cells, Place(tmp_path), workers=2, announce=lines.append)
    assert summary.complete
    assert len(summary.computed) == 4
    assert computed(tmp_path) == [0, 1, 2, 3, 3]
    assert len(lines) == 1
    assert "exit code -9; trying again" in lines[0]


@pytest.mark.fault
def test_a_cell_that_always_kills_its_worker_is_given_up(tmp_path):
    cells = [square_cell(0, "die"), square_cell(1), square_cell(2)]
    summary = run_cells(cells, Place(tmp_path), workers=1)
    assert summary.failed == {cells[0].key: "its worker ended with exit code -9, 3 times"}
    assert computed(tmp_path) == [0, 0, 0, 1, 2]


@pytest.mark.fault
def test_workers_do_not_outlive_a_killed_run(tmp_path):
    program = (
        "from offsupport.bench import Place, run_cells\n"
        "from bench_kinds import square_cell\n"
        "import sys\n"
        "if __name__ == '__main__':\n"
        "    run_cells([square_cell(0, 'slow')], Place(sys.argv[1]))\n"
    )
    script = tmp_path / "orphan_maker.py"
    script.write_text(program)
    path = ":".join([str(HERE), *sys.path])
    run = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env={"PYTHONPATH": path})
    log = tmp_path / "computed.log"
    deadline = time.monotonic() + 600  # only a hang takes so long
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = _children(run.pid)
    run.kill()
    run.wait()
    deadline = time.monotonic() + 20  # the cell would take 30 s
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_this_process_can_compute_cells_itself(tmp_path):
    cells = [square_cell(1), square_cell(7, "raise"), square_cell(2)]
    summary = run_cells(cells, Place(tmp_path), executor=Here())
    assert summary.computed == [cells[0].key, cells[2].key]
    assert summary.failed == {cells[1].key: "RuntimeError: seven is right out"}
    assert Store(tmp_path).read(cells[2].key).deterministic == {"square": 4}
    assert run_cells(cells[:1], Place(tmp_path), executor=Here()).present == [cells[0].key]


def test_asked_to_stop_this_process_begins_no_further_cell(tmp_path):
    cells = [square_cell(1), square_cell(2)]

    class Asked(Here):
        @contextlib.contextmanager
        def ready(self):
            with super().ready() as run:

                def once(job):
                    job.advance = lambda note: setattr(job.stop, "asked", True)
                    run(job)

                yield once

    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, Place(tmp_path), executor=Asked())
    assert computed(tmp_path) == [1]
