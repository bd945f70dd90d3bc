"""Views against torch's own resizing and the colorsys module, one image at a time, and what they promise together."""

import colorsys
import math

import pytest
import torch

from offsupport.augment import color_jitter, flip, grayscale, random_resized_crop, simclr_views, views
from offsupport.core.errors import InputError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=12, height=20, width=24, dtype=torch.float64, channels=3):
    return torch.rand(count, channels, height, width, generator=generator(5), dtype=dtype)


@pytest.mark.parametrize("size", [None, 9, 31])
def test_crops_equal_resizing_each_box_with_torch(size):
    x = images()
    scale, ratio = (0.2, 1.0), (3 / 4, 4 / 3)
    got = random_resized_crop(x, scale, ratio, generator(1), size)
    boxes = torch.stack(views._boxes(len(x), 20, 24, scale, ratio, generator(1)), 1).int().tolist()
    for image, (top, left, h, w), out in zip(x, boxes, got, strict=True):
        box = image[None, :, top : top + h, left : left + w]
        shape = (size, size) if size else (20, 24)
        expected = torch.nn.functional.interpolate(box, shape, mode="bilinear", antialias=True)[0]
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


def test_boxes_lie_inside_and_have_the_drawn_areas_and_shapes():
    scale, ratio = (0.2, 0.6), (3 / 4, 4 / 3)
    top, left, h, w = views._boxes(4000, 64, 64, scale, ratio, generator())
    assert ((top >= 0) & (left >= 0) & (top + h <= 64) & (left + w <= 64)).all()
    area = h * w / 64**2
    assert 0.19 < area.min() < 0.22
    assert 0.58 < area.max() < 0.62
    assert abs(float(area.mean()) - 0.4) < 0.01
    assert abs(float((w / h).log().mean())) < 0.01
    assert float((w / h).min()) > 0.72
    assert float((w / h).max()) < 1.4
    # Places are uniform: the mean of the free room is used on either side.
    assert abs(float((top / (64 - h).clamp(min=1)).mean()) - 0.5) < 0.02


def test_where_no_box_fits_the_largest_centred_one_is_taken():
    top, left, h, w = views._boxes(3, 10, 100, (0.9, 1.0), (3 / 4, 4 / 3), generator())
    assert h.tolist() == [10] * 3
    assert w.tolist() == [13] * 3
    assert top.tolist() == [0] * 3
    assert all(value in (43.0, 44.0) for value in left.tolist())


def test_the_whole_image_as_a_box_is_the_image():
    x = images(height=16, width=16)
    torch.testing.assert_close(random_resized_crop(x, (1.0, 1.0), (1.0, 1.0), generator()), x)


def test_flips_and_grey_take_their_share_and_leave_the_rest_bit_equal():
    x = images(count=2000, height=2, width=3)
    flipped, grey = flip(x, generator()), grayscale(x, generator(1))
    for out, changed, share in ((flipped, x.flip(-1), 0.5), (grey, views._luma(x).expand_as(x), 0.2)):
        is_changed = (out == changed).flatten(1).all(1)
        assert (is_changed | (out == x).flatten(1).all(1)).all()
        assert abs(float(is_changed.double().mean()) - share) < 0.03


@pytest.mark.parametrize("turn", [-0.1, 0.07, 0.5])
def test_hue_turns_as_colorsys_does(turn):
    x = images(count=2, height=4, width=5)
    x[0, :, 0, 0] = 0.3
    got = views._turn_hue(x, torch.full((2, 1, 1, 1), turn, dtype=x.dtype))
    for n, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(5)).tolist():
        h, s, v = colorsys.rgb_to_hsv(*x[n, :, i, j].tolist())
        expected = colorsys.hsv_to_rgb((h + turn) % 1.0, s, v)
        assert got[n, :, i, j].tolist() == pytest.approx(expected, abs=1e-12)


def jitter_one_by_one(x, gen, strengths):
    """Jitter a batch image by image, in the words of the definition."""
    chosen = torch.rand(len(x), 1, 1, 1, generator=gen, dtype=torch.float64).flatten() < 0.8
    order = torch.randperm(4, generator=gen).tolist()
    spread = 2 * torch.rand(4, len(x), 1, 1, 1, generator=gen, dtype=torch.float64).flatten(1) - 1
    out = x.clone()
    for n in range(len(x)):
        image = x[n]
        for op in order:
            u = float(spread[op, n]) * strengths[op]
            grey = 0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]
            if op == 0:
                image = ((1 + u) * image).clamp(0, 1)
            elif op == 1:
                image = ((1 + u) * image - u * grey.mean()).clamp(0, 1)
            elif op == 2:
                image = ((1 + u) * image - u * grey).clamp(0, 1)
            else:
                image = views._turn_hue(image[None], torch.full((1, 1, 1, 1), u, dtype=x.dtype))[0]
        if chosen[n]:
            out[n] = image
    return out


@pytest.mark.parametrize("seed", range(4))
def test_jitter_equals_the_definition_image_by_image(seed):
    x = images()
    got = color_jitter(x, generator(seed))
    torch.testing.assert_close(got, jitter_one_by_one(x, generator(seed), (0.4, 0.4, 0.4, 0.1)), rtol=1e-9, atol=1e-12)


def test_every_strength_of_the_jitter_acts_and_without_any_it_is_the_identity():
    x = images()
    none = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    torch.testing.assert_close(color_jitter(x, generator(), **none), x)
    for name in none:
        assert not torch.allclose(color_jitter(x, generator(), **{**none, name: 0.3}), x)
    assert torch.equal(color_jitter(x, generator(), p=0.0), x)


def test_orders_of_the_jitter_vary_between_batches():
    x = images()
    results = {round(float(color_jitter(x, generator(seed), p=1.0).sum()), 6) for seed in range(6)}
    assert len(results) == 6


def test_views_differ_stay_in_range_and_come_from_the_generator_alone():
    x = images(dtype=torch.float32)
    before = torch.get_rng_state()
    one, two = simclr_views(x, generator(3))
    assert torch.equal(before, torch.get_rng_state())
    assert one.shape == two.shape == x.shape
    assert one.dtype == x.dtype
    assert not torch.allclose(one, two)
    for view in (one, two):
        assert float(view.min()) >= 0
        assert float(view.max()) <= 1 + 1e-6
    again = simclr_views(x, generator(3))
    assert torch.equal(one, again[0])
    assert torch.equal(two, again[1])


def test_a_view_does_not_depend_on_the_type_of_the_images():
    x = images()
    double, single = simclr_views(x, generator(2))[0], simclr_views(x.float(), generator(2))[0]
    torch.testing.assert_close(double.float(), single, rtol=1e-4, atol=1e-5)


def test_grey_images_keep_one_channel():
    one, _ = simclr_views(images(channels=1), generator())
    assert one.shape == (12, 1, 20, 24)
    assert one.isfinite().all()


@pytest.mark.parametrize("shape", [(4, 3, 8), (4, 2, 8, 8)])
def test_what_is_no_image_is_refused_with_its_shape(shape):
    with pytest.raises(InputError, match=str(shape[1])):
        simclr_views(torch.zeros(shape), generator())


def test_the_aspect_is_log_uniform():
    _, _, h, w = views._boxes(4000, 1000, 1000, (0.3, 0.5), (0.5, 2.0), generator())
    logs = (w / h).log()
    assert abs(float(logs.std()) - 2 * math.log(2) / math.sqrt(12)) < 0.02
