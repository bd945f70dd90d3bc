"""MEMO against a plain loop over images, each from a fresh copy of the source model."""

from __future__ import annotations

import copy

import pytest
import torch
from parity_check import BATCH_NORM, assert_close, make_optimizer, moved, network
from tesla_reference import images

import offsupport
from offsupport.augment import Policy, random_augment, weak_views
from offsupport.engine.adapter import draws_for

SIZES = (1, 1, 3, 1, 2, 5, 1, 1, 4, 2)


def blended(net, x, prior):
    """The network with batch statistics that count as one image beside ``prior`` images of the source."""
    for layer in net:
        if isinstance(layer, BATCH_NORM):
            channels = x.detach().transpose(0, 1).flatten(1)
            mean = (channels.mean(1) + prior * layer.running_mean) / (1 + prior)
            var = (channels.var(1, unbiased=False) + prior * layer.running_var) / (1 + prior)
            shape = (1, -1) + (1,) * (x.dim() - 2)
            normal = (x - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt()
            x = normal * layer.weight.view(shape) + layer.bias.view(shape)
        else:
            x = layer(x)
    return x


def reference(net, stream, *, lr=5e-3, optimizer="sgd", momentum=0.9, copies=32, steps=1, prior=16.0, policy_length=2):
    policy = Policy(policy_length, "full")
    for x in stream:
        logits = []
        for image in x:
            generator = draws_for(image[None], "memo", 0)
            views = torch.cat(weak_views(image[None], steps * copies, generator))
            own = random_augment(views, policy, generator).view(steps, copies, *image.shape)
            fresh = copy.deepcopy(net)
            opt = make_optimizer(optimizer, list(fresh.parameters()), lr, momentum)
            for each in own:
                p = blended(fresh, each, prior).softmax(1).mean(0)
                opt.zero_grad()
                (-(p * p.log()).sum()).backward()
                opt.step()
            logits.append(blended(fresh, image[None], prior).detach())
        yield torch.cat(logits)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam", "lr": 1e-3, "copies": 8, "policy_length": 1},
        {"steps": 3, "momentum": 0.5, "lr": 0.02, "copies": 5, "prior": 4.0},
    ],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_memo(norm, options):
    net, stream = network(norm), images(SIZES)
    adapted = offsupport.adapt(net, "memo", collapse="off", **options)
    still = offsupport.adapt(net, "memo", collapse="off", **{**options, "lr": 0.0})
    change = 0.0
    for t, (x, expected) in enumerate(zip(stream, reference(net, stream, **options), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        change = max(change, (expected - still(x)).abs().max().item())
        assert moved(adapted.model, net) == set()
    assert change > 1e-3
    assert adapted.passes["backward"] == sum(SIZES) * options.get("steps", 1)


def test_the_step_makes_the_copies_agree():
    net, (x,) = network("group"), images([1])
    adapted = offsupport.adapt(net, "memo", lr=0.1, steps=5, copies=16)
    generator = torch.Generator().manual_seed(7)
    views = random_augment(torch.cat(weak_views(x, 64, generator)), Policy(2, "full"), generator)

    def marginal(model):
        p = model(views).softmax(1).mean(0)
        return -(p * p.log()).sum().item()

    losses = []
    adapted.optimizer.register_step_post_hook(lambda *_: losses.append(marginal(adapted.model)))
    adapted(x)
    assert losses[-1] < marginal(net) - 0.05


def test_an_image_gets_the_same_answer_whatever_came_before():
    net, (x, other) = network("batch"), images([1, 6])
    adapted = offsupport.adapt(net, "memo", collapse="off")
    first = adapted(x)
    adapted(other)
    assert torch.equal(adapted(x), first)
    assert not torch.equal(offsupport.adapt(net, "memo", collapse="off", seed=1)(x), first)


def test_company_and_place_do_not_matter():
    net, (x,) = network("batch"), images([6])
    adapted = offsupport.adapt(net, "memo", collapse="off", copies=8, lr=0.05)
    together = adapted(x)
    assert torch.equal(torch.cat([adapted(image[None]) for image in x]), together)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.equal(adapted(x[order]), together[order])


def test_images_have_draws_of_their_own():
    (x,) = images([2])
    first = [torch.rand(3, generator=draws_for(*given)) for given in ((x[:1], "a", 0), (x[:1].clone(), "a", 0))]
    assert torch.equal(*first)
    for given in ((x[1:], "a", 0), (x[:1], "b", 0), (x[:1], "a", 1)):
        assert not torch.equal(torch.rand(3, generator=draws_for(*given)), first[0])


def test_one_image_that_goes_wrong_spares_the_others():
    net, (x,) = network("group"), images([4])
    expected = offsupport.adapt(net, "memo", copies=4)(x)
    adapted, calls = offsupport.adapt(net, "memo", copies=4), []

    def spoil(*_):
        calls.append(0)
        if len(calls) == 2:
            adapted.model.conv0.weight.data.fill_(float("inf"))

    adapted.optimizer.register_step_post_hook(spoil)
    out = adapted(x)
    assert adapted.events["bad_param"] == 1
    assert torch.equal(out[[0, 2, 3]], expected[[0, 2, 3]])
    torch.testing.assert_close(out[1], net(x[1:2])[0].detach())


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_blank_image_has_the_same_numbers_wherever_it_stands(norm):
    net, (x,) = network(norm), images([3])
    x[1] = 0.25
    adapted = offsupport.adapt(net, "memo", collapse="off", lr=0.1)
    in_company = adapted(x)[1]
    assert adapted.events["empty_selection"] == 1
    assert adapted.passes["backward"] == 2
    assert torch.equal(in_company, adapted(x[1:2])[0])
