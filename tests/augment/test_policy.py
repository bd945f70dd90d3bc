"""The policy against a loop over images, its draws against their law, its optimiser against torch's."""

import itertools
import math

import pytest
import slow_operations as slow
import torch

from offsupport.augment import Draw, Policy, random_augment
from offsupport.augment.policy import adam


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count, size=17):
    # Not at 8 bits: on the edge between two levels, rounding in an operation before decides.
    return 0.1 + 0.7 * torch.rand(count, 3, size, size, generator=generator(9), dtype=torch.float64)


def one_by_one(x, policy, draw, magnitudes):
    """Apply the operations of each image in index order."""
    pairs = list(itertools.combinations(slow.NAMES, policy.length))
    out = []
    for image, row, signs, values in zip(x, draw.rows.tolist(), draw.signs.tolist(), magnitudes.tolist(), strict=True):
        for name, sign, m in zip(pairs[row], signs, values, strict=True):
            low, high = slow.RANGES[name]
            if name == "rotate" and policy.rotation == "constant":
                low = high = -math.pi / 6
            v = low + m * (high - low)
            image = slow.apply(name, image, v * sign if name in slow.SIGNED else v)
        out.append(image)
    return torch.stack(out)


@pytest.mark.parametrize("rotation", ["constant", "full"])
@pytest.mark.parametrize(("length", "count"), [(1, 14), (2, 91), (3, 364)])
def test_every_sub_policy_against_one_image_at_a_time(length, count, rotation):
    policy = Policy(length, rotation)
    assert policy.members.shape == (count, length)
    every = torch.arange(count)[:: 1 if length < 3 else 13]
    signs = 2 * torch.randint(2, (len(every), length), generator=generator(1)) - 1
    x, magnitudes = images(len(every)), torch.rand(len(every), length, generator=generator(2), dtype=torch.float64)
    draw = Draw(every, signs)
    expected = one_by_one(x, policy, draw, magnitudes)
    torch.testing.assert_close(policy.apply(x, draw, magnitudes), expected, rtol=1e-9, atol=1e-9)


def test_an_image_is_augmented_alike_in_any_company():
    policy, x = Policy(), images(40)
    draw = policy.draw(40, generator())
    magnitudes = torch.rand(40, 2, generator=generator(1), dtype=torch.float64)
    together = policy.apply(x, draw, magnitudes)
    for i in (0, 17, 39):
        alone = policy.apply(x[i : i + 1], Draw(draw.rows[i : i + 1], draw.signs[i : i + 1]), magnitudes[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-12, atol=1e-12)


def test_gradients_reach_only_the_magnitudes_that_were_drawn():
    policy = Policy()
    logits = policy.logits().double().requires_grad_()
    draw = Draw(torch.tensor([3, 3, 50]), torch.ones(3, 2))
    out = policy.apply(images(3), draw, logits[draw.rows, 1:].sigmoid())
    (gradient,) = torch.autograd.grad(out.square().sum(), logits)
    assert gradient[:, 1:].abs().sum(1).nonzero().flatten().tolist() == [3, 50]


def test_a_constant_rotation_has_no_gradient_and_no_magnitude():
    row = list(itertools.combinations(slow.NAMES, 1)).index(("rotate",))
    x, draw = images(2), Draw(torch.tensor([row, row]), torch.ones(2, 1))
    for rotation, differs in (("constant", False), ("full", True)):
        policy, m = Policy(1, rotation), torch.tensor([[0.6], [0.7]], dtype=torch.float64, requires_grad=True)
        out = policy.apply(x[:1].expand(2, -1, -1, -1), draw, m)
        assert bool((out[0] != out[1]).any()) == differs
        (gradient,) = torch.autograd.grad(out.square().sum(), m)
        assert bool(gradient.abs().sum() > 0) == differs


def test_draws_follow_their_law():
    policy = Policy()
    uniform = torch.bincount(policy.draw(40_000, generator()).rows, minlength=91) / 40_000
    assert (uniform - 1 / 91).abs().max() < 0.004
    selection = torch.full((91,), -9.0)
    selection[[4, 80]] = torch.tensor([1.0, 1.0 + math.log(3)])
    learned = torch.bincount(policy.draw(40_000, generator(), selection).rows, minlength=91) / 40_000
    assert learned[4].item() == pytest.approx(0.25, abs=0.01)
    assert learned[80].item() == pytest.approx(0.75, abs=0.01)
    signs = policy.draw(40_000, generator()).signs.double()
    assert signs.unique().tolist() == [-1, 1]
    assert signs.mean(0).abs().max() < 0.02
    assert abs((signs[:, 0] * signs[:, 1]).mean()) < 0.02


def test_random_augmentation_is_a_function_of_its_generator():
    x = images(20)
    first, again = (random_augment(x, Policy(2, "full"), generator(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, random_augment(x, Policy(2, "full"), generator(4)))
    assert ((first >= 0) & (first <= 1)).all()


def test_adam_against_torch():
    parameter = torch.nn.Parameter(torch.zeros(5, 3, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=0.1, foreach=False)
    value, moments, step = parameter.detach().clone(), torch.zeros(2, 5, 3, dtype=torch.float64), torch.zeros(())
    for i in range(12):
        gradient = torch.randn(5, 3, generator=generator(i), dtype=torch.float64) * 10 ** (i % 4 - 3)
        parameter.grad = gradient.clone()
        optimizer.step()
        value, moments, step = adam(value, gradient, moments, step, 0.1)
        torch.testing.assert_close(value, parameter.detach(), rtol=1e-12, atol=1e-14)
    assert step == 12
