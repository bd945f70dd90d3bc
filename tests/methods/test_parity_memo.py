"""MEMO against a plain loop over images, each from a fresh copy of the source model."""

from __future__ import annotations

import copy

import pytest
import torch
from parity_check import BATCH_NORM, assert_close, make_optimizer, moved, network
from tesla_reference import images

import offsupport
from offsupport.augment import Policy, random_augment, weak_views

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
        generator = torch.Generator().manual_seed(0)
        views = torch.stack(weak_views(x, steps * copies, generator), 1).flatten(0, 1)
        views = random_augment(views, policy, generator).view(len(x), steps, copies, *x.shape[1:])
        logits = []
        for image, own in zip(x, views, strict=True):
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


def test_large_batches_are_served_in_groups():
    net, (x,) = network("batch"), images([20])
    whole, parts = (offsupport.adapt(net, "memo", collapse="off") for _ in range(2))
    expected = torch.cat([parts(x[:8]), parts(x[8:16]), parts(x[16:])])  # 8 images have 256 copies
    assert torch.equal(whole(x), expected)


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
