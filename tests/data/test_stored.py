"""Stored data: headers against the size of the file, and files against the manifest when they are first used."""

import json
import os
import struct

import numpy as np
import pytest

from offsupport.core.errors import DataMissingError, FileError
from offsupport.data import stored
from offsupport.data.cifar import StoredCorruption
from offsupport.data.folders import Folder
from offsupport.data.stored import MANIFEST, MANIFEST_FORMAT, describe_file, listed_images, open_npy, sums_name

ROWS = 10


def npy(path, header, size=80):
    text = (repr(header) if not isinstance(header, str) else header).encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(size))
    return path


@pytest.mark.parametrize(
    ("shape", "descr", "message"),
    [
        ((5 * 10**12,), "<f8", "claims 40000000000000 bytes of data, and the file has 80"),
        ((2**40, 2**40), "|u1", "claims .* bytes"),
        ((11,), "<f8", "claims 88 bytes of data, and the file has 80"),
        ((-1,), "<f8", "claims the shape"),
        ((2**70, 0), "<f8", "claims the shape"),
        ((2,), "|O", "neither numbers nor words"),
        ((2,), "|V8", "neither numbers nor words"),
        ((10**12,), "|S0", "neither numbers nor words"),
        ((2,), "nonsense", "is damaged"),
        (("a",), "<f8", "is damaged"),
    ],
)
def test_a_header_is_held_against_the_file_before_anything_is_allocated(tmp_path, shape, descr, message):
    path = npy(tmp_path / "x.npy", {"descr": descr, "fortran_order": False, "shape": shape})
    with pytest.raises(FileError, match=message) as error:
        open_npy(path)
    assert error.value.remedy


@pytest.mark.parametrize("text", ["", "{", "(" * 3000, "[]", "{'descr': 3}", "__import__('os')", "y'descr': '<f8', }"])
def test_a_header_that_is_none_is_said(tmp_path, text):
    with pytest.raises(FileError, match="is damaged"):
        open_npy(npy(tmp_path / "x.npy", text))


def test_a_zip_archive_under_the_name_of_an_array_is_said(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(FileError, match="is damaged"):
        open_npy(tmp_path / "x.npy")
    with pytest.raises(DataMissingError):
        open_npy(tmp_path / "absent.npy")


# The manifest.


def later(path):
    """Let a file look changed, however coarse the clock of the file system is."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10_000_000))


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    later(path)


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "mine-c"
    folder.mkdir()
    np.save(folder / "labels.npy", np.arange(ROWS, dtype=np.uint8) % 2)
    np.save(folder / "fog.npy", np.full((ROWS, 4, 4, 3), 7, np.uint8))
    write_manifest(folder, "labels.npy", "fog.npy")
    return folder


def write_manifest(folder, *names, **changes):
    files = {name: describe_file(folder / name) for name in names}
    text = {"format": MANIFEST_FORMAT, "recipe": {}, "files": files, "made_with": {}, "skipped": [], **changes}
    (folder / MANIFEST).write_text(json.dumps(text))


def fog(folder):
    return StoredCorruption(folder, "fog", 5, rows=ROWS, name="mine-c", image_size=(4, 4))


def test_a_flipped_bit_in_made_data_is_refused_when_it_is_read(made):
    flip(made / "fog.npy")
    with pytest.raises(FileError, match=r"fog\.npy has another sha256 than the manifest says") as error:
        fog(made).images([0])
    assert "offsupport data make" in error.value.remedy


def test_a_flipped_bit_in_the_labels_is_refused(made):
    flip(made / "labels.npy")
    with pytest.raises(FileError, match=r"labels\.npy has another sha256"):
        fog(made)


def test_a_bit_that_flips_between_two_reads_is_noticed(made):
    data = fog(made)
    assert data.images([1]).max() == 7
    flip(made / "fog.npy")
    with pytest.raises(FileError, match="another sha256"):
        data.images([1])


def test_a_file_is_hashed_once_while_it_stays_the_same(made, monkeypatch):
    hashed = []
    real = stored.sha256_file
    monkeypatch.setattr(stored, "sha256_file", lambda path: hashed.append(path.name) or real(path))
    for _ in range(3):
        fog(made).images([0, 1])
    assert sorted(hashed) == ["fog.npy", "labels.npy"]


def test_data_without_a_manifest_and_files_that_none_lists_are_read(made):
    write_manifest(made, "labels.npy")
    flip(made / "fog.npy")
    assert len(fog(made).images([0])) == 1
    (made / MANIFEST).unlink()
    flip(made / "labels.npy")
    assert len(fog(made)) == ROWS // 5


def test_a_manifest_of_somebody_else_is_none(made):
    (made / MANIFEST).write_text('{"name": "a web page"}')
    flip(made / "fog.npy")
    assert len(fog(made).images([0])) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"files": 5}',
        '{"recipe": {}, "files": {"fog.npy": 5}}',
        '{"recipe": {}, "files": {"fog.npy": {"bytes": 1}}}',
        '{"format": "offsupport-data-9", "recipe": {}, "files": {}}',
        '{"recipe": {}, "files": {}, "skipped": 3}',
    ],
)
def test_a_damaged_manifest_is_said(made, text):
    (made / MANIFEST).write_text(text)
    with pytest.raises(FileError, match=r"manifest\.json") as error:
        fog(made)
    assert error.value.remedy


def test_images_of_a_made_tree_are_held_against_their_list(tmp_path):
    from PIL import Image

    tree = tmp_path / "ImageNet-C" / "fog" / "5"
    (tree / "n1").mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("RGB", (8, 8)).save(tree / "n1" / f"{name}.JPEG")
    folder = tmp_path / "ImageNet-C"
    sums = folder / sums_name("fog", 5)
    sums.parent.mkdir()
    lines = [f"{stored.sha256_file(tree / 'n1' / f'{n}.JPEG')}  fog/5/n1/{n}.JPEG\n" for n in ("a", "b")]
    sums.write_text("".join(lines))
    write_manifest(folder, sums_name("fog", 5))
    data = Folder(tree, hashes=listed_images(tree))
    assert len(data.images([0, 1])) == 2
    flip(tree / "n1" / "b.JPEG")
    assert len(data.images([0])) == 1
    with pytest.raises(FileError, match=r"b\.JPEG has another sha256"):
        data.images([1])
    flip(sums)
    with pytest.raises(FileError, match=r"fog-5\.sha256 has another sha256"):
        listed_images(tree)
