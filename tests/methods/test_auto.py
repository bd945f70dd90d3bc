"""``auto``: the mean of a calm and a bold prediction against a plain loop, and when it is bold at all."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math

import pytest
import torch
from parity_check import assert_close, forward, network
from test_parity_minimal import images, made
from torch import nn

import offsupport
from offsupport.engine import SourceStats
from offsupport.methods.auto import FAINT, SHARES, AutoConfig
from offsupport.testing import NETWORKS, toy_images
from offsupport.testing.case import all_same_bits, quiet, run, same_bits, stream

CONFIG = AutoConfig()
CLEAN = [toy_images(64, seed, shifted=False)[0] for seed in range(4)]


def as_minimal(stats):
    """What ``auto`` knows of clean images, as far as ``minimal`` uses it."""
    tensors = {name: tensor for name, tensor in stats.tensors.items() if name != "share"}
    return dataclasses.replace(stats, method="minimal", tensors=tensors)


@pytest.fixture(scope="module")
def stats():
    return offsupport.source_stats(NETWORKS["batch_norm"](), CLEAN, method="auto")


def bold(net="batch_norm", **options):
    """An adapter that takes steps wherever the images allow it."""
    return offsupport.adapt(NETWORKS[net](), "auto", **{"share": 0.5, "monitor": False, **options})


def takes_steps(adapter):
    return adapter.memory["weights"].numel() > 0


# Against a plain loop ------------------------------------------------------------------------------------------------


def information(logits):
    p = logits.softmax(1)
    mean = p.mean(0)
    return -(mean * mean.log()).sum() + (p * p.log()).sum(1).mean()


def test_the_mean_of_a_calm_and_a_bold_prediction_is_a_plain_loop():
    clean = images(100, seed=1)
    net = made(network, clean)
    stats = offsupport.source_stats(net, [clean], method="minimal")
    adapted = offsupport.adapt(
        net, "auto", source=dataclasses.replace(stats, method="auto"), share=0.4, startle=1e9, monitor=False
    )
    calm = offsupport.adapt(net, "minimal", source=stats, startle=1e9)
    # Bold weights: all but the classifier, SGD with momentum, each step pulled back to the source.
    ours = made(network, clean)
    moving = [p for name, p in ours.named_parameters() if not name.startswith("head")]
    source, velocity = [p.detach().clone() for p in moving], [torch.zeros_like(p) for p in moving]
    for t, size in enumerate((64, 40, 64, 48)):
        x = images(size, seed=20 + t, scale=0.5, offset=0.5)
        before = calm(x)
        logits = forward(ours, x)
        share = 0.4 * float(calm.statistics_policy.gate().mean())
        assert share > FAINT
        expected = ((1 - share) * before.softmax(1) + share * logits.softmax(1)).log().detach()
        gradients = torch.autograd.grad(-information(logits), moving)
        with torch.no_grad():
            for p, g, v, s in zip(moving, gradients, velocity, source, strict=True):
                v.mul_(CONFIG.momentum).add_(g)
                p -= CONFIG.lr * min(1.0, size / 64) * v
                p += CONFIG.pull * (s - p)
        assert_close(adapted(x), expected, f"batch {t}")
    assert_close(adapted.memory["weights"], torch.cat([p.detach().flatten() for p in moving]), "weights")
    assert_close(adapted.memory["velocity"], torch.cat([v.flatten() for v in velocity]), "velocity")
    assert all(torch.equal(a, b) for a, b in zip(adapted.model.parameters(), net.parameters(), strict=True))


def test_very_sure_predictions_are_mixed_in_logarithms():
    net, x = NETWORKS["batch_norm"](), stream(1, size=64)[0]
    with torch.no_grad():
        net[-1].weight.mul_(1000)
    adapted = offsupport.adapt(net, "auto", share=0.5, monitor=False)
    calm = run(offsupport.adapt(net, "minimal"), [x])[0].double()
    with torch.no_grad():
        other = copy.deepcopy(net).train()(x).double()
    expected = (torch.logaddexp(calm.log_softmax(1), other.log_softmax(1)) - math.log(2)).float()
    assert expected.min() < -200, "less than any float32 above zero"
    assert torch.allclose(run(adapted, [x])[0], expected, rtol=1e-4, atol=1e-2)


# When it is bold -----------------------------------------------------------------------------------------------------


def test_large_diverse_batches_in_random_order_are_stepped_on(stats):
    adapted = bold(source=stats)
    run(adapted, stream(2, size=64))
    assert takes_steps(adapted)
    assert adapted.passes["backward"] == 2


def test_a_sorted_stream_is_predicted_as_minimal_does(stats):
    x, y = toy_images(512, seed=3)
    batches = [x[y == k][:64] for k in range(4)]
    adapted = bold(source=stats)
    minimal = offsupport.adapt(NETWORKS["batch_norm"](), "minimal", source=as_minimal(stats))
    assert all_same_bits(run(adapted, batches), run(minimal, batches))
    assert not takes_steps(adapted)


def test_an_order_takes_back_what_was_learnt(stats):
    adapted = bold(source=stats)
    run(adapted, stream(2, size=64))
    assert takes_steps(adapted)
    x, y = toy_images(512, seed=3)
    run(adapted, [x[y == 0][:64]])
    assert not takes_steps(adapted)


@pytest.mark.parametrize("size", [1, CONFIG.least - 1])
def test_small_batches_are_predicted_as_minimal_does(stats, size):
    adapted = bold(source=stats)
    minimal = offsupport.adapt(NETWORKS["batch_norm"](), "minimal", source=as_minimal(stats))
    batches = stream(12, size=size)
    assert all_same_bits(run(adapted, batches), run(minimal, batches))
    assert not takes_steps(adapted)


def test_strangers_images_are_never_stepped_on(stats):
    adapted = bold(source=stats, trusted=False)
    minimal = offsupport.adapt(NETWORKS["batch_norm"](), "minimal", source=as_minimal(stats), trusted=False)
    batches = stream(4, size=64)
    assert all_same_bits(run(adapted, batches), run(minimal, batches))
    assert not takes_steps(adapted)


def test_clean_images_are_not_stepped_on(stats):
    adapted = bold(source=stats)
    run(adapted, [toy_images(64, seed, shifted=False)[0] for seed in range(50, 52)])
    assert not takes_steps(adapted)


@pytest.fixture(scope="module")
def used_to():
    """A network whose running statistics are those of clean images, but for a little."""
    net = NETWORKS["batch_norm"]()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    with torch.no_grad():
        net.train()(0.99 * torch.cat(CLEAN))
    return net.eval()


def test_without_clean_images_only_what_is_far_from_the_running_statistics_is_stepped_on(used_to):
    for amount, bold in ((1.0, False), (0.4, True)):
        adapted = offsupport.adapt(used_to, "auto", monitor=False)
        run(adapted, [amount * toy_images(64, seed, shifted=False)[0] for seed in range(50, 52)])
        assert takes_steps(adapted) is bold


def test_how_plain_a_shift_is_without_clean_images_is_a_plain_loop(used_to):
    adapted = offsupport.adapt(used_to, "auto", monitor=False)
    assert adapted.statistics_policy.plainness() == 0
    run(adapted, [0.7 * toy_images(64, 50, shifted=False)[0]])
    sizes, start = [], 0
    for layer in (layer for layer in adapted.model.modules() if isinstance(layer, nn.BatchNorm2d)):
        shift = adapted.memory["shift"][0, start : start + layer.num_features]
        sizes.append(float((shift**2 / (0.75 * 0.25 * layer.running_var)).mean()))
        start += layer.num_features
    unsure = 0.03 + float(adapted.memory["evidence"][1])
    size = sorted(sizes)[(len(sizes) - 1) // 2]
    assert size > unsure
    assert adapted.statistics_policy.plainness() == pytest.approx(1 - (unsure / size) ** 2, rel=1e-5)


def test_an_abrupt_change_takes_back_what_was_learnt(stats):
    adapted, fresh = bold(source=stats), bold(source=stats)
    run(adapted, stream(2, size=48))
    assert takes_steps(adapted)
    other = [0.5 * x for x in stream(1, size=160)]
    run(adapted, other)
    run(fresh, other)
    assert adapted.memory["evidence"][0] > 96, "more were counted since than before"
    assert adapted.memory["evidence"][0] < 96 + 160, "but it began anew"
    assert takes_steps(fresh)
    assert same_bits(adapted.memory["weights"], fresh.memory["weights"])


# Any model -----------------------------------------------------------------------------------------------------------


def test_without_batch_norm_and_without_clean_images_it_is_the_model():
    net, batches = NETWORKS["group_norm"](), stream(3, size=64)
    adapted = offsupport.adapt(net, "auto")
    with torch.no_grad():
        assert all(torch.allclose(a, net(x), atol=1e-6) for a, x in zip(run(adapted, batches), batches, strict=True))
    assert not takes_steps(adapted)
    assert "keeps no batch statistics" in adapted.summary()


def test_without_batch_norm_the_monitor_tells_whether_steps_are_taken():
    net = NETWORKS["group_norm"]()
    stats = offsupport.source_stats(net, CLEAN, method="auto")
    far = [(0.5 * x + 0.4).clamp(0, 1) for x in stream(6, size=64)]
    near = [toy_images(64, seed, shifted=False)[0] for seed in range(50, 56)]
    taken = []
    for batches in (far, near):
        adapted = offsupport.adapt(net, "auto", source=stats, share=0.5)
        run(adapted, batches)
        taken.append(takes_steps(adapted))
    assert taken == [True, False]


def test_without_a_classifier_layer_it_is_minimal():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    adapted, minimal = (offsupport.adapt(net, method, monitor=False) for method in ("auto", "minimal"))
    batches = stream(3, size=64)
    assert all_same_bits(run(adapted, batches), run(minimal, batches))
    assert "no classifier layer" in adapted.summary()


def test_in_half_precision_it_is_minimal():
    batches = [x.half() for x in stream(3, size=40)]
    adapted, minimal = (
        offsupport.adapt(NETWORKS["batch_norm"]().half(), method, monitor=False) for method in ("auto", "minimal")
    )
    assert all_same_bits(run(adapted, batches), run(minimal, batches))
    assert "half precision" in adapted.summary()


# State ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor", [True, False])
def test_it_goes_on_from_a_file_a_fork_and_the_start(stats, monitor, tmp_path):
    adapted = bold(source=stats, monitor=monitor)
    batches, more = stream(3, size=64), [*stream(3, size=64, seed=1), *stream(3, size=1, seed=2)]
    first = run(adapted, batches)
    assert takes_steps(adapted)
    adapted.save(tmp_path / "a.safetensors")
    fork = adapted.fork()
    expected = run(adapted, more)
    assert all_same_bits(expected, run(fork, more))
    with quiet():
        loaded = offsupport.load_adapted(NETWORKS["batch_norm"](), tmp_path / "a.safetensors", source=stats)
    assert all_same_bits(expected, run(loaded, more))
    adapted.reset()
    assert not takes_steps(adapted)
    assert all_same_bits(first, run(adapted, batches))


def test_broken_images_are_not_counted(stats):
    whole, part = bold(source=stats), bold(source=stats)
    for x in stream(3, size=48):
        bad = torch.cat([x[:5], torch.full_like(x[:1], torch.nan), x[5:]])
        with quiet():
            expected, found = whole(x), part(bad)
        assert same_bits(expected, torch.cat([found[:5], found[6:]]))
        assert found.isfinite().all()
    assert takes_steps(whole)
    for name in ("weights", "velocity", "shift", "evidence", "calm"):
        assert same_bits(whole.memory[name], part.memory[name]), name


# Clean images, and what is watched -----------------------------------------------------------------------------------


def test_clean_images_tell_how_much_the_bold_prediction_counts(stats, tmp_path):
    share = float(stats.tensors["share"])
    assert any(abs(share - each) < 1e-6 for each in SHARES)
    again = offsupport.source_stats(NETWORKS["batch_norm"](), CLEAN, method="auto")
    assert all(same_bits(tensor, again.tensors[name]) for name, tensor in stats.tensors.items())
    stats.save(tmp_path / "s.safetensors")
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), source=SourceStats.load(tmp_path / "s.safetensors"))
    assert adapted.share == pytest.approx(share)
    x = torch.cat(CLEAN)
    with quiet():
        tuned = [adapted.tune(x, None) for _ in range(2)]
    assert same_bits(tuned[0]["share"], tuned[1]["share"])


def test_a_batch_costs_three_passes_at_most(stats):
    adapted = bold(source=stats, monitor=True)
    passed = []
    adapted.classifier.register_forward_hook(lambda _, inputs, out: passed.append(len(out)))
    batches = stream(9, size=64)
    run(adapted, batches[:1])
    for t, x in enumerate(batches[1:], start=1):
        passed.clear()
        before = adapted.passes["backward"]
        run(adapted, [x])
        steps = adapted.passes["backward"] - before
        assert sum(passed) / len(x) + steps <= 3, t
        assert steps == (t % 4 > 0), "a batch that the monitor looks at is not stepped on"


def test_the_monitor_can_be_switched_off(stats):
    on, off = (
        offsupport.adapt(NETWORKS["batch_norm"](), source=stats, **options) for options in ({}, {"monitor": False})
    )
    batches = stream(8, size=1)
    assert all_same_bits(run(on, batches), run(off, batches))
    assert on.passes["forward"] == 10
    assert off.passes["forward"] == 8
    assert "unwatched" in on.memory
    assert "answers" not in off.memory


def test_it_is_the_method_of_those_who_name_none(stats):
    assert inspect.signature(offsupport.adapt).parameters["method"].default == "auto"
    assert offsupport.adapt(NETWORKS["batch_norm"]()).info.name == "auto"


def test_the_summary_says_in_a_sentence_what_is_done_and_why(stats):
    adapted = bold(source=stats)
    assert adapted.summary().split("\n")[0].endswith("no large, diverse, shifted batch has come yet.")
    run(adapted, stream(2, size=64))
    said = adapted.summary().split("\n")[0]
    assert said.startswith("128 images seen")
    assert "steps are taken beside them, because" in said
    assert "strangers may send images" in bold(source=stats, trusted=False).summary()
    assert "simulated shifts spoke against it" in bold(source=stats, share=0.0).summary()
