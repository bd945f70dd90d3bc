"""CIFAR pickles are read; anything else in a pickle is refused and nothing in it runs."""

import os
import pickle
import struct

import numpy as np
import pytest
from data_layouts import cifar_pixels, flat, python2_batch, write_cifar10

from offsupport.core.errors import FileError
from offsupport.data import load
from offsupport.data.cifar import read_pickle

SENTINEL = "sentinel"


class Reduce:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def named(module, name, *arguments):
    """A call of module.name through the STACK_GLOBAL instruction, whether or not that name can be pickled."""
    return b"\x80\x04" + text(module) + text(name) + b"\x93(" + b"".join(text(a) for a in arguments) + b"tR."


TOUCH = f"touch {SENTINEL}"
CREATE = f"open({SENTINEL!r}, 'w').close()"
U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
STATE = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"

ATTACKS = {
    "reduce os.system": pickle.dumps(Reduce(os.system, TOUCH)),
    "reduce protocol 0": pickle.dumps(Reduce(os.system, TOUCH), 0),
    "reduce protocol 2": pickle.dumps(Reduce(os.system, TOUCH), 2),
    "eval": pickle.dumps(Reduce(eval, CREATE)),
    "exec": pickle.dumps(Reduce(exec, CREATE)),
    "nested value": pickle.dumps({"data": [{"deep": (1, [Reduce(eval, CREATE)])}], "labels": []}),
    "nested key": pickle.dumps({Reduce(eval, f"{CREATE} or 'data'"): 1}),
    "beside real data": pickle.dumps({"data": flat(cifar_pixels(2)), "labels": [Reduce(eval, CREATE), 1]}),
    "global": b"cos\nsystem\n(S'" + TOUCH.encode() + b"'\ntR.",
    "global builtins": b"c__builtin__\neval\n(S\"" + CREATE.encode() + b'"\ntR.',
    "inst": b"(S'" + TOUCH.encode() + b"'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'" + TOUCH.encode() + b"'\no.",
    "stack global": named("os", "system", TOUCH),
    "subprocess": named("subprocess", "getoutput", TOUCH),
    "getattr": named("builtins", "getattr", "os", "system"),
    "import": named("builtins", "__import__", "os"),
    "numpy runstring": named("numpy.testing._private.utils", "runstring", CREATE, "{}"),
    "numpy f2py": named("numpy.f2py.crackfortran", "myeval", CREATE),
    "numpy save": named("numpy", "save", SENTINEL + ".npy", "x"),
    "numpy fromfile": named("numpy", "fromfile", "/etc/hostname"),
    "numpy load": named("numpy", "load", SENTINEL),
    "dotted": named("numpy", "ndarray.tofile", SENTINEL),
    "dotted module": named("numpy", "core.multiarray.fromfile", SENTINEL),
    "allowed module": named("numpy._core.multiarray", "fromfile", SENTINEL),
    "ndarray called": b"cnumpy\nndarray\n(K\x05tR.",
    "newobj": b"\x80\x02cnumpy\nndarray\nK\x05\x85\x81.",
    "object dtype": b"cnumpy\ndtype\n(S'O'\nI0\nI1\ntR.",
    "void dtype": b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR.",
    "encoding": b"c_codecs\nencode\n(V" + CREATE.encode() + b"\nVrot13\ntR.",
    "stand-in dict": b"cnumpy\ndtype\n(dS'_call'\nNsb.",
    "stand-in slots": b"cnumpy\ndtype\n(N(dS'_call'\nNstb.",
    "array as object list": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tS'b'\ntR(K\x01(K\x01t"
    + U1 + STATE + b"\x89(lI1\natb.",
    "array of other length": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tS'b'\ntR(K\x01(K\x09t"
    + U1 + STATE + b"\x89U\x01xtb.",
    "huge shape": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tS'b'\ntR(K\x01(J\xff\xff\xff\x7ft"
    + U1 + STATE + b"\x89U\x01xtb.",
    "memo bomb": b"\x80\x02Nr\xff\xff\xff\xff.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"Pid\n.",
    "empty": b"",
    "html": b"<!DOCTYPE html><html>404</html>",
    "cut short": pickle.dumps({"data": flat(cifar_pixels(2)), "labels": [0, 1]}, 4)[:4000],
    "not a batch": pickle.dumps([1, 2, 3]),
    "wrong type": pickle.dumps({"data": flat(cifar_pixels(2)).astype(np.int64), "labels": [0, 1]}),
    "labels short": pickle.dumps({"data": flat(cifar_pixels(2)), "labels": [0]}),
    "labels out of range": pickle.dumps({"data": flat(cifar_pixels(2)), "labels": [0, 10]}),
}  # fmt: skip


def test_the_attacks_are_real(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("reduce os.system", "nested value", "global builtins", "inst", "stack global"):
        pickle.loads(ATTACKS[name])
        assert (tmp_path / SENTINEL).exists(), name
        (tmp_path / SENTINEL).unlink()


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused_and_nothing_runs(name, tmp_path, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(ATTACKS[name])
    with pytest.raises(FileError, match="test_batch"):
        load("cifar10", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-batches-py"]


def test_the_meta_file_is_guarded_too(tmp_path, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(ATTACKS["nested value"])
    with pytest.raises(FileError, match=r"batches\.meta"):
        load("cifar10", tmp_path)
    assert not (tmp_path / SENTINEL).exists()


def test_a_refused_file_does_not_change_how_the_next_one_is_read(tmp_path):
    bad, good = tmp_path / "bad", tmp_path / "good"
    good.write_bytes(pickle.dumps({"data": flat(cifar_pixels(3))}))
    for name in ("stand-in dict", "stand-in slots", "newobj"):
        bad.write_bytes(ATTACKS[name])
        with pytest.raises(FileError):
            read_pickle(bad)
        assert np.array_equal(read_pickle(good)["data"], flat(cifar_pixels(3)))


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_is_read(tmp_path, protocol):
    array = np.arange(24, dtype="<i4").reshape(4, 6)
    content = {b"data": array, "fortran": np.asfortranarray(array), "big": array.astype(">i2"), "labels": [1, 2]}
    (tmp_path / "file").write_bytes(pickle.dumps(content, protocol))
    back = read_pickle(tmp_path / "file")
    assert list(back) == ["data", "fortran", "big", "labels"]
    for name in ("data", "fortran", "big"):
        assert np.array_equal(back[name], array)
    assert back["labels"] == [1, 2]


def test_batches_of_python_2_are_read(tmp_path):
    images = write_cifar10(tmp_path, n=3)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(python2_batch(images, [3, 9, 1]))
    dataset = load("cifar10", tmp_path)
    assert np.array_equal(dataset.images([0, 1, 2]), images)
    assert dataset.labels.tolist() == [3, 9, 1]
