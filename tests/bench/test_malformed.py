"""Run folders that no run has written: what is not a result is not used, and every verb ends with a sentence."""

import errno
import json
import os
import signal
import subprocess
import sys

import pytest
from bench_kinds import square_cell

from offsupport.bench import Cell, Invalid, Outcome, Place, Store, run_cells
from offsupport.bench.cell import MOST_CELLS, require_few
from offsupport.bench.ray_cluster import _environment
from offsupport.bench.store import result_file, seal
from offsupport.bench.verify import compare
from offsupport.cli import bench as verbs
from offsupport.cli.main import main
from offsupport.core import files
from offsupport.core.errors import ConfigError, FileError, GridIncompleteError
from offsupport.results.correctness import pack, unpack
from offsupport.studies import TABLES, Request, TableOptions, expand
from offsupport.studies.grids import read_recipe

CELL = square_cell(3)
GOOD = {"schema": 1, "key": CELL.key, "cell": CELL.to_dict(), "deterministic": {}, "provenance": {}, "timing": {}}
DEEP = json.loads("[" * 200 + "]" * 200)


def without(name):
    return {key: value for key, value in GOOD.items() if key != name}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        *((without(name), name) for name in ("schema", "deterministic", "provenance", "timing", "cell")),
        *(({**GOOD, name: value}, name) for name in ("deterministic", "cell") for value in (5, [], None, "x")),
        ({**GOOD, "key": 5}, "cell"),
        ({**GOOD, "schema": 2}, "schema 2"),
        ({**GOOD, "schema": [2]}, "schema"),
        ({**GOOD, "cell": {"kind": 3, "config": {}}}, "damaged"),
        ({**GOOD, "cell": {"kind": "adapt", "config": []}}, "damaged"),
        ([], "schema"),
        ("x", "schema"),
    ],
)
def test_a_file_with_a_right_checksum_that_is_no_result_is_computed_again(body, reason, tmp_path):
    store = Store(tmp_path)
    store.cells.mkdir()
    store.path(CELL.key).write_bytes(seal(body))
    found = store.read(CELL.key)
    assert isinstance(found, Invalid)
    assert reason in found.reason
    with pytest.raises(FileError, match="is no result"):
        compare(store.path(CELL.key), store.path(CELL.key))


def raw(text):
    """A file under a right checksum that holds what our writer would refuse to write."""
    return seal({**GOOD, "deterministic": {"x": "HERE"}}).replace(b'"HERE"', text.encode())


@pytest.mark.parametrize("text", ["NaN", "1e999", "[" * 200 + "]" * 200, "[" * 100_000, '"\\ud800"', "1" * 60, "{"])
def test_values_that_nobody_can_work_with_are_named_by_their_file(text, tmp_path):
    store = Store(tmp_path)
    store.cells.mkdir()
    data = raw(text)
    body = data.partition(b'"record": ')[2]
    store.path(CELL.key).write_bytes(data.replace(data[14:78], files.sha256_bytes(body).encode()))
    assert "damaged" in store.read(CELL.key).reason
    with pytest.raises(FileError, match=CELL.key) as found:
        _ = store.sound(CELL.key).record
    assert "Delete it" in found.value.remedy


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX: named pipes")
def test_a_pipe_instead_of_a_result_keeps_nobody_waiting(tmp_path):
    store = Store(tmp_path)
    store.cells.mkdir()
    os.mkfifo(store.path(CELL.key))
    assert "is a named pipe" in store.read(CELL.key).reason


def test_a_result_that_is_far_too_large_is_not_read(tmp_path):
    store = Store(tmp_path)
    store.cells.mkdir()
    with store.path(CELL.key).open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    assert "too large" in store.read(CELL.key).reason


GRID = {"schema": 1, "request": {"verb": "bench"}, "cells": [CELL.to_dict()]}


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["offsupport", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.mark.parametrize(
    "grid",
    [
        5, [], None, {}, {**GRID, "schema": 7}, {**GRID, "cells": 5}, {**GRID, "cells": [5]}, {**GRID, "cells": None},
        {**GRID, "cells": [{"kind": 1, "config": {}}]}, {**GRID, "cells": [{"kind": "a", "config": 5}]},
        {**GRID, "cells": DEEP}, {**GRID, "request": 5}, {**GRID, "request": {"verb": "reproduce"}},
        {**GRID, "request": {"verb": "reproduce", "table": "table2", "scale": "smoke", "options": {"seeds": "x"}}},
        {**GRID, "request": {"verb": "reproduce", "table": "table2", "scale": "no", "options": {}}},
        {**GRID, "request": {"verb": "reproduce", "table": "table2", "scale": "smoke", "options": {"seeds": 10**12}}},
        {**GRID, "cells": [{"kind": "a", "config": {}}] * 20},
    ],
)  # fmt: skip
def test_a_grid_that_no_run_has_written_is_said(grid, tmp_path, call, monkeypatch):
    monkeypatch.setattr("offsupport.bench.cell.MOST_CELLS", 15)
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    code, _, err = call("report", tmp_path)
    assert code == 2
    assert err.startswith("offsupport: ")
    assert call("bench", "status", tmp_path)[0] in (0, 2)


@pytest.mark.parametrize("text", ["[]", "5", "{}", '{"message": 5}', "", "\xff", "[" * 10_000, '{"message": NaN}'])
def test_a_damaged_note_of_a_failure_is_still_a_failure(text, tmp_path, call):
    store = Store(tmp_path)
    store.add_to_grid([CELL], {"verb": "bench"})
    store.failure_path(CELL.key).parent.mkdir()
    store.failure_path(CELL.key).write_bytes(text.encode("latin-1"))
    assert "damaged" in store.failure(CELL.key)
    code, out, _ = call("bench", "status", tmp_path, "--json")
    assert (code, json.loads(out)["failed"]) == (0, 1)


def adapted(**changes):
    images = pack(range(4), [True] * 4)
    measured = {"error": 0.5, "n": 4, "trace": [0.5], "warnings": [], "passes": {"forward": 1}, "events": {}}
    measured |= {"domains": {"fog/5": {"error": 0.5, "images": images}}}
    (cell,) = expand({"method": ["source"]}, dataset="digits-c", corruption="fog")
    return cell, Outcome({**measured, **changes}, {"weights_sha256": "a"}, {"seconds": 1.0})


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 0}, {"n": "x"}, {"n": 10**30}, {"trace": 5}, {"trace": ["x"]}, {"passes": []}, {"warnings": 5},
        {"domains": {"fog/5": {}}}, {"domains": {"fog/5": {"images": {"n": 10**12, "correct": "AA=="}}}},
        {"domains": {"fog/5": {"images": {"n": 4, "correct": "not base64"}}}}, {"domains": []}, {"domains": {"": 1}},
        {"domains": {"fog/5": {"images": {"n": -1, "correct": "AA=="}}}},
    ],
)  # fmt: skip
def test_a_report_of_results_that_are_not_what_their_kind_computes_says_so_or_leaves_them_out(changes, tmp_path, call):
    cell, outcome = adapted(**changes)
    Store(tmp_path).write(cell, outcome)
    Store(tmp_path).add_to_grid([cell], {"verb": "bench"})
    code, _, err = call("report", tmp_path)
    assert code in (0, 2)
    assert ("bench verify" in err) == (code == 2), err


def test_rows_are_not_made_of_a_number_alone():
    with pytest.raises(ValueError, match="bits"):
        unpack({"n": 10**12, "correct": "AA=="})


# Grids: counted before they are made.


def test_too_many_cells_are_refused_by_their_number(tmp_path, call):
    (tmp_path / "r.yaml").write_text("datasets: [digits-c]\nmethods: [bn, tent]\nseeds: 1000000000")
    with pytest.raises(ConfigError, match="1,000,000,000 cells"):
        read_recipe(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_text("datasets: [digits-c, digits-c]\nmethods: [bn, tent]\nseeds: 60000")
    with pytest.raises(ConfigError, match="240,000 cells"):
        read_recipe(tmp_path / "r.yaml")
    for seeds in (10**9, 10**400):
        code, _, err = call("bench", "run", "--methods", "bn", "--seeds", seeds, "--dry-run")
        assert (code, "This grid would have" in err) == (2, True)
    with pytest.raises(ConfigError, match="cells"):
        expand({"seed": range(10**9)}, dataset="digits-c", method="bn")
    for name, options in (("table2", TableOptions(seeds=10**9)), ("table1", TableOptions(runs=10**12))):
        with pytest.raises(ConfigError, match="This grid would have"):
            TABLES[name].cells("smoke", options)
    require_few(MOST_CELLS)


def test_a_billion_threads_are_refused(tmp_path):
    (tmp_path / "r.yaml").write_text("datasets: [digits-c]\nmethods: [bn]\nthreads: 1000000000")
    with pytest.raises(ConfigError, match="threads"):
        read_recipe(tmp_path / "r.yaml")
    with pytest.raises(ConfigError, match="threads"):
        run_cells([Cell("test-square", {**CELL.config, "threads": 10**9})], Place(tmp_path))


# Clearing up: what a killed run left half-written, and nothing else.


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX: links without special rights")
def test_clearing_up_touches_only_what_runs_have_written(tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    half = f".{CELL.key}.json.abcdefgh.offsupport.tmp"
    for folder in (elsewhere, run / "cells", run / "mine", run):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / half).touch()
    kept = [elsewhere / half, run / "mine" / half, run / half]
    for name in (".notes.tmp", ".draft.json.tmp", "thesis.tmp", ".thesis.offsupport.tmp", half[1:]):
        (run / "cells" / name).touch()
        kept.append(run / "cells" / name)
    (run / "cells" / ".link.json.abcdefgh.offsupport.tmp").symlink_to(elsewhere / half)
    kept.append(run / "cells" / ".link.json.abcdefgh.offsupport.tmp")
    (run / "models").symlink_to(elsewhere)
    (elsewhere / f"{CELL.key}.safetensors").touch()
    (run / "checkpoints").symlink_to(elsewhere)
    (run / "cells" / f"{CELL.key}.json").write_bytes(result_file(CELL, Outcome({}, {}, {})))
    with Store(run).locked():
        pass
    assert not (run / "cells" / half).exists()
    assert all(os.path.lexists(path) for path in [*kept, elsewhere / f"{CELL.key}.safetensors"])


# Exit codes.


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("moment", ["TemporaryFile", "mkstemp"])
def test_a_full_disk_before_the_first_cell_leaves_the_grid_incomplete(moment, number, tmp_path, call, monkeypatch):
    def full(*args, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.tempfile, moment, full)
    monkeypatch.setattr("offsupport.bench.executor.prepare", lambda cells, place: None)
    code, _, err = call("bench", "run", "--methods", "source", "--limit", 8, "--out", tmp_path)
    assert (code, "run the same command again" in err) == (4, True), err


def test_a_folder_nobody_may_write_to_is_the_users_mistake(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError), verbs.full_disk_is_incomplete():
        verbs.finish(Place(tmp_path / "file" / "run"), [CELL], Request(), 1)
    with pytest.raises(GridIncompleteError), verbs.full_disk_is_incomplete():
        raise OSError(errno.ENOSPC, "No space left on device")


STARTING = """
import os, signal, sys
from importlib.abc import MetaPathFinder
class Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Watch())
from offsupport.__main__ import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX: sends a signal to one process alone")
def test_sigterm_while_a_command_is_still_being_loaded_ends_with_130():
    done = subprocess.run([sys.executable, "-c", STARTING, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_is_heard_unless_somebody_else_hears_it(monkeypatch):
    from offsupport.core import interrupts

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        interrupts.listen()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        interrupts.listen()
        assert signal.getsignal(signal.SIGTERM) is interrupts.interrupted
    finally:
        signal.signal(signal.SIGTERM, before)


def test_nodes_of_a_cluster_look_into_the_working_folder_only_for_code_that_was_allowed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "PYTHONPATH" not in _environment(False)
    assert _environment(True)["PYTHONPATH"] == str(tmp_path)
