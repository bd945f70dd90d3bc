import argparse
import collections
import os
import pickle

import pytest
import safetensors.torch
import torch

from offsupport.core.checkpoints import save_tensors
from offsupport.core.errors import FileError
from offsupport.core.weights import read_weights

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
