"""NT-Xent against loops over anchors, by finite differences, and where its value is known."""

import math

import pytest
import torch

from offsupport.functional import nt_xent, view_contrast


def views(count=6, width=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, width, generator=generator, dtype=torch.float64) for _ in range(2))


def by_loops(z1, z2, temperature):
    z = [row / row.norm() for row in (*z1, *z2)]
    count = len(z1)
    losses = []
    for anchor in range(2 * count):
        partner = (anchor + count) % (2 * count)
        terms = [math.exp(float(z[anchor] @ z[k]) / temperature) for k in range(2 * count) if k != anchor]
        losses.append(-math.log(math.exp(float(z[anchor] @ z[partner]) / temperature) / sum(terms)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_equals_a_loop_over_anchors(temperature, count):
    z1, z2 = views(count)
    assert float(nt_xent(z1, z2, temperature)) == pytest.approx(by_loops(z1, z2, temperature), rel=1e-12, abs=1e-14)


def test_gradients_by_finite_differences():
    z1, z2 = (z.requires_grad_() for z in views())
    assert torch.autograd.gradcheck(nt_xent, (z1, z2))


def test_lengths_and_the_order_of_the_views_do_not_matter():
    z1, z2 = views()
    expected = nt_xent(z1, z2)
    torch.testing.assert_close(nt_xent(3 * z1, 0.1 * z2), expected)
    torch.testing.assert_close(nt_xent(z2, z1), expected)


def test_the_published_scale_is_a_factor():
    z1, z2 = views()
    torch.testing.assert_close(nt_xent(z1, z2, 0.5, 0.07), nt_xent(z1, z2, 0.5) * 0.5 / 0.07)


def test_one_image_alone_has_zero_loss_and_gradient():
    z1, z2 = (z.requires_grad_() for z in views(count=1))
    loss = nt_xent(z1, z2)
    loss.backward()
    assert float(loss.detach()) == 0
    assert float(z1.grad.abs().max()) == 0


def test_large_projections_stay_finite():
    z1, z2 = views()
    assert nt_xent(1e150 * z1, 1e150 * z2, 0.01).isfinite()


@pytest.mark.parametrize("count", [1, 5])
def test_more_than_two_views_have_the_mean_over_all_partners(count):
    three = [*views(count), views(count, seed=1)[0]]
    z = [row / row.norm() for row in torch.cat(three)]
    losses = []
    for anchor in range(3 * count):
        terms = {k: math.exp(float(z[anchor] @ z[k]) / 0.1) for k in range(3 * count) if k != anchor}
        partners = [k for k in terms if k % count == anchor % count]
        losses.append(-sum(math.log(terms[k] / sum(terms.values())) for k in partners) / 2)
    assert float(view_contrast(three, 0.1)) == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_two_views_are_nt_xent_and_gradients_hold_by_finite_differences():
    z1, z2 = views()
    torch.testing.assert_close(view_contrast([z1, z2], 0.5), nt_xent(z1, z2, 0.5))
    three = [z.requires_grad_() for z in (*views(4), views(4, seed=1)[0])]
    assert torch.autograd.gradcheck(lambda *z: view_contrast(z, 0.5), three)
