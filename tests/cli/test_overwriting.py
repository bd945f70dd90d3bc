"""No verb replaces or removes what offsupport did not write; what it did write, it goes on from or replaces."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import offsupport
from offsupport.bench import Place
from offsupport.bench.cell import Cell, Outcome
from offsupport.bench.runs import run_grid
from offsupport.bench.store import Store
from offsupport.cli.main import app
from offsupport.core.errors import FileError
from offsupport.data import making
from offsupport.data.folders import Folder
from offsupport.data.making import MakeRequest, TreeLayout
from offsupport.diagnosis.network import save_figure
from offsupport.report import page
from offsupport.studies.models import MODELS, BuiltIn, source_model

posix = pytest.mark.skipif(sys.platform == "win32", reason="makes links")
MINE = "mine, for years"


def refused(words):
    """Run a verb that must stop before it does anything, and return what it said."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(found.exception, FileError), found.output
    return str(found.exception)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("diagnose", "--out"), ("diagnosis.json", "diagnosis.png", "diagnosis.svg")),
        (("demo", "--out"), ("report.html",)),
        (("train", "digits-small", "--out"), ("model.safetensors", "card.json", "log.jsonl", "curves.svg")),
        (("bench", "run", "--methods", "source", "--out"), ("report.html", "report.tex")),
        (("reproduce", "table1", "--out"), ("report.csv",)),
    ],
)
def test_a_folder_with_files_of_others_under_our_names_is_refused_at_once(tmp_path, words, names):
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(MINE)
        assert "is in the way: offsupport did not write it" in refused([*words, folder])
        assert contents(folder) == {name: MINE.encode()}


def test_a_grid_file_of_others_is_refused(tmp_path):
    (tmp_path / "grid.json").write_text('{"schema": "mine"}')
    refused(["bench", "run", "--methods", "source", "--out", tmp_path])
    assert json.loads((tmp_path / "grid.json").read_text()) == {"schema": "mine"}


@pytest.mark.parametrize("name", ["report.html", "report.csv", "report.tex"])
def test_a_report_replaces_its_own_files_alone(tmp_path, monkeypatch, name):
    import offsupport.report.run_page as run_page
    from offsupport.results import Measured

    Store(tmp_path).add_to_grid([], {"verb": "bench"})
    downloads = [page.Download("report.csv", "text/csv", run_page.as_csv([]), "CSV")]
    downloads.append(page.Download("report.tex", "application/x-tex", run_page.as_latex([], "a title"), "LaTeX"))
    shown = page.Page("title", "about", [], downloads=downloads)
    monkeypatch.setattr(run_page, "run_page", lambda *_: shown)
    monkeypatch.setattr(run_page, "error_rows", lambda _: [])
    for _ in range(2):
        _, measured = run_page.write_report(tmp_path)
    assert isinstance(measured, Measured)
    (tmp_path / name).write_text(MINE)
    with pytest.raises(FileError, match=f"{name} is in the way"):
        run_page.write_report(tmp_path)
    assert (tmp_path / name).read_text() == MINE


def test_a_diagnosis_replaces_an_earlier_one(tmp_path):
    from matplotlib.figure import Figure

    from offsupport.cli.diagnose import _check_out, _save

    for _ in range(2):
        _check_out(tmp_path)
        _save({"theorem1": "unknown"}, Figure((1, 1)), tmp_path)
    save_figure(Figure((1, 1)), tmp_path / "x")
    (tmp_path / "diagnosis.svg").write_text("<svg> by Matplotlib </svg>")  # as 0.2 left it
    _check_out(tmp_path)
    (tmp_path / "diagnosis.png").write_text(MINE)
    with pytest.raises(FileError, match="--out DIR"):
        _check_out(tmp_path)


def test_a_contact_sheet_replaces_an_earlier_one_and_no_other_picture(tmp_path, monkeypatch):
    monkeypatch.setattr("offsupport.data.checking.check", lambda folder: [])
    monkeypatch.setattr("offsupport.data.checking.draw_findings", lambda found: Image.new("RGB", (2, 2)))
    for _ in range(2):
        found = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
        assert found.exit_code == 0, found.output
    Image.new("RGB", (2, 2), "red").save(tmp_path / "mine.png")
    before = contents(tmp_path)
    assert "--sheet FILE" in refused(["data", "check", tmp_path, "--sheet", tmp_path / "mine.png"])
    assert contents(tmp_path) == before


@posix
def test_starting_a_run_clears_its_own_leftovers_alone_and_follows_no_link(tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    kept = [run / "notes" / ".draft.tmp", run / "cells" / ".x.json.tmp", elsewhere / ".y.abcdefgh.offsupport.tmp"]
    cell = Cell("none", {})
    kept.append(elsewhere / f"{cell.key}.safetensors")
    ours = run / "cells" / ".x.json.abcdefgh.offsupport.tmp"
    for path in (*kept, ours):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MINE)
    for name in ("failures", "checkpoints", "models", "other"):
        (run / name).symlink_to(elsewhere)
    store = Store(run)
    store.write(cell, Outcome({}, {}, {}))
    with store.locked():
        assert all(path.read_text() == MINE for path in kept)
        assert not ours.exists()


@posix
def test_a_result_that_is_a_pipe_is_no_result(tmp_path):
    import os

    store, cell = Store(tmp_path), Cell("none", {})
    store.cells.mkdir()
    os.mkfifo(store.path(cell.key))
    assert "named pipe" in store.read(cell.key).reason


def test_a_run_that_was_begun_goes_on(tmp_path):
    for _ in range(2):
        run_grid([], Place(tmp_path, None), {"verb": "bench"})
        (tmp_path / "cells").mkdir(exist_ok=True)


def test_a_model_file_of_others_is_set_aside_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS._items, "toy", BuiltIn("toy", lambda: nn.Linear(1, 1), lambda: nn.Linear(1, 1)))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.safetensors").write_text(MINE)
    source_model("toy", tmp_path)
    assert (tmp_path / "models" / "toy.safetensors.aside-1").read_text() == MINE


def test_saving_replaces_what_was_saved_and_nothing_else(tmp_path):
    adapted = offsupport.adapt(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)), "bn")
    images, labels = np.zeros((4, 2, 2, 3), np.uint8), np.arange(4) % 2
    stream = offsupport.data.stream_arrays(images, labels, batch_size=2)
    for save, name in ((adapted.save, "a.safetensors"), (stream.save, "s.json")):
        save(tmp_path / name)
        save(tmp_path / name)
        (tmp_path / name).write_text('{"mine": 1}')
        with pytest.raises(FileError, match="in the way"):
            save(tmp_path / name)
        assert (tmp_path / name).read_text() == '{"mine": 1}'
    torch.save({"w": torch.ones(1)}, tmp_path / "w.pt")
    before = (tmp_path / "w.pt").read_bytes()
    with pytest.raises(FileError, match="in the way"):
        adapted.save(tmp_path / "w.pt")
    assert (tmp_path / "w.pt").read_bytes() == before


@pytest.fixture
def request_of_digits(tmp_path):
    return MakeRequest("digits-c", None, tmp_path, 0, None, False)


def test_making_data_keeps_what_its_manifest_does_not_list(tmp_path, request_of_digits):
    manifest = making._claim(request_of_digits, {"a": 1}, ["fog"])
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "fog.npy").write_text(MINE)
    making._claim(request_of_digits, {"a": 1}, ["fog"])  # an interrupted run had not listed it yet
    (tmp_path / ".parts" / "recipe.json").unlink()
    with pytest.raises(FileError, match=r"fog\.npy is in the way"):
        making._claim(request_of_digits, {"a": 1}, ["fog"])
    making._claim(request_of_digits, {"a": 1}, ["frost"])
    (tmp_path / ".parts" / "recipe.json").rename(tmp_path / ".parts" / "mine.json")
    with pytest.raises(FileError, match=r"\.parts is in the way"):
        making._claim(request_of_digits, {"a": 1}, ["frost"])


@posix
def test_making_data_clears_no_folder_through_a_link(tmp_path):
    elsewhere = tmp_path / "elsewhere" / "x.1.offsupport.tmp"
    elsewhere.mkdir(parents=True)
    parts = tmp_path / "out" / ".parts"
    (parts / "fog-1" / "y.1.offsupport.tmp").mkdir(parents=True)
    (parts / "fog-1" / "mine.tmp").mkdir()
    (parts / "fog-2").symlink_to(tmp_path / "elsewhere")
    TreeLayout("x").prepare(MakeRequest("imagenet-c", None, tmp_path / "out", 0, None, False), {})
    assert elsewhere.is_dir()
    assert [path.name for path in (parts / "fog-1").iterdir()] == ["mine.tmp"]


def test_damaged_data_is_removed_unless_something_of_others_is_in_it(tmp_path, monkeypatch):
    (tmp_path / "clean" / "a").mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(tmp_path / "clean" / "a" / "1.png")
    monkeypatch.setattr(making, "open_clean", lambda name, data: Folder(tmp_path / "clean"))
    request = MakeRequest("imagenet-c", None, tmp_path / "out", 0, None, False)
    tree = tmp_path / "out" / "fog" / "1" / "a"
    tree.mkdir(parents=True)
    for name in ("1.JPEG", "notes.txt"):
        (tree / name).write_text(MINE)
    with pytest.raises(FileError, match=r"notes\.txt is not of `offsupport data make`"):
        TreeLayout("x").discard(request, "fog")
    assert (tree / "1.JPEG").exists()
    (tree / "notes.txt").unlink()
    TreeLayout("x").discard(request, "fog")
    assert not Path(tmp_path / "out" / "fog").exists()
