"""The view of CoTTA, part by part against slow forms, and shuffled patches."""

import math

import pytest
import torch

from offsupport.augment import cotta_view, shuffled_patches, views


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=6, height=12, width=10):
    return torch.rand(count, 3, height, width, generator=generator(5), dtype=torch.float64)


def test_every_image_has_its_own_view_and_the_generator_decides_it():
    x = images(1).repeat(5, 1, 1, 1)
    view = cotta_view(x, generator())
    assert view.shape == x.shape
    assert view.min() >= 0
    assert view.max() <= 1
    assert all(not torch.equal(view[i], view[j]) for i in range(5) for j in range(i))
    assert torch.equal(view, cotta_view(x, generator()))
    assert not torch.equal(view, cotta_view(x, generator(1)))


def test_gradients_go_through_a_view():
    x = images().requires_grad_()
    (gradient,) = torch.autograd.grad(cotta_view(x, generator()).sum(), x)
    assert gradient.isfinite().all()
    assert (gradient != 0).double().mean() > 0.5


def test_motion_samples_where_the_formula_says():
    x, size = images(), (12, 10)
    got = views._warped(x, generator(3), "border")
    draws = 2 * torch.rand(4, len(x), generator=generator(3), dtype=torch.float64) - 1
    for image, out, (turn, down, across, grow) in zip(x, got, draws.T.tolist(), strict=True):
        angle, scale = math.radians(15) * turn, 1 / (1 + 0.1 * grow)
        for row, column in ((0, 0), (5, 7), (11, 9), (6, 2)):
            # In pixels from the centre: turned, scaled, and moved by up to an eighth of a side.
            v, u = row - (size[0] - 1) / 2, column - (size[1] - 1) / 2
            there_u = scale * (math.cos(angle) * u + math.sin(angle) * v * size[0] / size[1] * size[1] / size[0])
            there_v = scale * (-math.sin(angle) * u + math.cos(angle) * v)
            there_u += across / 8 * size[1] + (size[1] - 1) / 2
            there_v += down / 8 * size[0] + (size[0] - 1) / 2
            expected = bilinear(image, there_v, there_u)
            torch.testing.assert_close(out[:, row, column], expected, rtol=1e-9, atol=1e-9)


def bilinear(image, v, u):
    v, u = min(max(v, 0.0), image.shape[1] - 1.0), min(max(u, 0.0), image.shape[2] - 1.0)
    top, left = min(int(v), image.shape[1] - 2), min(int(u), image.shape[2] - 2)
    a, b = v - top, u - left
    upper = (1 - b) * image[:, top, left] + b * image[:, top, left + 1]
    lower = (1 - b) * image[:, top + 1, left] + b * image[:, top + 1, left + 1]
    return (1 - a) * upper + a * lower


def test_blur_is_a_gaussian_of_each_image_s_own_width():
    x = images()
    got = views._blurred(x, generator(2))
    sigma = 0.001 + 0.499 * torch.rand(len(x), 1, generator=generator(2), dtype=torch.float64)
    for image, out, s in zip(x, got, sigma[:, 0].tolist(), strict=True):
        kernel = torch.tensor([math.exp(-((k - 2) ** 2) / (2 * s * s)) for k in range(5)], dtype=torch.float64)
        kernel = torch.outer(kernel, kernel) / kernel.sum() ** 2
        wide = torch.nn.functional.pad(image[:, None], (2, 2, 2, 2), mode="reflect")
        expected = torch.nn.functional.conv2d(wide, kernel[None, None])[:, 0]
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    assert views._blurred(images(2, 2, 2), generator()).shape == (2, 3, 2, 2)


@pytest.mark.parametrize("operation", [0, 1, 4])
def test_colours_change_by_the_stated_ranges(operation, monkeypatch):
    x = images()
    draw = torch.zeros(5, len(x), 1, 1, 1, dtype=torch.float64)
    draw[operation] = 0.5
    monkeypatch.setattr(torch, "rand", lambda *_, **__: (draw + 1) / 2)
    got = views._jittered(x, generator())
    grey = (x * torch.tensor(views.LUMA, dtype=x.dtype).view(3, 1, 1)).sum(1).mean((1, 2)).view(-1, 1, 1, 1)
    expected = {0: 1.2 * x, 1: grey + 1.15 * (x - grey), 4: x**1.15}[operation].clamp(0, 1)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_shuffled_patches_are_the_same_patches_in_another_order():
    x = images(4, 8, 12)
    out = shuffled_patches(x, 4, generator())

    def patches(image):
        return sorted(tuple(p.flatten().tolist()) for row in image.split(2, 1) for p in row.split(3, 2))

    assert all(patches(a) == patches(b) for a, b in zip(x, out, strict=True))
    same = images(1, 8, 8).repeat(3, 1, 1, 1)
    shuffled = shuffled_patches(same, 4, generator())
    assert not torch.equal(shuffled[0], shuffled[1])
    assert shuffled_patches(images(2, 10, 7), 4, generator()).shape == (2, 3, 10, 7)
