import argparse
import collections
import json
import os
import pickle

import pytest
import safetensors.torch
import torch

from offsupport.core.checkpoints import _checksum, load_tensors, save_tensors
from offsupport.core.errors import FileError
from offsupport.core.weights import read_weights, require_values

WEIGHTS = {"fc.weight": torch.arange(6.0).view(2, 3), "fc.bias": torch.ones(2)}


def same(found):
    return set(found) == set(WEIGHTS) and all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,
        collections.OrderedDict(WEIGHTS),
        {"model": WEIGHTS, "epoch": 3, "opt": argparse.Namespace(lr=0.1)},
        {"state_dict": WEIGHTS, "arch": "resnet50"},
        {"model": {"state_dict": WEIGHTS}},
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_usual_checkpoints_are_read(tmp_path, content, zipped):
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    found, manifest = read_weights(tmp_path / "w.pth")
    assert same(found)
    assert manifest == {}


def test_safetensors_are_known_by_content(tmp_path):
    safetensors.torch.save_file(WEIGHTS, tmp_path / "w.bin")
    assert same(read_weights(tmp_path / "w.bin")[0])
    save_tensors(tmp_path / "ours.safetensors", WEIGHTS, {"network": "resnet18"})
    found, manifest = read_weights(tmp_path / "ours.safetensors")
    assert same(found)
    assert manifest["network"] == "resnet18"


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def pickled(protocol):
    return lambda x, path: path.write_bytes(pickle.dumps(x, protocol))


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        (torch.save, r"is a pickle that would run code \(.*mkdir\); nothing in it was executed"),
        (pickled(2), r"is a pickle that would run code \(.*mkdir\); nothing in it was executed"),
        (pickled(4), "is a pickle of more than tensors; nothing in it was executed"),
    ],
)
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, monkeypatch, dump, message):
    monkeypatch.chdir(tmp_path)
    dump({"model": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(FileError, match=message):
        read_weights(tmp_path / "evil.pth")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n<!DOCTYPE html><html>sign in</html>", "is a web page, not weights"),
        (b"<html><body>404</body></html>", "is a web page, not weights"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        (b"", "is not a file of weights"),
        (b"just words", "weights|pickle"),
        (b"\xff" * 8 + b"{}", "is a damaged safetensors file"),
    ],
)
def test_what_is_no_file_of_weights_is_said_to_be_what_it_is(tmp_path, data, message):
    (tmp_path / "w.pth").write_bytes(data)
    with pytest.raises(FileError, match=message):
        read_weights(tmp_path / "w.pth")


@pytest.mark.parametrize("content", [torch.ones(3), {"epoch": 3}, {}, {"model": {"a": 1}}])
def test_a_file_without_a_state_dict_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(FileError, match="holds no state dict"):
        read_weights(tmp_path / "w.pth")


def test_a_missing_file_is_said():
    with pytest.raises(FileError, match="There is no file"):
        read_weights("nowhere.pth")


# Safetensors whose checksum is right and whose manifest is not.


def crafted(path, text, tensors=WEIGHTS):
    header = {"manifest": text, "sha256": _checksum(tensors, text)}
    safetensors.torch.save_file(tensors, path, metadata=header)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "manifest of .* is not valid JSON"),
        ("", "manifest of .* is not valid JSON"),
        ("[1]", "manifest of .* is not a mapping"),
        ("5", "manifest of .* is not a mapping"),
        ("[" * 100_000, "manifest of .* is not valid JSON"),
        ("[" * 100 + "]" * 100, "manifest of .* is not valid JSON .*nested more than 64 deep"),
        ('{"a": NaN}', "manifest of .* is not valid JSON"),
    ],
)
def test_a_manifest_that_is_none_is_said(tmp_path, text, message):
    path = crafted(tmp_path / "w.safetensors", text)
    for read in (load_tensors, read_weights):
        with pytest.raises(FileError, match=message) as error:
            read(path)
        assert error.value.remedy


@pytest.mark.parametrize("text", ['{"schema": 2}', '{"schema": [1]}', "{}", '{"schema": 1, "strides": 5}'])
def test_a_manifest_of_something_else_is_said(tmp_path, text):
    with pytest.raises(FileError, match=r"another version|no layouts"):
        load_tensors(crafted(tmp_path / "w.safetensors", text))


@pytest.mark.parametrize("strides", [[1], ["a", 1], [0, 0], [-1, 2], 5, [2**70, 1], [True, False]])
def test_a_layout_that_cannot_be_is_not_used(tmp_path, strides):
    text = json.dumps({"schema": 1, "strides": {"fc.weight": strides}})
    assert same(load_tensors(crafted(tmp_path / "w.safetensors", text))[0])


# What must hold before weights are used.


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.ones(1), r"f holds w of shape \(1,\), and the net has \(2, 3\)"),
        (torch.tensor(1.0), r"f holds w of shape \(\), and the net"),
        (torch.ones(2, 3, dtype=torch.bool), "f holds w as bool, and the net has float32"),
        (torch.ones(2, 3, dtype=torch.int32), "f holds w as int32, and the net has float32"),
        (torch.ones(2, 3, dtype=torch.complex64), "f holds w as complex64, and the net has float32"),
        (torch.ones(2, 3).to_sparse(), r"f holds w as float32 in the layout torch.sparse_coo"),
        (torch.full((2, 3), float("nan")), "f holds 6 non-finite of 6 values in w"),
        (torch.tensor([[1.0, 2, 3], [4, 5, float("-inf")]]), "f holds 1 non-finite of 6 values in w"),
        (torch.full((2, 3), 1e300, dtype=torch.float64), "f holds 6 non-finite of 6 values in w"),
    ],
)
def test_values_that_cannot_take_the_place_are_named(given, message):
    with pytest.raises(FileError, match=message) as error:
        require_values({"w": given}, {"w": torch.zeros(2, 3)}, "f", "the net", "Give others.")
    assert error.value.remedy


def test_other_precisions_and_masks_of_infinity_are_taken():
    for kind in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn):
        require_values({"w": torch.ones(2).to(kind)}, {"w": torch.zeros(2)}, "f", "the net", "")
    mask = torch.full((2,), float("-inf"))
    require_values({"mask": mask}, {"mask": mask.clone()}, "f", "the net", "")


def test_tensors_do_not_follow_what_happens_to_their_file(tmp_path):
    """Safetensors maps files into memory: what was read would change with them, or a shorter file end the process."""
    path = tmp_path / "w.safetensors"
    save_tensors(path, WEIGHTS, {})
    read = load_tensors(path)[0], read_weights(path)[0]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
    assert all(map(same, read))
    path.write_bytes(b"")
    assert all(map(same, read))
