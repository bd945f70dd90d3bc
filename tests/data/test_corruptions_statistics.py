"""The corruptions do what their published constants say, and more of it as severity grows."""

import functools
import io

import numpy as np
import pytest
from corruption_loops import synthetic_images
from PIL import Image
from sklearn.datasets import load_sample_images

from offsupport.data.corruptions import ALL, SETS, corrupt, max_severity
from offsupport.data.corruptions.blur import disc, motion, motion_weights
from offsupport.data.corruptions.digital import smoothing
from offsupport.data.corruptions.filters import gaussian
from offsupport.data.corruptions.seeding import Streams
from offsupport.data.corruptions.weather import draws_needed, plasma

IMPULSE_SHARES = [0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15, 0.21, 0.28, 0.36]
AVERAGING = ["defocus_blur", "zoom_blur", "gaussian_blur", "motion_blur", "glass_blur", "contrast"]


def flat(level, count=60, side=32):
    return np.full((count, side, side, 3), level, np.uint8)


@functools.lru_cache
def photographs(count=48, side=32, size=128):
    """Cut-outs of two real photographs."""
    photos = load_sample_images().images
    out = []
    for k in range(count):
        photo = photos[k % 2]
        top, left = k * 53 % (photo.shape[0] - size), k * 97 % (photo.shape[1] - size)
        cut = Image.fromarray(photo[top : top + size, left : left + size])
        out.append(np.asarray(cut.resize((side, side), Image.Resampling.BOX)))
    return np.stack(out)


@pytest.mark.parametrize(("severity", "std"), list(enumerate([0.04, 0.06, 0.08, 0.09, 0.10], start=1)))
def test_gaussian_noise_has_the_published_deviation(severity, std):
    noise = corrupt(flat(128), "gaussian_noise", severity).astype(float) - 128
    assert noise.std() / 255 == pytest.approx(std, rel=0.01)
    assert noise.mean() == pytest.approx(-0.5, abs=0.25)  # values are cut off, not rounded


@pytest.mark.parametrize(("severity", "photons"), list(enumerate([500, 250, 100, 75, 50], start=1)))
def test_shot_noise_has_the_deviation_of_counted_photons(severity, photons):
    noise = corrupt(flat(100), "shot_noise", severity).astype(float) / 255
    assert noise.std() == pytest.approx((100 / 255 / photons) ** 0.5, rel=0.02)
    assert noise.mean() == pytest.approx((100 - 0.5) / 255, abs=0.002)


@pytest.mark.parametrize(("severity", "share"), list(enumerate(IMPULSE_SHARES, start=1)))
def test_impulse_noise_changes_the_stated_share_of_single_values(severity, share):
    out = corrupt(flat(100), "impulse_noise", severity)
    changed = out != 100
    assert changed.mean() == pytest.approx(share, rel=0.05)
    assert set(np.unique(out)) == {0, 100, 255}
    assert (out[changed] == 255).mean() == pytest.approx(0.5, abs=0.03)
    together = (changed[..., 0] & changed[..., 1]).mean()
    assert together == pytest.approx(share**2, rel=0.35)  # channels independently of each other


@pytest.mark.parametrize(("severity", "std"), list(enumerate([0.06, 0.1, 0.12, 0.16, 0.2], start=1)))
def test_speckle_noise_grows_with_the_value(severity, std):
    for level in (40, 120):
        noise = corrupt(flat(level), "speckle_noise", severity).astype(float)
        assert noise.std() == pytest.approx((std**2 * level**2 + 1 / 12) ** 0.5, rel=0.02)


@pytest.mark.parametrize(("radius", "pixels"), [(1, 5), (1.5, 9), (2.5, 21), (3, 29), (4, 49), (6, 113)])
def test_discs_have_the_published_pixels(radius, pixels):
    weights = disc(radius, 0.01)
    assert (weights > 1e-6).sum() == pixels
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(("radius", "total"), [(8, 1.0130), (10, 1.0108), (6, 1)])
def test_discs_that_touch_their_grid_brighten_as_published(radius, total):
    assert disc(radius, 0.5).sum() == pytest.approx(total, abs=5e-5)


@pytest.mark.parametrize("sigma", [0.7, 1, 2, 6])
def test_gaussian_blur_spreads_a_point_by_sigma(sigma):
    point = np.zeros((1, 65, 65))
    point[0, 32, 32] = 1
    spread = gaussian(point, sigma)[0]
    distance = np.arange(-32, 33) ** 2
    assert (spread.sum(axis=0) * distance).sum() == pytest.approx(sigma**2, rel=0.02)
    assert spread.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("angle", "row", "column", "pixels"), [(0, 16, 8, 9), (90, 8, 16, 9), (-90, 24, 16, 9), (45, 10, 10, 7)]
)
def test_motion_blur_draws_from_the_direction_of_its_angle(angle, row, column, pixels):
    """A point appears where a path along the angle ends in it: on the other side, and nowhere else."""
    point = np.zeros((1, 33, 33, 1), np.uint8)
    point[0, 16, 16] = 255
    smeared = motion(point, np.array([float(angle)]), radius=4, sigma=50)[0, :, :, 0]
    path = np.rint(np.linspace([16, 16], [row, column], pixels)).astype(int)
    assert (smeared[tuple(path.T)] > 0).all()
    assert (smeared > 0).sum() == pixels


def test_two_published_severities_of_motion_blur_are_one():
    """Radius 6 and 8 at the same sigma differ by weights that vanish: severities 3 and 4 at 32 px are the same blur."""
    np.testing.assert_allclose(motion_weights(6, 2), motion_weights(8, 2), atol=1e-7)


@pytest.mark.parametrize(("size", "decay", "std"), [(32, 3, 0.14), (32, 1.75, 0.17), (256, 2, 0.16), (256, 1.4, 0.19)])
def test_plasma_fills_the_unit_range_with_the_known_spread(size, decay, std):
    maps = plasma(np.random.default_rng(0).random((60, draws_needed(size))), decay)
    assert (maps.min(axis=(1, 2)) == 0).all()
    assert (maps.max(axis=(1, 2)) == 1).all()
    assert maps.mean() == pytest.approx(0.5, abs=0.05)
    assert maps.std(axis=(1, 2)).mean() == pytest.approx(std, abs=0.02)


@pytest.mark.parametrize(
    ("side", "displacements"),
    [(32, [0.05, 0.24, 0.44, 0.58]), (64, [0.05, 0.24, 0.58, 0.94]), (224, [4.7, 0.83, 1.17, 1.99])],
)
def test_elastic_fields_move_pixels_as_far_as_the_published_ones(side, displacements):
    """Root mean square in pixels for severities 2 to 5; a filtered uniform field has variance (sum K^2)^2 / 3."""
    for (alpha, sigma, _), expected in zip(SETS[side]["elastic_transform"][1:], displacements, strict=True):
        moved = alpha / 3**0.5 * (smoothing(side, sigma) ** 2).sum(axis=1).mean()
        assert moved == pytest.approx(expected, rel=0.05, abs=0.01)


@pytest.mark.parametrize(("side", "sides"), [(32, [30, 28, 27, 24, 20]), (224, [134, 112, 89, 67, 56])])
def test_pixelate_leaves_the_published_number_of_columns(side, sides):
    noise = np.random.default_rng(0).integers(0, 256, (1, side, side, 3)).astype(np.uint8)
    for severity, expected in enumerate(sides, start=1):
        out = corrupt(noise, "pixelate", severity)[0]
        small = Image.fromarray(noise[0]).resize((expected, expected), Image.Resampling.BOX)
        np.testing.assert_array_equal(out, np.asarray(small.resize((side, side), Image.Resampling.BOX)))


def test_jpeg_compression_is_a_round_trip_at_the_published_quality():
    image = photographs(1)
    for severity, quality in enumerate([80, 65, 58, 50, 40], start=1):
        file = io.BytesIO()
        Image.fromarray(image[0]).save(file, "JPEG", quality=quality)
        np.testing.assert_array_equal(corrupt(image, "jpeg_compression", severity)[0], np.asarray(Image.open(file)))


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("level", [0, 77, 200, 255])
def test_flat_images_stay_flat(name, level):
    """Weights sum to one only up to rounding; no flat area may lose a level to that."""
    for severity in range(1, 6):
        assert (corrupt(flat(level, count=2), name, severity) == level).all()


def test_black_and_grey_images_have_no_undefined_pixels():
    assert (corrupt(flat(0, 2), "fog", 5) == 0).all()
    assert (corrupt(flat(0, 2), "brightness", 5) == 76).all()  # 0.3 of 255
    assert (corrupt(flat(0, 2), "saturate", 5) == 0).all()
    np.testing.assert_array_equal(corrupt(flat(100, 1), "saturate", 5)[0, 0, 0], [100, 80, 80])  # grey counts as red


NOT_MONOTONE = {"glass_blur", "elastic_transform", "snow", "saturate", "spatter", "frost", "motion_blur"}


def change(images, name, severity):
    return corrupt(images, name, severity).astype(float) - images


@pytest.mark.parametrize("name", sorted(set(ALL) - NOT_MONOTONE))
def test_mean_squared_change_grows_with_severity(name):
    images = photographs()
    sizes = [(change(images, name, severity) ** 2).mean() for severity in range(1, max_severity(name) + 1)]
    assert (np.diff(sizes) > 0).all(), sizes


def test_the_exceptions_grow_where_their_constants_do():
    images = photographs(200)
    for name, first, second in [
        ("motion_blur", 1, 2),
        ("motion_blur", 2, 3),
        ("motion_blur", 4, 5),
        ("snow", 1, 2),
        ("snow", 4, 5),
        ("glass_blur", 1, 4),
        ("glass_blur", 3, 5),
        ("spatter", 1, 2),
        ("spatter", 2, 3),
        ("spatter", 4, 5),
        ("saturate", 1, 2),
        ("saturate", 3, 4),
        ("saturate", 4, 5),
    ]:
        less, more = ((change(images, name, severity) ** 2).mean() for severity in (first, second))
        assert less < more, (name, first, second)


def test_frost_grows_apart_from_the_brightness_of_the_image():
    """Its constants darken the image while they add bright frost, so the plain change may fall; the pattern grows."""
    images = photographs(200)
    sizes = []
    for severity in range(1, 6):
        difference = change(images, "frost", severity)
        sizes.append(difference.std(axis=(1, 2)).mean())
    assert (np.diff(sizes) > 0).all(), sizes


def test_streams_are_uniform_and_unrelated():
    """Neighbouring ids, other names and other draws share nothing."""
    index = np.arange(2000)
    draws = Streams("a", 1, 0, index=index).uniform("x", 50)
    assert draws.mean() == pytest.approx(0.5, abs=0.005)
    assert draws.var() == pytest.approx(1 / 12, rel=0.02)
    limit = 4 / len(index) ** 0.5
    for other in (Streams("b", 1, 0, index=index).uniform("x", 50), Streams("a", 1, 0, index=index).uniform("y", 50)):
        assert abs(np.corrcoef(draws[:, 0], other[:, 0])[0, 1]) < limit
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < limit
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < limit
    assert len(np.unique(draws)) > 0.99 * draws.size
    wide = Streams("a", 1, 0, index=np.array([0, 2**40, -1])).normal("x", 3)
    assert len(np.unique(wide)) == 9


def test_synthetic_images_differ_from_each_other():
    assert len({image.tobytes() for image in synthetic_images(12)}) == 12
