"""A stranger's folder: whatever its files name, nothing in it runs, and every verb ends with a sentence."""

import copy
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import offsupport
from offsupport import zoo
from offsupport.bench import Cell, Store
from offsupport.bench.cell import home_of, prepare
from offsupport.bench.executor import Summary, Task, attempt
from offsupport.bench.store import seal
from offsupport.cli.main import main
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import OffsupportError
from offsupport.results.correctness import pack
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.models import MODELS, BuiltIn
from offsupport.studies.tables import TABLES, TableOptions

EVIL = "evilmod:boom"
NAMES = (EVIL, "conftest:boom", "pytest:main")
HELPERS = Path(__file__).parent.parent / "bench"
TRAP = "from pathlib import Path\nMARK = Path({!r})\nMARK.touch()\ndef boom(*a, **k): MARK.touch()\n"


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Modules that would leave a mark lie in the working folder, under names that something might import."""
    here = tmp_path / "stranger"
    here.mkdir()
    for name in ("evilmod", "conftest", "sitecustomize", "usercustomize", "timm", "ray", "bench_models"):
        (here / f"{name}.py").write_text(TRAP.format(str(tmp_path / "mark")))
    (here / "evil-1.0.dist-info").mkdir()
    (here / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    points = "".join(
        f"[offsupport.{group}]\n{name} = evilmod\n"
        for group in ("methods", "corruptions", "datasets", "tables", "models")
        for name in ("evil", EVIL.replace(":", "-"))
    )
    (here / "evil-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.chdir(here)
    monkeypatch.setitem(MODELS._items, "hostile-tiny", BuiltIn("for this test", model, model, kept=False))
    path = list(sys.path)
    yield here
    assert not (tmp_path / "mark").exists(), "something of the folder ran"
    assert "evilmod" not in sys.modules
    assert sys.path == path, "the working folder counts only where code was allowed"


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["offsupport", *map(str, words)])
        with pytest.raises(SystemExit) as ended:  # any other exception would be a traceback
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def variants(value):
    """Yield copies of a JSON value, each with one of the texts in it replaced by a name of code; and where it stood."""
    for path in list(_texts(value)):
        changed = copy.deepcopy(value)
        owner = changed
        for step in path[:-1]:
            owner = owner[step]
        owner[path[-1]] = EVIL
        yield path, changed


def _texts(value, path=()):
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in inside:
        if isinstance(each, str) or each is None:
            yield (*path, step)
        yield from _texts(each, (*path, step))


RECIPE = {
    "about": "mine",
    "datasets": [
        {"dataset": "digits-c", "corruptions": ["fog"], "model": "hostile-tiny", "order": "iid", "limit": 16,
         "source_split": "train"},
        "digits-c",
    ],
    "methods": [{"method": "bn", "hyper": {"head": "0"}, "preset": None}, "source"],
    "protocol": "online",
    "device": "cpu",
}  # fmt: skip


def test_no_field_of_a_recipe_runs_anything(folder, call):
    for path, recipe in variants(RECIPE):
        if path != ("about",):
            (folder / "r.yaml").write_text(yaml.safe_dump(recipe))
            code, _, err = call("bench", "run", "r.yaml", "--dry-run")
            assert code in (2, 3) or path[-1] == "head", path  # a layer that this method never asks for
            assert err.startswith("offsupport: ") or code == 0
    code, _, err = call("train", "r.yaml", "--out", "trained")
    assert code == 2


def test_a_recipe_that_names_code_says_what_to_do(folder, call):
    (folder / "r.yaml").write_text(f"datasets: [{{dataset: digits-c, model: '{EVIL}'}}]\nmethods: [bn]")
    code, _, err = call("bench", "run", "r.yaml")
    assert code == 2
    assert "names code" in err
    assert f"--model {EVIL} --allow-code" in err
    assert "Register it" in err
    code, _, err = call("bench", "run", "r.yaml", "--allow-code")
    assert (code, "no meaning beside a recipe" in err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "run", "--methods", "bn", "--limit", 16, "--model", EVIL),
        ("bench", "run", "--methods", "bn", "--limit", 16, "--model", EVIL, "--dry-run"),
        ("adapt", "--images", "in", "--method", "bn", "--model", EVIL),
        ("diagnose", "--images", "in", "--source", "in", "--model", EVIL),
    ],
    ids=lambda words: words[0],
)
def test_on_the_command_line_code_needs_a_permission(folder, call, words):
    from PIL import Image

    (folder / "in").mkdir()
    Image.new("RGB", (32, 32)).save(folder / "in" / "a.png")
    code, _, err = call(*words)
    assert code == 2
    assert "code runs only if you name it and allow it" in err
    assert "--allow-code" in err


def cell(**changes):
    config = AdaptConfig(dataset="digits-c", method="bn", corruption="fog", model="hostile-tiny", limit=16)
    return Cell("adapt", {**config.cell().config, "hyper": {"head": "0"}, "shard": None, "device": "cpu", **changes})


def record():
    images = pack(range(16), [True] * 16)
    measured = {
        "error": 0.5, "ci95": [0.4, 0.6], "n": 16, "per_class": {"0": 0.5}, "trace": [0.5], "warnings": ["careful"],
        "domains": {"fog/5": {"error": 0.5, "n": 16, "ci95": [0.4, 0.6], "images": images}},
        "passes": {"forward": 1, "backward": 0}, "events": {"reset": 0},
    }  # fmt: skip
    provenance = {"weights_sha256": "ab", "data_sha256": "cd", "data_source": "digits"}
    return {"cell": cell().to_dict(), "deterministic": measured, "provenance": provenance, "timing": {"seconds": 1.0}}


def stored(folder, body, request=None):
    """Write a run folder with this one result under a right key and checksum."""
    said = Cell(body["cell"]["kind"], body["cell"]["config"])
    store = Store(folder)
    store.cells.mkdir(parents=True, exist_ok=True)
    store.path(said.key).write_bytes(seal({"schema": 1, "key": said.key, **body}))
    store.failure_path("0" * 64).parent.mkdir(exist_ok=True)
    grid = {"schema": 1, "request": request or {"verb": "bench"}, "cells": [said.to_dict()]}
    (folder / "grid.json").write_text(json.dumps(grid))
    return said


@pytest.fixture
def here_not_in_workers(monkeypatch):
    """Verify in this process, where whatever runs leaves its traces; workers would take seconds each."""

    def run(cells, place, workers, announce):
        summary = Summary()
        if cells:
            prepare(cells, place)
        for each in cells:
            failure = attempt(Task(each, home_of(each)), place, Store(place.folder).keep)
            summary.failed |= {each.key: failure} if failure else {}
        return summary

    monkeypatch.setattr(importlib.import_module("offsupport.bench.verify"), "run_cells", run)
    yield
    torch.set_num_threads(1)


def test_no_field_of_a_result_runs_anything(folder, call, tmp_path, here_not_in_workers):
    for number, (path, body) in enumerate(variants(record())):
        run = tmp_path / f"run{number}"
        said = stored(run, body)
        (run / "failures" / f"{said.key}.json").write_text(json.dumps({"cell": said.to_dict(), "message": EVIL}))
        assert call("bench", "status", run)[0] == 0
        assert call("bench", "diff", run, next((run / "cells").iterdir()))[0] == 0
        if path[0] == "deterministic" or path[-1] in ("kind", "method", "dataset"):
            assert call("report", run)[0] in (0, 2)
        if path[0] == "cell" and path[-1] != "shard":
            code, _, err = call("bench", "verify", run)
            assert code in (2, 3, 4), path
            assert err.startswith("offsupport: ")


KINDS = {
    cell.kind: cell
    for table in ("table1", "table3", "guarantees", "kl-choice", "poison", "regret", "protocols", "readings")
    for cell in TABLES[table].cells("smoke", TableOptions())
}
"""A cell of each kind that a table brings."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_of_a_cell_of_any_kind_runs_anything(folder, call, tmp_path, here_not_in_workers, kind):
    known = {"model": "hostile-tiny", "limit": 16, "source_images": 16}
    config = KINDS[kind].config | {name: value for name, value in known.items() if name in KINDS[kind].config}
    body = {"deterministic": {}, "provenance": {}, "timing": {}}
    for number, (path, changed) in enumerate(variants(config)):
        if path == ("condition",):  # words for people
            continue
        run = tmp_path / f"run{number}"
        stored(run, {**body, "cell": Cell(kind, changed).to_dict()})
        assert call("bench", "status", run)[0] == 0
        code, _, err = call("bench", "verify", run)
        assert code in (2, 3, 4), path
        assert err.startswith("offsupport: ")


@pytest.mark.parametrize("name", NAMES)
def test_results_that_name_code_are_shown_and_left_out_of_verify(folder, call, tmp_path, name, here_not_in_workers):
    stored(tmp_path / "run", {**record(), "cell": cell(model=name, hyper={}).to_dict()})
    code, out, err = call("bench", "status", tmp_path / "run")
    assert code == 0
    assert f"needs --model {name} --allow-code" in err
    code, out, err = call("bench", "verify", tmp_path / "run")
    assert code == 2
    assert "1 were not: they need --allow-code" in out
    assert f"--model {name} --allow-code" in err
    for words in (["--allow-code"], ["--model", name], ["--model", "other:f", "--allow-code"]):
        assert call("bench", "verify", tmp_path / "run", *words)[0] == 2, "it takes both, and the very name"
    assert call("report", tmp_path / "run")[0] == 0
    assert " --out again --allow-code" in (tmp_path / "run" / "report.html").read_text()


def test_no_field_of_a_grid_runs_anything(folder, call, tmp_path):
    options = {"runs": None, "seeds": None, "methods": ["bn"]}
    request = {"verb": "reproduce", "table": "table2", "scale": "smoke", "options": options}
    stored(tmp_path / "run", record())
    whole = json.loads((tmp_path / "run" / "grid.json").read_text()) | {"request": request}
    for _, grid in variants(whole):
        (tmp_path / "run" / "grid.json").write_text(json.dumps(grid))
        for verb in (("bench", "status"), ("report",)):
            assert call(*verb, tmp_path / "run")[0] in (0, 2)


def test_no_field_of_a_data_manifest_or_card_runs_anything(folder, call, tmp_path, monkeypatch):
    data = tmp_path / "digits-c"
    data.mkdir()
    recipe = {"offsupport": "0", "seed": "0", "frost": "0", "dataset": "digits-c"}
    manifest = {"recipe": recipe, "files": {EVIL: {"sha256": EVIL, "bytes": 1}}, "skipped": [EVIL]}
    card = json.loads((zoo.folder("cifar10-resnet18x0.25-moco") / "card.json").read_text())
    monkeypatch.setattr(zoo, "_ROOT", tmp_path / "zoo")
    (tmp_path / "zoo" / "evil").mkdir(parents=True)
    for _, changed in variants(manifest):
        (data / "manifest.json").write_text(json.dumps(changed))
        assert call("data", "check", data)[0] in (2, 3)
    for _, changed in variants(card):
        (tmp_path / "zoo" / "evil" / "card.json").write_text(json.dumps(changed))
        assert call("bench", "run", "--methods", "bn", "--model", "zoo:evil", "--dry-run")[0] in (2, 3)


def test_no_text_in_files_of_tensors_runs_anything(folder, tmp_path):
    adapted = offsupport.adapt(model(), "tent")
    adapted.save(tmp_path / "adapter.safetensors")
    tensors, manifest = load_tensors(tmp_path / "adapter.safetensors")
    for path, changed in variants(manifest):
        if path[0] != "strides":
            save_tensors(tmp_path / "evil.safetensors", tensors, changed)
            with pytest.raises(OffsupportError):
                offsupport.load_adapted(model(), tmp_path / "evil.safetensors")
    for named in variants({"network": "resnet18", "normalization": "cifar10"}):
        save_tensors(tmp_path / "evil.safetensors", model().state_dict(), named[1])
        with pytest.raises(OffsupportError):
            offsupport.load_model(f"file:{tmp_path / 'evil.safetensors'}")


@pytest.mark.slow
def test_allowed_code_runs_from_the_working_folder_and_in_workers(tmp_path, monkeypatch, call):
    """The other half: whoever names it and allows it gets it."""
    (tmp_path / "mine_allowed.py").write_text(
        "from torch import nn\ndef made():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ("bench", "run", "--methods", "source", "--limit", 16, "--model", "mine_allowed:made", "--workers", 1)
    code, _, err = call(*words, "--allow-code", "--out", "run")
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot be told to leave the working folder out")
def test_a_real_process_and_its_workers_import_nothing_from_the_working_folder(folder, tmp_path):
    for name in ("yaml", "typer", "rich", "filelock", "pickle", "runpy_extra", "scipy", "PIL", "selectors"):
        (folder / f"{name}.py").write_text(TRAP.format(str(tmp_path / "mark")))
    (folder / "multiprocessing").mkdir()
    (folder / "multiprocessing" / "__init__.py").write_text(TRAP.format(str(tmp_path / "mark")))
    (folder / "matplotlibrc").write_text("text.usetex: True\nbackend: module://evilmod\n")
    words = ["bench", "run", "--methods", "source", "--limit", "16", "--workers", "1", "--out", "run"]
    words += ["--model", "zoo:cifar10-resnet18x0.25-moco"]
    begin = "from offsupport.__main__ import main; main()"  # what the command offsupport is
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", begin, *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
