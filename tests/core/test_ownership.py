"""What is not ours is neither replaced nor removed."""

import json
import os
import sys

import pytest
import safetensors.torch
import torch

from offsupport.core import files
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import FileError
from offsupport.core.ownership import is_own_json, require_absent, require_own

posix = pytest.mark.skipif(sys.platform == "win32", reason="makes links and pipes")


def test_a_file_needs_a_mark_to_be_replaced(tmp_path):
    path = tmp_path / "f"
    require_own(path, b"mark")
    path.write_bytes(b"a mark")
    require_own(path, b"other", b"mark")
    with pytest.raises(FileError, match=r"f is in the way: offsupport did not write it"):
        require_own(path, b"other")
    path.write_bytes(b"")
    with pytest.raises(FileError):
        require_own(path, b"mark")


@posix
def test_what_cannot_be_read_is_not_ours(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("pipe", "folder", "link"):
        with pytest.raises(FileError, match="in the way"):
            require_own(tmp_path / name, b"mark")
        with pytest.raises(FileError, match="in the way"):
            require_absent(tmp_path, ["else", name], "the run")
        assert not is_own_json(tmp_path / name, lambda found: True)
    require_absent(tmp_path, ["else"], "the run")


def test_json_is_known_by_its_keys(tmp_path):
    path = tmp_path / "f.json"
    for text, ours in {'{"a": 1}': True, '{"b": 1}': False, "[]": False, "{": False}.items():
        path.write_text(text)
        assert is_own_json(path, lambda found: "a" in found) == ours


def test_weights_of_others_are_not_replaced_and_ours_are(tmp_path):
    path = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file({"w": torch.ones(2)}, path, metadata)
        before = path.read_bytes()
        with pytest.raises(FileError, match="in the way"):
            save_tensors(path, {"w": torch.zeros(2)}, {})
        assert path.read_bytes() == before
    path.unlink()
    for value in range(3):
        save_tensors(path, {"w": torch.full((2,), value)}, {"long": "x" * 10_000 * value})
        assert load_tensors(path)[0]["w"].tolist() == [value] * 2


@posix
def test_nothing_is_written_over_a_device_a_pipe_or_a_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("pipe", "folder", "device"):
        with pytest.raises(FileError, match="no file can be written there"):
            files.write_text(tmp_path / name, "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device", "folder", "pipe"]
    assert (tmp_path / "device").is_symlink()


@posix
def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "f").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "f").read_text() == "mine"


def test_names_of_any_length_can_be_written(tmp_path):
    files.write_text(tmp_path / ("x" * 250), "whole")
    assert (tmp_path / ("x" * 250)).read_text() == "whole"


@posix
def test_only_temporary_files_of_ours_are_cleared_and_no_link_is_followed(tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    kept = [".notes.tmp", ".x.json.abcdefgh.tmp", "x.json.abcdefgh.offsupport.tmp"]
    for folder in (here, elsewhere):
        folder.mkdir()
        for name in (*kept, ".x.json.abcdefgh.offsupport.tmp"):
            (folder / name).touch()
    (here / ".link.abcdefgh.offsupport.tmp").symlink_to(elsewhere / kept[0])
    (tmp_path / "link").symlink_to(elsewhere)
    for folder in (here, tmp_path / "link", tmp_path / "nothing"):
        files.clear_temporaries(folder)
    assert {path.name for path in here.iterdir()} == {*kept, ".link.abcdefgh.offsupport.tmp"}
    assert len(list(elsewhere.iterdir())) == 4


def test_temporary_files_are_called_as_the_clearing_expects(tmp_path):
    with files.atomic(tmp_path / "x.json"):
        [name] = [path.name for path in tmp_path.iterdir()]
        files.clear_temporaries(tmp_path)
        assert not list(tmp_path.iterdir())
        (tmp_path / name).touch()  # for the rename
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@posix
def test_a_file_that_is_no_lock_is_not_taken_for_one(tmp_path):
    (tmp_path / ".lock").write_text("notes")
    with pytest.raises(FileError, match="no lock of offsupport"), files.folder_lock(tmp_path):
        pass
    (tmp_path / "x.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(FileError, match="no lock of offsupport"), files.file_lock(tmp_path / "x.bin"):
        pass
    assert (tmp_path / ".lock").read_text() == "notes"
    assert not (tmp_path / "victim").exists()


@posix
def test_a_pipe_is_not_read_as_json_nor_hashed(tmp_path):
    os.mkfifo(tmp_path / "f.json")
    for read in (files.read_json, files.sha256_file):
        with pytest.raises(FileError, match="named pipe"):
            read(tmp_path / "f.json")


def test_what_is_set_aside_is_found_beside(tmp_path):
    path = tmp_path / "f"
    files.set_aside(path)
    for text in "ab":
        path.write_text(text)
        files.set_aside(path)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"f.aside-1": "a", "f.aside-2": "b"}


def test_a_text_that_is_no_unicode_is_written_escaped(tmp_path):
    files.write_text(tmp_path / "f", "caf\udce9")
    assert (tmp_path / "f").read_text() == r"caf\udce9"
    files.write_json(tmp_path / "f.json", {"caf\udce9": 1})
    assert json.loads((tmp_path / "f.json").read_bytes())
