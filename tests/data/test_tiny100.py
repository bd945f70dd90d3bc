import json

import numpy as np
import pytest
from data_layouts import write_tiny100

from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.data import corrupt, load
from offsupport.data.making import make


def test_a_split_is_its_arrays(tmp_path):
    images = write_tiny100(tmp_path)
    for root in (tmp_path, tmp_path / "tiny100"):
        test = load("tiny100", root)
        assert np.array_equal(test.images(range(20)), images)
        assert test.labels.tolist() == [5 * i % 100 for i in range(20)]
        assert (test.name, test.source, test.classes[7]) == ("tiny100", "files", "class 7")
    train = load("tiny100", tmp_path, split="train")
    assert not np.array_equal(train.images(range(20)), images)
    with pytest.raises(ConfigError, match="no split 'val'"):
        load("tiny100", tmp_path, split="val")


def test_corruptions_are_made_on_the_fly_or_read_where_they_were_made(tmp_path):
    images = write_tiny100(tmp_path)
    expected = corrupt(images, "contrast", severity=4, seed=0)
    made = load("tiny100-c", tmp_path, corruption="contrast", severity=4)
    assert (made.name, made.source) == ("tiny100-c", "generated")
    assert np.array_equal(made.images(range(20)), expected)
    make("tiny100-c", tmp_path, tmp_path, corruptions=["contrast"], workers=1)
    read = load("tiny100-c", tmp_path, corruption="contrast", severity=4)
    assert read.source == "files"
    assert np.array_equal(read.images(range(20)), expected)


def test_what_is_missing_or_wrong_is_said(tmp_path):
    with pytest.raises(DataMissingError, match=r"tiny100/test_images\.npy"):
        load("tiny100", tmp_path)
    write_tiny100(tmp_path)
    folder = tmp_path / "tiny100"
    (folder / "classes.json").write_text(json.dumps(["one"]))
    with pytest.raises(FileError, match="does not name 100 classes"):
        load("tiny100", tmp_path)
    np.save(folder / "test_labels.npy", np.full(20, 100, dtype=np.uint8))
    with pytest.raises(FileError, match="class numbers below 100"):
        load("tiny100", tmp_path)
    np.save(folder / "test_images.npy", np.zeros((20, 16, 16, 3), dtype=np.uint8))
    with pytest.raises(FileError, match="not uint8 of"):
        load("tiny100", tmp_path)
