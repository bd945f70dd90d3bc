"""Folders that a stranger filled: nothing hangs, nothing is replaced, and names are only names."""

import csv
import json
import os
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

import offsupport
from offsupport.cli.main import main
from offsupport.cli.output import emit_table, say, tell
from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.nn import resnet18
from offsupport.serving import diagnose_folder

posix = pytest.mark.skipif(sys.platform == "win32", reason="makes pipes, and names that Windows has not")


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        return self.head(self.norm(x).mean((2, 3)))


def write_images(folder, names, side=16):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in names:
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(folder / name, "PNG")


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@posix
def test_pipes_devices_and_bombs_are_named_and_skipped(tmp_path):
    folder = tmp_path / "in"
    write_images(folder, ["a.png", "b.png"])
    os.mkfifo(folder / "pipe.png")
    (folder / "device.png").symlink_to("/dev/zero")
    body = zlib.compress(b"\0" * 60001)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 60000, 1, 8, 0, 0, 0, 0)), (b"IDAT", body), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    (folder / "wide.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    found = offsupport.adapt_folder(Tiny(), folder, "bn", size=224)
    assert [row.file for row in found.predictions] == ["a.png", "b.png"]
    assert {name: why.partition(".png ")[2][:14] for name, why in found.skipped.items()} == {
        "device.png": "is a device, n",
        "pipe.png": "is a named pip",
        "wide.png": "is 60000x1; wi",
    }
    assert sum(note.startswith("Left out: ") for note in found.notes) == 3


@posix
def test_a_folder_of_pipes_alone_is_an_error_and_no_wait(tmp_path):
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(DataMissingError, match="named pipe"):
        offsupport.adapt_folder(Tiny(), tmp_path, "bn")
    with pytest.raises(DataMissingError, match="named pipe"):
        diagnose_folder(Tiny(), tmp_path, source=tmp_path)


def test_files_with_several_frames_are_counted(tmp_path):
    write_images(tmp_path, ["a.png", "b.png"])
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    found = offsupport.adapt_folder(Tiny(), tmp_path, "bn")
    assert found.animated == ["moving.gif"]
    assert found.to_dict()["animated"] == ["moving.gif"]
    assert "Of files with several frames the first was read (1): moving.gif." in found.notes


def test_a_diagnosis_leaves_out_what_cannot_be_read(tmp_path):
    torch.manual_seed(0)
    write_images(tmp_path / "source", [f"{i:02d}.png" for i in range(44)], side=32)
    write_images(tmp_path / "in", ["a.png", "b.png"], side=32)
    (tmp_path / "in" / "bad.png").write_bytes(b"no image")
    found = diagnose_folder(resnet18(width=4).eval(), tmp_path / "in", source=tmp_path / "source")
    assert found.images == ["a.png", "b.png"]
    assert "cannot be read" in found.to_dict()["skipped"]["bad.png"]


HOSTILE = ["![/x].png", "=cmd.png", "\x1b]0;owned\x07.png", "new\nline.png", os.fsdecode(b"caf\xe9.png")]


@posix
def test_hostile_names_are_only_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    (folder / "![").mkdir(parents=True)
    write_images(folder, ["zz.png"])
    for name in HOSTILE:
        os.link(folder / "zz.png", folder / name)
    os.mkfifo(folder / os.fsdecode(b"\x1b[2J\xff.png"))
    model = "zoo:cifar10-resnet18x0.25-supervised"
    words = ["adapt", "--model", model, "--images", str(folder), "--method", "bn", "--size", "32"]
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["offsupport", *words, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert not ended.value.code, err
        assert not set(out + err) & set("\x1b\x07\x9b")
        (out + err).encode()
        assert r"\x1b[2J\udcff.png is a named pipe" in err
    assert len(json.loads(out)["predictions"]) == len(HOSTILE) + 1
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [r"\x1b]0;owned\x07.png", "![/x].png", "'=cmd.png", r"caf\udce9.png", r"new\nline.png", "zz.png"]
    assert [row["file"] for row in rows] == names
    about = (tmp_path / "predictions.json").read_text()
    assert r"\\x1b[2J\\udcff.png" in about
    assert r"\udcff" not in about.replace(r"\\udcff", "")


def test_tables_lines_and_errors_show_names_as_they_are(capsys, monkeypatch):
    emit_table("[/x] \x1b[2J", ["[b]"], [["![/a] x].png"], ["\x1b]0;x\x07"]])
    tell("told \x1b[2J")
    say("said \x1b[2J\nnext")
    monkeypatch.setattr(sys, "argv", ["offsupport", "bench", "status", "no \x1b[2Jrun"])
    with pytest.raises(SystemExit):
        main()
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    for text in ("![/a] x].png", "[b]", r"[/x] \x1b[2J", r"told \x1b[2J"):
        assert text in out
    assert "said \\x1b[2J\nnext\n" in err
    assert r"no \x1b[2Jrun is not a run folder" in err


def test_no_image_is_replaced_by_what_is_written_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("offsupport.diagnosis.network.ModelDiagnosis.plot", lambda self: Figure((1, 1)))
    folder = tmp_path / "d"
    write_images(folder, [f"{i:02d}.png" for i in range(44)], side=32)
    before = snapshot(folder)
    torch.manual_seed(0)
    model = resnet18(width=4).eval()
    for _ in range(2):  # the second time the picture of the first is no image of the folder
        found = offsupport.adapt_folder(model, folder, "source", source=folder, out=folder / "00.csv")
        assert found.diagnosis is not None
        assert len(found.predictions) == 44
    after = snapshot(folder)
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"00.csv", "00.json", "00.diagnosis.png", "00.diagnosis.svg"}


@pytest.mark.parametrize("name", ["pred.json", "pred.png", "pred"])
def test_what_is_known_about_predictions_never_has_their_name(tmp_path, name):
    write_images(tmp_path / "in", ["a.png"])
    for _ in range(2):
        offsupport.adapt_folder(Tiny(), tmp_path / "in", "bn", out=tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in", name, f"{name}.json"])
    assert (tmp_path / name).read_text().startswith("file,class,name,confidence,guard,")
    assert json.loads((tmp_path / f"{name}.json").read_text())["images"] == 1


@pytest.mark.parametrize("name", ["p.csv", "p.json", "p.diagnosis.png", "p.diagnosis.svg"])
def test_files_of_others_are_not_replaced(tmp_path, name):
    write_images(tmp_path / "in", ["a.png"])
    (tmp_path / name).write_text('{"mine": true}')
    for overwrite in (False, True):
        with pytest.raises(FileError, match="in the way"):
            offsupport.adapt_folder(Tiny(), tmp_path / "in", "bn", out=tmp_path / "p.csv", overwrite=overwrite)
    assert snapshot(tmp_path) == {name: b'{"mine": true}'}


def test_an_image_is_not_replaced_by_predictions(tmp_path):
    write_images(tmp_path, ["a.png"])
    before = snapshot(tmp_path)
    with pytest.raises(FileError, match="in the way"):
        offsupport.adapt_folder(Tiny(), tmp_path, "bn", out=tmp_path / "a.png", overwrite=True)
    assert snapshot(tmp_path) == before


def test_predictions_of_ours_are_replaced_unless_they_were_changed(tmp_path):
    write_images(tmp_path / "in", ["a.png", "b.png"])
    out = tmp_path / "p.csv"

    def adapt(**options):
        offsupport.adapt_folder(Tiny(), tmp_path / "in", "bn", out=out, **options)

    adapt()
    first = out.read_bytes()
    adapt()
    changed = first + b"mine,1,,0.5,\n"
    out.write_bytes(changed)
    with pytest.raises(ConfigError, match=r"was changed since offsupport wrote it\..*overwrite=True"):
        adapt()
    assert out.read_bytes() == changed
    adapt(overwrite=True)
    assert out.read_bytes() == first
    about = json.loads((tmp_path / "p.json").read_text())
    del about["predictions_sha256"]  # as 0.2 left it
    (tmp_path / "p.json").write_text(json.dumps(about))
    adapt()
