import numpy as np
import pytest
from data_layouts import cifar_pixels, write_cifar10, write_cifar100, write_sparse_cifar_c
from hypothesis import given, settings
from hypothesis import strategies as st

from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.data import load
from offsupport.data.cifar import StoredCorruption


@pytest.fixture(scope="module")
def full_size(tmp_path_factory):
    root = tmp_path_factory.mktemp("sparse")
    write_sparse_cifar_c(root / "CIFAR-10-C", ["fog", "snow"])
    return root


def test_cifar10(tmp_path):
    images = write_cifar10(tmp_path)
    test = load("cifar10", tmp_path)
    assert (test.name, len(test), test.source) == ("cifar10", 20, "files")
    assert np.array_equal(test.images([3, 1]), images[[3, 1]])
    assert test.labels.dtype == np.int64
    assert test.labels.tolist() == [i % 10 for i in range(20)]
    assert test.classes[3] == "class3"
    train = load("cifar10", tmp_path, "train")
    assert len(train) == 100
    assert np.array_equal(train.images([20]), cifar_pixels(20, 2)[:1])
    assert train.labels[20] == 2


def test_cifar100_and_root_that_is_the_folder_itself(tmp_path):
    images = write_cifar100(tmp_path)
    for root in (tmp_path, tmp_path / "cifar-100-python"):
        test = load("cifar100", root)
        assert np.array_equal(test.images(range(20)), images)
        assert test.labels.tolist() == [5 * i % 100 for i in range(20)]
        assert test.classes[7] == "fine7"


def test_root_from_the_environment(tmp_path, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.setenv("OFFSUPPORT_DATA", str(tmp_path))
    assert len(load("cifar10")) == 20


def test_missing_files_are_named_with_exit_code_3(tmp_path, monkeypatch):
    monkeypatch.delenv("OFFSUPPORT_DATA", raising=False)
    with pytest.raises(DataMissingError, match="OFFSUPPORT_DATA") as caught:
        load("cifar10")
    assert caught.value.exit_code == 3
    with pytest.raises(DataMissingError, match="cifar-10-batches-py/test_batch"):
        load("cifar10", tmp_path)
    with pytest.raises(DataMissingError, match=r"CIFAR-10-C/<corruption>.npy.*data make cifar10-c"):
        load("cifar10-c", tmp_path, corruption="fog")
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataMissingError, match="data_batch_3"):
        load("cifar10", tmp_path, "train")
    with pytest.raises(ConfigError, match="no split 'validation'"):
        load("cifar10", tmp_path, "validation")


def test_stored_severity_is_its_block_of_rows(full_size):
    for severity in range(1, 6):
        dataset = load("cifar10-c", full_size, corruption="fog", severity=severity)
        assert (len(dataset), dataset.source) == (10_000, "files")
        assert (dataset.images(np.arange(0, 10_000, 1000))[:, 0, 0, 0] == severity).all()
        assert dataset.labels.tolist() == [i % 10 for i in range(10_000)]


@given(n=st.integers(1, 12), severity=st.integers(1, 5), data=st.data())
@settings(max_examples=40, deadline=None)
def test_slicing_property(tmp_path_factory, n, severity, data):
    folder = tmp_path_factory.mktemp("slices")
    pixels = cifar_pixels(5 * n, seed=n)
    np.save(folder / "fog.npy", pixels)
    np.save(folder / "labels.npy", np.arange(5 * n))
    dataset = StoredCorruption(folder, "fog", severity, rows=5 * n, name="test")
    rows = data.draw(st.lists(st.integers(0, n - 1), max_size=8))
    first = (severity - 1) * n
    assert np.array_equal(dataset.images(rows), pixels[first + np.asarray(rows, dtype=int)])
    assert dataset.labels.tolist() == list(range(first, first + n))
    for outside in (-1, n):
        with pytest.raises(IndexError):
            dataset.images([outside])


def test_hash_is_of_pixels_and_labels_of_the_severity(tmp_path):
    pixels = cifar_pixels(20)
    np.save(tmp_path / "labels.npy", np.zeros(20, np.uint8))
    np.save(tmp_path / "fog.npy", pixels)
    before = [StoredCorruption(tmp_path, "fog", s, rows=20, name="t").sha256 for s in (1, 2)]
    assert before[0] != before[1]
    pixels[5, 0, 0, 0] ^= 1  # a row of severity 2
    np.save(tmp_path / "fog.npy", pixels)
    after = [StoredCorruption(tmp_path, "fog", s, rows=20, name="t").sha256 for s in (1, 2)]
    assert after[0] == before[0]
    assert after[1] != before[1]


def damage_rows(folder):
    np.lib.format.open_memmap(folder / "fog.npy", "w+", np.uint8, (49_995, 32, 32, 3))


def damage_type(folder):
    np.lib.format.open_memmap(folder / "fog.npy", "w+", np.float32, (50_000, 32, 32, 3))


def damage_cut(folder):
    with (folder / "fog.npy").open("r+b") as file:
        file.truncate(100_000_000)


def damage_header(folder):
    (folder / "fog.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': __import__('os').system('true')}")


def damage_objects(folder):
    np.save(folder / "labels.npy", np.array([{}] * 50_000), allow_pickle=True)


def damage_labels(folder):
    np.save(folder / "labels.npy", np.zeros(10_000, np.uint8))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_rows, r"fog.npy holds uint8 of shape \(49995"),
        (damage_type, "fog.npy holds float32"),
        (damage_cut, "fog.npy is damaged"),
        (damage_header, "fog.npy is damaged"),
        (damage_objects, "labels.npy is damaged"),
        (damage_labels, r"labels.npy holds uint8 of shape \(10000,\)"),
    ],
)
def test_damaged_file_is_named(tmp_path, damage, message):
    write_sparse_cifar_c(tmp_path / "CIFAR-10-C", ["fog"])
    damage(tmp_path / "CIFAR-10-C")
    with pytest.raises(FileError, match=message):
        load("cifar10-c", tmp_path, corruption="fog")


def test_missing_labels(tmp_path):
    write_sparse_cifar_c(tmp_path / "CIFAR-10-C", ["fog"])
    (tmp_path / "CIFAR-10-C" / "labels.npy").unlink()
    with pytest.raises(DataMissingError, match=r"labels\.npy"):
        load("cifar10-c", tmp_path, corruption="fog")
