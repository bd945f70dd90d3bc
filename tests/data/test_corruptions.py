"""The contract of corrupt(): shape, range, determinism, blocks, errors."""

import numpy as np
import pytest
import torch
from corruption_loops import synthetic_images
from hypothesis import given, settings
from hypothesis import strategies as st

from offsupport.core.errors import ConfigError, InputError
from offsupport.data.corruptions import (
    ALL,
    CORRUPTIONS,
    EXTRA,
    GROUPS,
    SETS,
    STANDARD,
    corrupt,
    max_severity,
    parameter_set,
)

names = st.sampled_from(ALL)
severities = st.integers(1, 5)
seeds = st.integers(0, 2**40)


@settings(max_examples=60, deadline=None)
@given(names, severities, seeds, st.integers(0, 5), st.sampled_from([8, 31, 32, 45, 64]), st.randoms())
def test_shape_dtype_and_input_are_kept(name, severity, seed, count, side, random):
    images = np.frombuffer(random.randbytes(count * side * side * 3), np.uint8).reshape(count, side, side, 3).copy()
    before = images.copy()
    images.flags.writeable = False  # a memory map opened for reading works, and nothing writes to it
    out = corrupt(images, name, severity, seed)
    assert out.shape == images.shape
    assert out.dtype == np.uint8
    assert not np.shares_memory(out, images)
    np.testing.assert_array_equal(images, before)


@settings(max_examples=60, deadline=None)
@given(names, severities, seeds, st.permutations(range(7)), st.integers(1, 6))
def test_pixels_depend_on_the_image_and_its_id_alone(name, severity, seed, order, cut):
    images = synthetic_images(7)
    whole = corrupt(images, name, severity, seed)
    np.random.seed(seed % 1000)
    torch.manual_seed(seed)
    parts = [order[:cut], order[cut:]]
    pieces = [corrupt(images[part], name, severity, seed, index=part) for part in parts]
    np.testing.assert_array_equal(np.concatenate(pieces), whole[order])


def test_more_images_than_are_worked_on_at_once_give_the_same_pixels():
    images = np.tile(synthetic_images(10), (15, 1, 1, 1))
    for name in ALL:
        whole = corrupt(images, name, index=np.arange(150))
        np.testing.assert_array_equal(corrupt(images[149:], name, index=[149]), whole[149:], err_msg=name)


def test_images_in_any_memory_layout_give_the_same_pixels():
    images = synthetic_images(3)
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    for name in ALL:
        np.testing.assert_array_equal(corrupt(planes, name), corrupt(images, name), err_msg=name)


FIXED = [
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
]
RANDOM = [name for name in ALL if name not in FIXED]


@pytest.mark.parametrize("name", RANDOM)
def test_seed_id_and_severity_change_random_corruptions(name):
    images = np.repeat(synthetic_images(1), 8, axis=0)
    first = corrupt(images, name, 5, seed=0)
    assert (first != corrupt(images, name, 5, seed=1)).any()
    assert len({image.tobytes() for image in first}) == 8  # same content, other ids


@pytest.mark.parametrize("name", FIXED)
def test_seed_and_id_do_not_change_the_other_corruptions(name):
    images = synthetic_images(2)
    np.testing.assert_array_equal(corrupt(images, name, seed=0), corrupt(images, name, seed=1, index=[8, 9]))


def test_memory_mapped_images_give_plain_arrays(tmp_path):
    images = synthetic_images(3)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    for name in ALL:
        for block in (None, 8):
            out = corrupt(mapped, name, block=block)
            assert type(out) is np.ndarray
            np.testing.assert_array_equal(out, corrupt(images, name, block=block), err_msg=name)


def test_the_global_generators_are_left_alone():
    np.random.seed(0)
    torch.manual_seed(0)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    for name in ALL:
        corrupt(synthetic_images(2), name)
    assert (np.random.get_state()[1] == before[0]).all()
    assert torch.equal(torch.get_rng_state(), before[1])


@settings(max_examples=40, deadline=None)
@given(names, severities, seeds, st.sampled_from([1, 4, 8, 16, 24, 32]))
def test_block_keeps_the_corruption_inside_one_square(name, severity, seed, block):
    images = synthetic_images(5)
    whole = corrupt(images, name, severity, seed)
    limited = corrupt(images, name, severity, seed, block=block)
    inside = find_squares(seed, block, 5)
    assert (inside.sum(axis=(1, 2)) == block**2).all()
    np.testing.assert_array_equal(limited[inside], whole[inside])
    np.testing.assert_array_equal(limited[~inside], images[~inside])


def find_squares(seed, block, count):
    """Where black images change when full brightness is limited to a block: the place is shared by all corruptions."""
    black = np.zeros((count, 32, 32, 3), np.uint8)
    changed = corrupt(black, "brightness", 5, seed, block=block).any(axis=3)
    for image in changed:
        rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
        assert np.ptp(rows) == np.ptp(columns) == block - 1
    return changed


def test_blocks_reach_every_place():
    black = np.zeros((4000, 32, 32, 3), np.uint8)
    covered = corrupt(black, "brightness", block=24).any(axis=3)
    tops = covered.any(axis=2).argmax(axis=1)
    counts = np.bincount(tops, minlength=9)
    assert len(counts) == 9
    assert counts.min() > 4000 / 9 * 0.8
    assert counts.max() < 4000 / 9 * 1.2


def test_names_groups_and_constants_belong_together():
    assert len(STANDARD) == 15
    assert len(EXTRA) == 4
    assert STANDARD + EXTRA == ALL
    assert set(ALL) <= set(CORRUPTIONS)
    assert sorted(ALL) == sorted(name for group in GROUPS.values() for name in group)
    for side, rows in SETS.items():
        assert sorted(rows) == sorted(ALL)
        for name, row in rows.items():
            assert len(row) == (10 if (name, side) == ("impulse_noise", 32) else 5)


def test_other_sizes_take_the_nearest_constants():
    assert [parameter_set(side) for side in (8, 32, 45, 46, 64, 119, 120, 224, 1000)] == [32] * 3 + [64] * 3 + [224] * 3
    assert max_severity("impulse_noise", 40) == 10
    assert max_severity("impulse_noise", 64) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gausian_noise",), "Did you mean 'gaussian_noise'"),
        (("fog", 0), "Choose 1-5"),
        (("fog", 6), "Choose 1-5"),
        (("fog", 2.5), "Choose 1-5"),
        (("impulse_noise", 11), "Choose 1-10"),
    ],
)
def test_bad_names_and_severities_say_what_is_allowed(arguments, message):
    with pytest.raises(ConfigError, match=message):
        corrupt(synthetic_images(1), *arguments)


def test_severities_beyond_five_are_for_small_images():
    with pytest.raises(ConfigError, match=r"Choose 1-5 \(32 px: 1-10\)"):
        corrupt(synthetic_images(1, 64), "impulse_noise", 6)


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((1, 32, 32, 3)),
        np.zeros((1, 3, 32, 32), np.uint8),
        np.zeros((1, 32, 30, 3), np.uint8),
        np.zeros((32, 32, 3), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        [[1, 2]],
        torch.zeros(1, 32, 32, 3, dtype=torch.uint8),
    ],
    ids=["float", "planes", "not square", "no batch", "tiny", "list", "tensor"],
)
def test_bad_images_are_refused(images):
    with pytest.raises(InputError, match="Give"):
        corrupt(images, "contrast")


@pytest.mark.parametrize("index", [[0], [0.0, 1.0], [[0, 1]]])
def test_bad_ids_are_refused(index):
    with pytest.raises(InputError, match="Give 2 integers"):
        corrupt(synthetic_images(2), "contrast", index=index)


@pytest.mark.parametrize("block", [0, 33, 2.5])
def test_bad_blocks_are_refused(block):
    with pytest.raises(ConfigError, match="Choose 1-32"):
        corrupt(synthetic_images(1), "contrast", block=block)
