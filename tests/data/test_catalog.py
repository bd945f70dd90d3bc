"""Names, and the choice between stored and generated corruptions."""

import os
import subprocess
import sys

import numpy as np
import pytest
from data_layouts import write_cifar10, write_sparse_cifar_c

from offsupport.core.errors import ConfigError, DataMissingError
from offsupport.data import Arrays, corrupt, list_datasets, load
from offsupport.data.corrupted import Corrupted

NAMES = (
    "digits digits-c cifar10 cifar10-c cifar100 cifar100-c tiny100 tiny100-c imagenet imagenet-c "
    "imagenet100 imagenet100-c imagenet-folder imagenet-folder-c folder"
)


def test_readers_and_corruptions_do_without_torch():
    code = "import sys, offsupport.data.making, offsupport.data.checking; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_names():
    assert list(list_datasets()) == NAMES.split()
    with pytest.raises(ConfigError, match="Did you mean 'cifar10-c'"):
        load("cifar-10-c", "nowhere")


def test_generated_corruption_is_that_of_the_row_not_of_the_batch():
    clean = load("digits")
    noisy = load("digits-c", corruption="gaussian_noise", severity=3)
    assert noisy.source == "generated"
    expected = corrupt(clean.images(range(599)), "gaussian_noise", 3, 0)
    assert np.array_equal(noisy.images([5, 400, 17]), expected[[5, 400, 17]])
    assert np.array_equal(noisy.images([17]), expected[[17]])
    assert np.array_equal(noisy.labels, clean.labels)


def test_files_are_taken_where_they_exist_and_generated_where_not(tmp_path):
    write_cifar10(tmp_path)
    write_sparse_cifar_c(tmp_path / "CIFAR-10-C", ["fog"])

    def source(**options):
        return load("cifar10-c", tmp_path, **options).source

    assert source(corruption="fog") == "files"
    assert source(corruption="contrast") == "generated"
    assert source(corruption="fog", block=8) == "generated"
    assert source(corruption="impulse_noise", severity=8) == "generated"
    assert source(corruption="fog", corruption_seed=0) == "generated"
    assert source(corruption="fog", split="train") == "generated"
    assert source(corruption="fog", source="generated") == "generated"
    assert source() == "files"  # the clean split
    with pytest.raises(DataMissingError, match="contrast at severity 5"):
        source(corruption="contrast", source="files")


def test_block_and_seed_have_an_effect_and_enter_the_hash():
    options = [{}, {"block": 8}, {"corruption_seed": 1}, {"severity": 4}]
    made = [load("digits-c", corruption="gaussian_noise", **option) for option in options]
    assert len({dataset.sha256 for dataset in made}) == 4
    assert len({dataset.images([0]).tobytes() for dataset in made}) == 4
    clean, block = load("digits").images([0]), made[1].images([0])
    changed = np.argwhere((clean != block).any(-1)[0])
    assert (np.ptp(changed, axis=0) < 8).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruption": "fgo"}, "Did you mean 'fog'"),
        ({"corruption": "fog", "severity": 6}, "Severity 6 of fog"),
        ({"corruption": "impulse_noise", "severity": 11}, "Severity 11"),
        ({"corruption": "fog", "severity": 0}, "Severity 0"),
        ({"corruption": "fog", "block": 33}, "block of 33"),
        ({"corruption": "fog", "source": "file"}, "Did you mean 'files'"),
    ],
)
def test_wrong_options_fail_before_any_batch(options, message):
    with pytest.raises(ConfigError, match=message):
        load("digits-c", **options)


def test_severity_beyond_what_the_size_has():
    large = Arrays(np.zeros((1, 224, 224, 3), np.uint8), [0])
    with pytest.raises(ConfigError, match="Severity 6 of impulse_noise"):
        Corrupted(large, "impulse_noise", 6)
