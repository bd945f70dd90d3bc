"""Weak views against enlarging and cropping each image with torch."""

import pytest
import torch

from offsupport.augment import views, weak_views
from offsupport.core.errors import InputError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (24, 18)])
def test_against_one_image_at_a_time(height, width):
    x = torch.rand(5, 3, height, width, generator=generator(1), dtype=torch.float64)
    got = torch.cat(weak_views(x, 3, generator(2)))
    again = generator(2)
    large = (round(height * 9 / 8), round(width * 9 / 8))
    boxes = torch.stack(views._boxes(15, *large, (0.8, 1.0), (3 / 4, 4 / 3), again), 1).int().tolist()
    mirrored = (torch.rand(15, generator=again, dtype=torch.float64) < 0.5).tolist()
    assert len(set(mirrored)) == 2
    resize = torch.nn.functional.interpolate
    for i, (top, left, h, w) in enumerate(boxes):
        enlarged = resize(x[i % 5][None], large, mode="bilinear")
        box = enlarged[..., top : top + h, left : left + w]
        expected = resize(box, (height, width), mode="bilinear", antialias=True)[0]
        torch.testing.assert_close(got[i], expected.flip(-1) if mirrored[i] else expected, rtol=1e-10, atol=1e-12)


def test_views_differ_from_each_other_and_stay_in_range():
    x = torch.rand(4, 1, 12, 12, generator=generator())
    one, two = weak_views(x, 2, generator(1))
    assert not torch.equal(one, two)
    assert one.shape == x.shape
    for view in (one, two):
        assert ((view >= -1e-6) & (view <= 1 + 1e-6)).all()
    assert weak_views(x, 0, generator()) == []


def test_what_is_no_image_is_refused():
    with pytest.raises(InputError):
        weak_views(torch.rand(4, 7), 2, generator())
