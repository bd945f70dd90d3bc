"""Files made to exhaust whoever reads them: refused before anything is built, with a sentence."""

import errno
import json
import time

import pytest

from offsupport.core import files
from offsupport.core.errors import FileError
from offsupport.core.settings import read_settings

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(8)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "once its aliases are written out"),
        ("a: &a [*a]", "inside of what it stands for"),
        ("a: &a {b: {c: *a}}", "inside of what it stands for"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than"),
        ("- " * 5000, "nested more than"),
        ("a: [" + "1, " * 30_000 + "]", "more than 10,000 values"),
        ("a: " + "x" * 300_000, "larger than 200 kB"),
        ("a: " + "1" * 5000, "not YAML"),
        ("a: 2024-13-45", "not YAML"),
        ('a: "\\ud800"', "not YAML"),
        ("a: !!python/object/apply:os.getcwd []", "not YAML"),
    ],
    ids=range(11),
)
def test_settings_that_would_exhaust_their_reader_are_refused(text, words, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    before = time.process_time()
    with pytest.raises(FileError, match=words):
        read_settings(path)
    assert time.process_time() - before < 5


def test_aliases_that_people_write_are_read(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("a: &a {lr: 1e-3}\nb: [*a, *a]\nc:\n  <<: *a\n  d: 1\n")
    assert read_settings(path) == {"a": {"lr": 0.001}, "b": [{"lr": 0.001}] * 2, "c": {"lr": 0.001, "d": 1}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "deep"),
        ("[" * 70 + "]" * 70, "deep"),
        ('{"a":' * 70 + "1" + "}" * 70, "deep"),
        ("[NaN]", "finite"),
        ("[-Infinity]", "finite"),
        ("[1e999]", "finite"),
        ("1" * 50, "too large"),
        ('["\\ud800"]', "Unicode"),
        ("{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
    ],
    ids=range(10),
)
def test_json_that_would_break_its_reader_is_refused(text, words, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileError, match=words):
        files.read_json(path)


def test_json_as_it_is_written_is_read(tmp_path):
    value = {"a": [1, -2.5e-300, None, True], "b": "\U0001f600 \\ud800", "c": {"d": json.loads("[" * 50 + "]" * 50)}}
    files.write_json(tmp_path / "r.json", value)
    assert files.read_json(tmp_path / "r.json") == value


def test_a_json_file_that_is_far_too_large_is_not_read(tmp_path):
    with (tmp_path / "r.json").open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    with pytest.raises(FileError, match="larger than 64 MB"):
        files.read_json(tmp_path / "r.json")


def test_a_full_disk_is_not_the_folders_fault(tmp_path, monkeypatch):
    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left"):
        files.require_folder(tmp_path)
