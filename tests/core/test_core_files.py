"""Files that are whole or absent."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from offsupport.core import files
from offsupport.core.errors import FileError


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which file a descriptor is of")
def test_the_order_is_write_fsync_rename_fsync_of_the_folder(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor):
        calls.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def record_replace(self, target):
        assert self.read_bytes() == b"new", "all bytes are there before the name is"
        calls.append(("rename", str(self)))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    files.write_bytes(tmp_path / "f", b"new")
    temporary = calls[0][1]
    assert calls == [("fsync", temporary), ("rename", temporary), ("fsync", str(tmp_path))]
    assert Path(temporary).parent == tmp_path


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "f"
    files.write_text(path, "old")
    with pytest.raises(TypeError), files.atomic(path) as file:
        file.writelines([b"half", None])
    with pytest.raises(KeyboardInterrupt), files.atomic(path):
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "f"
    files.write_text(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="space"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_made_and_files_are_readable_by_others(tmp_path):
    path = tmp_path / "a" / "b" / "f.json"
    files.write_json(path, {"b": 1, "a": [1.5, None]})
    assert files.read_json(path) == {"a": [1.5, None], "b": 1}
    if sys.platform != "win32":  # which has other rights
        assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text().endswith("\n")


def test_nan_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "f", {"x": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        files.canonical_json(float("inf"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_damaged_json_names_the_file(tmp_path, content):
    path = tmp_path / "f.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"f\.json"):
        files.read_json(path)


def test_canonical_json_does_not_depend_on_order():
    assert files.canonical_json({"b": 1, "a": {"d": 2, "c": 3}}) == '{"a":{"c":3,"d":2},"b":1}'
    assert json.loads(files.canonical_json({"é": "ü"})) == {"é": "ü"}


def test_hashes(tmp_path):
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert files.sha256_bytes(b"") == empty
    path = tmp_path / "f"
    path.write_bytes(b"x" * (3 << 20))
    assert files.sha256_file(path) == files.sha256_bytes(b"x" * (3 << 20))
    with path.open("rb") as file:
        assert files._digest(file) == files.sha256_file(path)


def test_a_folder_is_held_by_one_at_a_time_and_freed_at_the_end(tmp_path):
    code = (
        "import sys; from offsupport.core.files import folder_lock; from offsupport.core.errors import FileError\n"
        "try:\n    with folder_lock(sys.argv[1]): print('held')\nexcept FileError: print('refused')"
    )

    def other():
        return subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout.strip()

    with files.folder_lock(tmp_path):
        assert other() == "refused"
        with pytest.raises(FileError, match="Another process"), files.folder_lock(tmp_path):
            pass
    assert other() == "held"
    with pytest.raises(RuntimeError), files.folder_lock(tmp_path):
        raise RuntimeError
    assert other() == "held"


def test_who_comes_second_waits_for_the_first(tmp_path):
    began, ended = threading.Event(), []

    def second():
        began.set()
        with files.file_lock(tmp_path / "made.bin"):
            ended.append("second")

    with files.file_lock(tmp_path / "made.bin"):
        other = threading.Thread(target=second)
        other.start()
        began.wait()
        with files.file_lock(tmp_path / "another.bin"):  # nobody is making that one
            time.sleep(0.2)
        ended.append("first")
    other.join(60)
    assert ended == ["first", "second"]
