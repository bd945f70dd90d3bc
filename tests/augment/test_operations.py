"""Each operation against its slow form, one image at a time, and what passes through it backwards."""

import math

import pytest
import slow_operations as slow
import torch

from offsupport.augment import OPERATIONS

STRAIGHT = {"auto_contrast", "equalize", "solarize", "posterize"}


def images(count=6, size=20, channels=3, seed=0):
    """Images of 8 bits that use a part of the levels, unevenly, with enough pixels for a histogram."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, channels, size, size, generator=generator, dtype=torch.float64)
    return (255 * (0.1 + 0.75 * x**2)).round() / 255


def table():
    return [pytest.param(operation, id=operation.name) for operation in OPERATIONS]


def test_names_order_and_ranges_are_the_published_ones():
    assert tuple(operation.name for operation in OPERATIONS) == slow.NAMES
    for operation in OPERATIONS:
        assert (operation.low, operation.high) == slow.RANGES[operation.name]
        assert operation.signed == (operation.name in slow.SIGNED)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("operation", table())
def test_against_one_image_at_a_time(operation, channels):
    x = images(channels=channels)
    magnitude = torch.tensor([0.0, 0.2, 0.5, 0.73, 0.99, 1.0], dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    out = operation(x, magnitude, sign)
    low, high = slow.RANGES[operation.name]
    for image, m, s, got in zip(x, magnitude.tolist(), sign.tolist(), out, strict=True):
        v = low + m * (high - low)
        expected = slow.apply(operation.name, image, v * s if operation.name in slow.SIGNED else v)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    if not (operation.name == "color" and channels == 1):
        assert (out - x).abs().flatten(1).amax(1).max() > 0.05


@pytest.mark.parametrize("operation", table())
def test_single_precision_agrees_with_double(operation):
    x = images(count=5, size=12, seed=1)
    magnitude, sign = torch.linspace(0.1, 0.9, 5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    exact, single = operation(x, magnitude, sign), operation(x.float(), magnitude.float(), sign.float())
    torch.testing.assert_close(single.double(), exact, rtol=1e-4, atol=1e-4)


def test_flat_images_stay_in_range_and_finite():
    x = torch.cat([torch.full((1, 3, 6, 6), value) for value in (0.0, 0.4, 1.0)])
    for operation in OPERATIONS:
        out = operation(x, torch.full((3,), 0.9), torch.ones(3))
        assert out.isfinite().all()
        assert ((out >= 0) & (out <= 1)).all()


def test_rotation_keeps_angles_on_images_that_are_not_square():
    rotate = next(each for each in OPERATIONS if each.name == "rotate")
    x = torch.zeros(1, 1, 21, 41)
    x[0, 0, 10, 20:] = 1.0  # a ray from the centre to the right
    out = rotate(x, torch.ones(1), torch.ones(1))[0, 0]
    rows, columns = (out > 0.4).nonzero(as_tuple=True)
    slope = ((rows - 10.0)[columns > 24] / (columns - 20.0)[columns > 24]).abs()
    assert slope.mean().item() == pytest.approx(math.tan(math.pi / 6), abs=0.1)


@pytest.mark.parametrize("operation", [each for each in table() if each.values[0].name not in STRAIGHT])
def test_gradients_of_smooth_operations(operation):
    # Away from 0, 1 and the pixel grid, where clipping and bilinear sampling have kinks.
    x = (0.3 + 0.4 * images(count=2, size=4, seed=3)).requires_grad_()
    m = torch.tensor([0.62, 0.41], dtype=torch.float64, requires_grad=True)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    if operation.name == "invert":
        assert torch.autograd.gradcheck(lambda x: operation(x, m.detach(), sign), [x])
        (gradient,) = torch.autograd.grad(operation(x, m, sign).sum(), m)
        assert gradient.tolist() == pytest.approx([48.0, 48.0])
        return
    assert torch.autograd.gradcheck(lambda x, m: operation(x, m, sign), [x, m])


@pytest.mark.parametrize("operation", [each for each in table() if each.values[0].name in STRAIGHT])
def test_gradients_straight_through_the_others(operation):
    x = (0.2 + 0.6 * images(count=2, size=4, seed=3)).requires_grad_()
    m = torch.tensor([0.62, 0.41], dtype=torch.float64, requires_grad=True)
    out = operation(x, m, torch.ones(2, dtype=torch.float64))
    weight = torch.rand(out.shape, generator=torch.Generator().manual_seed(4), dtype=out.dtype)
    to_image, to_magnitude = torch.autograd.grad((weight * out).sum(), [x, m])
    # Clipping lets the gradient pass where the result lies inside [0, 1], ends included.
    torch.testing.assert_close(to_image, weight)
    width = operation.high - operation.low
    torch.testing.assert_close(to_magnitude, width * weight.flatten(1).sum(1))
