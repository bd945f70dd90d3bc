import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offsupport.bench import Store
from offsupport.cli.main import main
from offsupport.core.files import folder_lock

HELPERS = Path(__file__).parent.parent / "bench"
TINY = ["--model", "bench_models:tiny", "--allow-code", "--limit", "48"]
GRID = ["--corruptions", "contrast,fog", "--methods", "source,bn", *TINY]
# Only a hang takes so long: on a busy machine a process may take a minute to start.
PATIENCE = 600.0


@pytest.fixture
def call(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(HELPERS))

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["offsupport", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_run_status_resume_report(call, request, tmp_path):
    code, out, _ = call("bench", "run", *GRID, "--out", tmp_path / "run", "--workers", 1, "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [(row["method"], row["column"]) for row in rows if row["column"].endswith("avg")] == [
        ("source", "digits-c/avg"), ("bn", "digits-c/avg"),
    ]  # fmt: skip
    assert {row["n"] for row in rows} == {48, 96}
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run" / "cells").iterdir()}

    code, out, _ = call("bench", "status", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out) | {"folder": ""} == {
        "folder": "", "total": 4, "done": 4, "failed": 0, "missing": 0, "failures": {}, "reasons": {},
        "needs_allow_code": {"bench_models:tiny": 4},
    }  # fmt: skip

    wider = [word.replace("contrast,fog", "contrast,fog,frost") for word in GRID]
    request.getfixturevalue("in_process")  # workers were seen to work above
    code, _, err = call("bench", "run", *wider, "--out", tmp_path / "run", "--workers", 1)
    assert code == 0
    assert "6 cells: 2 computed, 4 were there already." in err
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run" / "cells").iterdir()}
    assert before.items() <= after.items()

    (tmp_path / "run" / "report.html").unlink()
    code, out, _ = call("report", tmp_path / "run")
    assert code == 0
    assert "digits-c" in Path(out.strip()).read_text()


def test_dry_run_estimates_from_a_trial_and_then_from_results_and_writes_nothing(call, in_process, tmp_path):
    """Method bn makes one forward pass over each image; the clean stream of 48 images is not one of the results."""
    out = tmp_path / "run"
    words = ["bench", "run", "--methods", "bn", *TINY, "--out", out]
    code, shown, _ = call(*words, "--corruptions", "fog,frost", "--dry-run", "--json")
    found = json.loads(shown)
    assert (code, found["cells"], found["done"], len(found["grid"])) == (0, 2, 0, 2)
    assert (found["forward"], found["backward"], found["sources"]) == (96, 0, {"results": 0, "trials": 2})
    assert found["seconds"] > 0
    assert not out.exists()

    call(*words, "--corruptions", "fog", "--workers", 1)
    (record,) = [json.loads(path.read_text())["record"] for path in (out / "cells").iterdir()]
    _, shown, _ = call(*words, "--corruptions", "fog,frost", "--dry-run", "--json")
    found = json.loads(shown)
    assert (found["done"], found["sources"]) == (1, {"results": 1, "trials": 0})
    assert found["seconds"] == pytest.approx(record["timing"]["seconds"])

    code, shown, _ = call("bench", "verify", out, *TINY[:3], "--workers", 1, "--json")
    assert (code, json.loads(shown)["exact"], json.loads(shown)["different"]) == (0, 1, {})
    code, shown, _ = call("bench", "diff", out, out)
    assert (code, shown) == (0, "The same, but for the times.\n")


def test_the_sparsity_constraint_goes_behind_any_method(call, in_process, tmp_path):
    grid = [word.replace("source,bn", "tent+sc,shot+sc").replace("contrast,fog", "fog") for word in GRID]
    code, out, _ = call(
        "bench", "run", *grid, "--preset", "cifar10", "--out", tmp_path / "run", "--workers", 1, "--json"
    )
    assert code == 0
    assert {row["method"] for row in json.loads(out)["rows"]} == {"tent+sc", "shot+sc"}
    cells = [json.loads(path.read_text()) for path in (tmp_path / "run" / "cells").iterdir()]
    assert len(cells) == 2
    assert all("zero_gates" in json.dumps(cell) for cell in cells)
    code, _, err = call("bench", "run", *[w.replace("shot+sc", "bn+sc") for w in grid], "--out", tmp_path / "other")
    assert code == 2
    assert "takes no gradient steps" in err


def test_failed_cells_are_shown_and_counted(call, in_process, tmp_path):
    """The disk refuses results: every cell fails, nothing is hidden, the exit code says so."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "cells").touch()  # not a folder: no result can be written
    code, _, err = call("bench", "run", *GRID, "--out", folder, "--workers", 1)
    assert code == 4
    assert "4 of 4 cells have no result" in err
    assert "Traceback" not in err
    code, out, _ = call("bench", "status", folder, "--json")
    counts = json.loads(out)
    assert counts["total"] == counts["done"] + counts["failed"] + counts["missing"] == 4
    assert counts["failed"] == 4


def test_a_second_run_on_one_folder_is_refused(call, tmp_path):
    with folder_lock(tmp_path):
        code, _, err = call("bench", "run", *GRID, "--out", tmp_path)
    assert code == 2
    assert "Another process is working" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bench", "status", "nowhere"], 2, "not a run folder"),
        (["report", "nowhere"], 2, "not a run folder"),
        (["bench", "verify", "nowhere"], 2, "not a run folder"),
        (["bench", "diff", "nowhere", "there"], 2, "no run folder or result file"),
        (["bench", "run", "gone.yaml"], 2, "There is no file gone.yaml"),
        (["bench", "run", "gone.yaml", "--severity", "3"], 2, "Both the recipe and --severity"),
        (["bench", "run", "--out", "x"], 2, "has no cells"),
        (["bench", "run", "--methods", "bn", "--address", "a:1", "--out", "x"], 2, "Add --executor ray"),
        (["reproduce", "tabel2"], 2, "Did you mean 'table2'"),
        (["reproduce", "tuning", "--scale", "paper"], 2, "no scale 'paper'"),
        (["reproduce", "table2", "--scale", "paper"], 3, "There are no weights at"),
        (["reproduce", "table2", "--runs", "2"], 2, "takes no --runs"),
        (["reproduce", "table2", "--methods", "", "--out", "x"], 2, "--methods names nothing"),
        (["reproduce", "regret", "--parts", " ,", "--out", "x"], 2, "--parts names nothing"),
        (["bench", "run", "--corruptions", "fogg", "--methods", "bn", "--out", "x"], 2, "Did you mean 'fog'"),
        (
            ["bench", "run", "--corruptions", "fog", "--methods", "bn", "--protocol", "onlin", "--out", "x"],
            2,
            "protocol",
        ),
    ],
)
def test_mistakes_get_a_sentence(call, tmp_path, monkeypatch, words, code, said):
    monkeypatch.chdir(tmp_path)
    found, out, err = call(*words)
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.json"))


def test_continual_is_one_stream(call, in_process, tmp_path):
    code, out, _ = call("bench", "run", *GRID, "--protocol", "continual", "--out", tmp_path, "--workers", 1, "--json")
    assert code == 0
    assert len(Store(tmp_path).grid()) == 2
    assert {row["column"] for row in json.loads(out)["rows"]} == {"digits-c/contrast", "digits-c/fog", "digits-c/avg"}


def test_hyper_parameters_are_printed_without_anything_to_run(call, tmp_path):
    code, out, _ = call("reproduce", "tableA2", "--out", tmp_path, "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found) == ["table", "scale", "rows", "claims", "hyper_parameters"]
    assert {"method", "preset", "name", "value", "paper", "remark"} == set(found["hyper_parameters"][0])
    code, out, _ = call("reproduce", "tableA2", "--out", tmp_path)
    assert code == 0
    assert "teacher_decay" in out


def test_reproduce_keeps_its_contract(call, in_process, tmp_path):
    _untrained_digits(tmp_path)
    words = ["reproduce", "table2", "--methods", "source,bn", "--out", tmp_path, "--workers", 1]
    code, out, _ = call(*words, "--json")
    assert code == 0
    found = json.loads(out)
    assert set(found) == {"table", "scale", "rows", "claims"}
    assert (found["table"], found["scale"]) == ("table2", "smoke")
    assert len(found["rows"]) == 2 * 16
    for row in found["rows"]:
        assert set(row) == {"method", "column", "metric", "unit", "value", "low", "high", "n", "paper"}
        assert row["method"] in ("source", "bn")
        assert row["column"].startswith("digits-c/")
        assert (row["metric"], row["unit"], row["paper"]) == ("error", "percent", None)
        assert 0 <= row["low"] <= row["value"] <= row["high"] <= 100
        assert row["n"] == (15 * 599 if row["column"] == "digits-c/avg" else 599)
    (claim,) = found["claims"]
    assert set(claim) == {"claim", "verdict", "evidence"}
    assert claim["verdict"] in ("holds", "does-not-hold", "undecided")
    assert claim["evidence"]["low"] <= claim["evidence"]["value"] <= claim["evidence"]["high"]
    assert (tmp_path / "report.html").is_file()
    code, out, _ = call(*words)
    assert code == 0
    assert "bn has a lower average error than source" in out


def _untrained_digits(folder: Path) -> None:
    from offsupport.core.checkpoints import save_tensors
    from offsupport.training.digits import digits_network

    save_tensors(folder / "models" / "digits-small.safetensors", digits_network().state_dict(), {})


@pytest.mark.fault
def test_killed_at_five_random_moments_the_results_are_the_same(tmp_path):
    rng = random.Random(0)
    words = [*GRID, "--batch-size", "16", "--seeds", "6", "--workers", "2"]
    assert _start(words, tmp_path / "whole").wait() == 0
    counts = [_killed_after(rng.choice([0, 1, 2]), rng.random(), words, tmp_path / "killed") for _ in range(5)]
    assert counts == sorted(counts)
    assert 0 < counts[-1] < 24, "the kills must fall into the middle of the run"
    assert _start(words, tmp_path / "killed").wait() == 0
    whole, killed = Store(tmp_path / "whole"), Store(tmp_path / "killed")
    assert [cell.key for cell in whole.grid()] == [cell.key for cell in killed.grid()]
    names = [sorted(path.name for path in (store.folder / "cells").iterdir()) for store in (whole, killed)]
    assert names[0] == names[1]
    assert len(names[0]) == 24
    for cell in whole.grid():
        assert whole.read(cell.key).fingerprint == killed.read(cell.key).fingerprint


def _killed_after(more: int, delay: float, words: list[str], out: Path) -> int:
    """Kill a run with all its workers some moment after so many more cells are there; return how many there are."""
    before = _count(out)
    run = _start(words, out)
    while _count(out) < before + more and run.poll() is None:
        time.sleep(0.002)
    time.sleep(delay * (0.3 if more else 5.0))
    assert run.poll() is None
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    return _count(out)


def _count(folder: Path) -> int:
    return len(list(folder.glob("cells/[!.]*.json")))


@pytest.mark.fault
def test_interrupt_ends_with_130_and_leaves_a_run_that_resumes(tmp_path):
    words = [*GRID, "--seeds", "4", "--workers", "1"]
    run = _start(words, tmp_path)
    _until(lambda: list(tmp_path.glob("cells/*.json")))
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(timeout=PATIENCE) == 130
    assert _start(words, tmp_path).wait() == 0
    assert len(list(tmp_path.glob("cells/*.json"))) == 16


@pytest.mark.fault
@pytest.mark.parametrize(
    ("everybody", "number"), [(True, signal.SIGINT), (False, signal.SIGINT), (False, signal.SIGTERM)]
)
def test_interrupt_in_a_long_cell_ends_after_a_batch_and_goes_on_from_there(tmp_path, everybody, number):
    """A terminal sends the signal to everybody, a supervisor to the one it knows; first, workers just start."""
    words = ["--dataset", "digits-c", "--corruptions", "contrast", "--methods", "tesla+sc", "--batch-size", "16"]
    out = tmp_path / "interrupted"
    for pause in (0.0, 4.0):  # its only cell takes longer
        run = _start(words, out)
        _until(lambda run=run, pause=pause: any(_computing(worker) >= pause for worker in _workers(run.pid)))
        (os.killpg if everybody else os.kill)(run.pid, number)
        assert run.wait(timeout=PATIENCE) == 130
        assert not list(out.glob("cells/*.json"))
        begun = len(list(out.glob("checkpoints/*.safetensors")))
        assert begun == 1 or not pause, "at first the cell may not have begun"
    assert _start(words, out).wait() == 0
    assert not list(out.glob("checkpoints/*"))
    assert _start(words, tmp_path / "whole").wait() == 0
    assert _results(out) == _results(tmp_path / "whole")


@pytest.mark.fault
def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path):
    words = ["--dataset", "digits-c", "--corruptions", "contrast", "--methods", "tent", "--limit", "64"]
    assert _start(words, tmp_path).wait() == 0
    (result,) = tmp_path.glob("cells/*.json")
    before = _results(tmp_path)
    result.unlink()
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    (tmp_path / "checkpoints" / f"{result.stem}.safetensors").write_bytes(b"no checkpoint at all")
    assert _start(words, tmp_path).wait() == 0
    assert _results(tmp_path) == before
    assert not list(tmp_path.glob("checkpoints/*"))


def _until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def _computing(pid: str) -> float:
    """For how many seconds a process has had a processor: on a busy machine, far fewer than have passed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _workers(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _results(folder: Path) -> list[dict[str, object]]:
    records = [json.loads(path.read_bytes())["record"] for path in sorted(folder.glob("cells/*.json"))]
    return [{**record, "timing": None} for record in records]


def _start(words: list[str], out: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(HELPERS), *sys.path])
    command = [sys.executable, "-m", "offsupport", "bench", "run", *words, "--out", str(out)]
    quiet = subprocess.DEVNULL
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, env=environment, start_new_session=True, stdout=quiet, stderr=quiet)
