"""Runs that are killed, starved and damaged: what they end with is what an undisturbed run ends with."""

import errno
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from bench_killed import killed_cell
from bench_kinds import square_cell
from torch import nn

from offsupport.bench import Place, Store, run_cells
from offsupport.bench.runs import run_grid
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.models import MODELS, BuiltIn, source_model

HERE = Path(__file__).parent
CELLS = 24
# Only a hang takes so long: on a busy machine a process may take a minute to start.
PATIENCE = 600.0
pytestmark = pytest.mark.fault


def start(out: Path, behaviour: str = "brief", workers: int = 2, count: int = CELLS) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(HERE), *sys.path])
    words = [sys.executable, str(HERE / "bench_script.py"), str(out), str(count), behaviour, str(workers)]
    return subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(run: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = run.communicate(timeout=PATIENCE)
    return run.returncode, said


def results(folder: Path) -> dict[str, str]:
    """Every byte of the results that is not a time."""
    found = {}
    for path in sorted((folder / "cells").iterdir()):
        record = json.loads(path.read_bytes())["record"]
        record["timing"] = None
        found[path.name] = json.dumps(record)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return what gives the folder of a run that nobody disturbs; each of them is computed once."""

    @functools.cache
    def run(behaviour: str = "brief", count: int = CELLS) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        run_grid([square_cell(x, behaviour) for x in range(count)], Place(folder), {"verb": "bench"}, workers=2)
        return folder

    return run


def computed(folder: Path) -> list[int]:
    log = folder / "computed.log"
    return sorted(int(line) for line in log.read_text().split()) if log.exists() else []


def until(condition, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def test_the_whole_group_killed_at_ten_random_moments(tmp_path, undisturbed):
    rng = random.Random(0)
    out = tmp_path / "killed"
    kills = 0
    for _ in range(10):
        before = len(computed(out))
        run = start(out)
        until(lambda seen=before, run=run: len(computed(out)) > seen or run.poll() is not None)
        time.sleep(rng.uniform(0, 0.4))
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            kills += 1
        run.communicate()
    code, _ = ended(start(out))
    assert code == 0
    assert kills >= 5, "the kills must fall into the middle of the run"
    assert results(out) == results(undisturbed())
    assert (out / "grid.json").read_bytes() == (undisturbed() / "grid.json").read_bytes()
    assert len(computed(out)) <= CELLS + 2 * kills
    assert not list(out.rglob("*.tmp"))


def test_single_workers_killed_five_times(tmp_path, undisturbed):
    rng = random.Random(1)
    out = tmp_path / "killed"
    run = start(out)
    for i in range(5):
        until(lambda wanted=3 * (i + 1): len(computed(out)) >= wanted)
        os.kill(rng.choice(workers_of(run.pid)), signal.SIGKILL)
    code, said = ended(run)
    assert code == 0
    assert said.count("exit code -9; trying again") == 5
    assert CELLS <= len(computed(out)) <= CELLS + 5
    assert results(out) == results(undisturbed())


def workers_of(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_workers_killed_in_the_middle_of_a_cell_are_gone_on_from(tmp_path):
    whole = AdaptConfig(dataset="digits-c", corruption="contrast", method="tesla", limit=160, batch_size=16).cell()
    said: list[str] = []
    run_cells([whole], Place(tmp_path / "whole"))
    cell = killed_cell(whole)
    assert run_cells([cell], Place(tmp_path / "killed"), announce=said.append).complete
    assert sum("exit code -9; trying again" in line for line in said) == 2
    first, second, third = computed(tmp_path / "killed")
    assert first == 0 < second < third, "each began where the one before it had got to"
    now, expected = (Store(tmp_path / name).read(of.key) for name, of in (("killed", cell), ("whole", whole)))
    assert now.deterministic == expected.deterministic
    assert now.provenance == expected.provenance
    assert not list(tmp_path.glob("*/checkpoints/*"))


def test_a_second_run_on_the_folder_is_refused_and_harms_nothing(tmp_path):
    grid = {"behaviour": "two seconds", "workers": 1, "count": 10}  # long enough for the second to come up
    first = start(tmp_path, **grid)
    until(lambda: computed(tmp_path))
    code, said = ended(start(tmp_path, **grid))
    assert (code, "Another process is working in" in said, "Wait" in said) == (2, True, True)
    assert ended(first)[0] == 0
    assert computed(tmp_path) == list(range(10))
    assert ended(start(tmp_path, **grid))[0] == 0, "the lock is gone with its process"


def test_the_first_interrupt_finishes_the_cells_in_hand(tmp_path):
    run = start(tmp_path, "two seconds", workers=2, count=6)
    until(lambda: len(computed(tmp_path)) == 2)
    os.killpg(run.pid, signal.SIGINT)
    code, said = ended(run)
    assert code == 130
    assert "Ctrl-C again stops at once" in said
    assert "goes on from what is done" in said
    assert "Traceback" not in said
    assert computed(tmp_path) == [0, 1]
    assert len(results(tmp_path)) == 2


def test_the_second_interrupt_stops_at_once(tmp_path):
    run = start(tmp_path, "slow", workers=2, count=4)
    until(lambda: len(computed(tmp_path)) == 2)
    workers = workers_of(run.pid)
    os.killpg(run.pid, signal.SIGINT)
    time.sleep(0.5)
    assert run.poll() is None
    os.killpg(run.pid, signal.SIGINT)
    code, said = ended(run)  # a cell of this grid takes 30 s; the run would need 60
    assert code == 130
    assert "Traceback" not in said
    assert not (tmp_path / "cells").exists()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("moment", ["os.open", "os.fsync", "os.replace"])
def test_a_bad_disk_fails_its_cells_and_the_next_run_makes_up_for_it(tmp_path, undisturbed, moment, error):
    """The kind makes the call fail in its worker, from its third cell on, as long as the flag is there."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "bad").write_text(f"{moment} {error}")
    code, said = ended(start(out, "bad disk", workers=1, count=6))
    assert code == 4
    assert os.strerror(getattr(errno, error)) in said
    assert "Traceback" not in said
    kept = results(out)
    assert len(kept) == 2
    (out / "bad").unlink()
    assert ended(start(out, "bad disk", workers=1, count=6))[0] == 0
    after = results(out)
    assert kept.items() <= after.items()
    assert after == results(undisturbed("bad disk", 6))
    assert not list(out.rglob("*.tmp"))


def test_a_disk_that_is_really_full(tmp_path, undisturbed):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        ballast = disk / "ballast"
        run_grid([square_cell(0)], Place(disk / "run"), {"verb": "bench"})
        kept = results(disk / "run")
        with pytest.raises(OSError, match="No space"):
            ballast.write_bytes(bytes(1 << 20))
        code, said = ended(start(disk / "run", "fine", workers=1, count=4))
        assert code in (2, 4)  # 2 where not even the grid can be written
        assert "No space left on device" in said
        assert "Traceback" not in said
        assert results(disk / "run") == kept
        ballast.unlink()
        assert ended(start(disk / "run", "fine", workers=1, count=4))[0] == 0
        assert results(disk / "run") == results(undisturbed("fine", 4))
    finally:
        subprocess.run(["umount", disk], check=True)


def damaged(whole: bytes, how: str, rng: random.Random) -> bytes:
    if how == "cut":
        return whole[: rng.randrange(len(whole))]
    data = bytearray(whole)
    data[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    return bytes(data)


DAMAGES = ["flip"] * 100 + ["cut"] * 40


def test_140_damaged_results_are_found_and_computed_again(tmp_path):
    cells = [square_cell(x) for x in range(140)]
    run_grid(cells, Place(tmp_path), {"verb": "bench"}, workers=2)
    whole, store = results(tmp_path), Store(tmp_path)
    rng = random.Random(2)
    for cell, how in zip(cells, DAMAGES, strict=True):
        path = store.path(cell.key)
        path.write_bytes(damaged(path.read_bytes(), how, rng))
    lines: list[str] = []
    summary = run_cells(cells, Place(tmp_path), workers=2, announce=lines.append)
    assert len(summary.computed) == 140
    assert sum("damaged" in line for line in lines) == 140
    assert results(tmp_path) == whole


def test_140_damaged_checkpoints_are_found_and_trained_again(tmp_path, monkeypatch):
    trained: list[int] = []

    def train() -> nn.Module:
        trained.append(1)
        model = nn.Linear(8, 4)
        nn.init.constant_(model.weight, 3.0)
        nn.init.zeros_(model.bias)
        return model

    monkeypatch.setitem(MODELS._items, "toy", BuiltIn("toy", lambda: nn.Linear(8, 4), train))
    source_model("toy", tmp_path)
    path = tmp_path / "models" / "toy.safetensors"
    whole = path.read_bytes()
    rng = random.Random(3)
    for i, how in enumerate(DAMAGES, start=2):
        path.write_bytes(damaged(whole, how, rng))
        model = source_model("toy", tmp_path)
        assert len(trained) == i, how
        assert torch.equal(model.weight, torch.full((4, 8), 3.0))


def test_results_of_another_schema_are_computed_again(tmp_path, monkeypatch):
    with monkeypatch.context() as future:
        future.setattr("offsupport.bench.store.SCHEMA", 2)
        Store(tmp_path).write(square_cell(3), outcome_of(3))
    lines: list[str] = []
    summary = run_cells([square_cell(3)], Place(tmp_path), announce=lines.append)
    assert summary.computed == [square_cell(3).key]
    assert "of schema 2, this version reads 1; computing it again" in lines[0]
    assert Store(tmp_path).read(square_cell(3).key).deterministic == {"square": 9}


def outcome_of(x: int):
    from offsupport.bench import Outcome

    return Outcome({"cube": x**3}, {}, {})
