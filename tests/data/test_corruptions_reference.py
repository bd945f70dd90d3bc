"""The batched corruptions against plain per-image loops with the same random draws."""

import numpy as np
import pytest
from corruption_loops import LOOPS, literal_disc, literal_plasma, literal_zoom, synthetic_images
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from offsupport.data.corruptions import corrupt
from offsupport.data.corruptions.blur import disc, one_way_copies, zoom, zoom_average
from offsupport.data.corruptions.digital import affine_source
from offsupport.data.corruptions.filters import MANY_WEIGHTS, correlate
from offsupport.data.corruptions.registry import parameters
from offsupport.data.corruptions.seeding import Streams
from offsupport.data.corruptions.weather import draws_needed, plasma

MIDDLE = {
    "glass_blur": 5,
    "elastic_transform": 2,
    "defocus_blur": 4,
    "snow": 4,
    "fog": 5,
    "frost": 3,
    "zoom_blur": 5,
    "spatter": 3,
}
LARGE = {
    "elastic_transform": 1,  # the smoothing is wider than the image
    "defocus_blur": 5,
    "snow": 3,
    "zoom_blur": 5,
    "frost": 4,
    "motion_blur": 5,
    "gaussian_blur": 5,
    "spatter": 2,
    "glass_blur": 2,
}


def assert_same_picture(ours, theirs, share=1e-3):
    """Equal but for single levels at the edge of truncation."""
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= share


def compare(name, severity, side, count):
    images = synthetic_images(count, side)
    ids = np.arange(40, 40 + count)
    expected = LOOPS[name](images, Streams(name, severity, 3, index=ids), *parameters(name, side, severity))
    assert_same_picture(corrupt(images, name, severity, seed=3, index=ids), expected)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", LOOPS)
def test_small_images_equal_the_loop(name, severity):
    compare(name, severity, side=32, count=4)


@pytest.mark.parametrize(("name", "severity"), list(MIDDLE.items()))
def test_images_of_64_pixels_equal_the_loop(name, severity):
    compare(name, severity, side=64, count=2)


@pytest.mark.parametrize(("name", "severity"), list(LARGE.items()))
def test_large_images_equal_the_loop(name, severity):
    compare(name, severity, side=224, count=1)


def test_many_weights_give_what_few_give_one_by_one():
    random = np.random.default_rng(0)
    levels, kernel = 255 * random.random((2, 13, 16, 3)), random.random((9, 11)) / 50
    assert np.count_nonzero(kernel) > MANY_WEIGHTS
    padded = np.pad(levels, [(0, 0), (4, 4), (5, 5), (0, 0)], mode="reflect")
    expected = np.zeros_like(levels)
    for row, column in np.ndindex(*kernel.shape):
        expected += kernel[row, column] * padded[:, row : row + 13, column : column + 16]
    np.testing.assert_allclose(correlate(levels, kernel, "reflect"), expected, atol=1e-9)
    # In any batch to the last bit.
    assert np.array_equal(correlate(levels, kernel, "reflect")[1:], correlate(levels[1:], kernel, "reflect"))


@pytest.mark.slow
@pytest.mark.parametrize("side", [64, 224])
@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", LOOPS)
def test_every_size_and_severity_equals_the_loop(name, severity, side):
    compare(name, severity, side, count=1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(10, 20), st.integers(0, 2**32))
def test_chains_of_copies_end_where_the_scan_ends(reach, side, seed):
    """Includes reaches above one, where a copied pixel may itself have been copied before."""
    moved = side - 2 * reach
    across, down = np.random.default_rng(seed).integers(-reach, reach, (2, 2, moved, moved))
    expected = np.arange(2 * side * side).reshape(2, side, side)
    for image in range(2):
        for i, h in enumerate(range(side - reach, reach, -1)):
            for j, w in enumerate(range(side - reach, reach, -1)):
                expected[image, h, w] = expected[image, h + down[image, i, j], w + across[image, i, j]]
    np.testing.assert_array_equal(one_way_copies(side, reach, across, down), expected.ravel())


@pytest.mark.parametrize(("radius", "alias"), [(0.3, 0.4), (1.5, 0.1), (2.5, 0.01), (8, 0.5), (10, 0.5)])
def test_disc_equals_the_literal_one_without_its_empty_border(radius, alias):
    ours, theirs = disc(radius, alias), literal_disc(radius, alias)
    border = (len(theirs) - len(ours)) // 2
    np.testing.assert_allclose(np.pad(ours, border), theirs, atol=1e-15)


@pytest.mark.parametrize("side", [32, 64, 224])
@pytest.mark.parametrize("factor", [1, 1.01, 1.25, 2.25, 4.5])
def test_zoom_equals_scipy(side, factor):
    field = np.random.default_rng(0).random((1, side, side))
    np.testing.assert_allclose(zoom(field, factor)[0], literal_zoom(field[0], factor), atol=1e-13)


def test_zoom_average_is_the_mean_of_image_and_zooms():
    field = np.random.default_rng(0).random((32, 32))
    factors = (1, 1.07, 1.2)
    matrix = zoom_average(32, factors)
    assert isinstance(matrix, csr_array)
    expected = (field + sum(literal_zoom(field, factor) for factor in factors)) / 4
    np.testing.assert_allclose((matrix @ field.ravel()).reshape(32, 32), expected, atol=1e-13)


@pytest.mark.parametrize("decay", [1.75, 3])
def test_plasma_equals_the_point_by_point_rule(decay):
    draws = np.random.default_rng(0).random((3, draws_needed(16)))
    expected = [literal_plasma(16, decay, row) for row in draws]
    np.testing.assert_allclose(plasma(draws, decay), expected, atol=1e-12)


def test_affine_warp_takes_the_three_points_to_their_places():
    moves = np.random.default_rng(0).uniform(-2, 2, (1, 3, 2)).round()  # whole pixels, so that they can be looked up
    rows, columns = affine_source(32, moves)
    for (x, y), (dx, dy) in zip([(26, 26), (26, 6), (6, 6)], moves[0].astype(int), strict=True):
        assert rows[0, y + dy, x + dx] == pytest.approx(y)
        assert columns[0, y + dy, x + dx] == pytest.approx(x)
