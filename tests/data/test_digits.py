import numpy as np
import pytest
from sklearn.datasets import load_digits

from offsupport.core.errors import ConfigError
from offsupport.data import load
from offsupport.data.digits import _cubic_weights


def test_splits_are_disjoint_stratified_and_fixed():
    train, test, everything = (load("digits", split=split) for split in ("train", "test", "all"))
    assert len(train) + len(test) == len(everything) == 1797
    for digit in range(10):
        share = (test.labels == digit).sum() / (everything.labels == digit).sum()
        assert abs(share - 1 / 3) < 0.01
    rows = {dataset.images([i]).tobytes() for dataset in (train, test) for i in range(len(dataset))}
    assert rows == {everything.images([i]).tobytes() for i in range(1797)}
    assert test.sha256 == "667d7c7b35040f687165e0178580c2a4a9fda2387439a888ef1f93b936a02434"


def test_images_are_the_digits_enlarged():
    everything = load("digits", split="all")
    images = everything.images(range(1797))
    assert images.shape == (1797, 32, 32, 3)
    assert images.dtype == np.uint8
    assert (images == images[..., :1]).all()
    means = images[..., 0].reshape(-1, 8, 4, 8, 4).mean((2, 4))  # each block of 4x4 stems from one pixel
    original = load_digits().images * 255 / 16
    assert np.corrcoef(means.ravel(), original.ravel())[0, 1] > 0.98
    assert np.array_equal(everything.labels, load_digits().target)


def test_enlarging_keeps_constants_and_straight_lines():
    weights = _cubic_weights(8, 32)
    assert np.array_equal(weights.sum(1), np.ones(32))
    centres = (np.arange(32) + 0.5) / 4 - 0.5
    inner = slice(6, 26)  # away from the repeated edges
    assert np.allclose((weights @ np.arange(8.0))[inner], centres[inner])


def test_unknown_split_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'train'"):
        load("digits", split="trian")
