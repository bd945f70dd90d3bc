"""Alarms on streams that broke methods before there were any: attackers, sorted digits; and streams that are fine."""

import warnings

import numpy as np
import pytest
import torch

import offsupport
from offsupport.data import STANDARD, load
from offsupport.monitor import Alarms, CollapseMonitor
from offsupport.monitor.alarms import on

ATTACKERS, TOGETHER = 6, 64
"""Images of an attacker in a batch, and images in it: a share that hides a collapse from a plain threshold."""


def digits(corruption=None, order=None, seed=0, severity=5):
    """Return the test digits, corrupted or not, in random order or sorted by label."""
    data = load("digits-c", corruption=corruption, severity=severity) if corruption else load("digits")
    place = np.random.default_rng(seed).permutation(len(data.labels))
    if order == "sorted":
        place = place[np.argsort(data.labels[place], kind="stable")]
    return data.tensor(place), torch.as_tensor(data.labels[place])


def adapted(method, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # EATA would have clean images
        return offsupport.adapt(offsupport.load_model("zoo:digits-small").eval(), method, **options)


def send(adapter, x, batch=TOGETHER):
    """Return the predictions and what a person was told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said = torch.cat([adapter(part).argmax(1) for part in x.split(batch)])
    return said, [str(each.message) for each in caught]


def test_a_tenth_of_each_batch_does_not_hide_that_one_class_takes_over():
    rng = np.random.default_rng(0)
    usual = rng.integers(0, 10, (10, TOGETHER))
    taken = np.full((12, TOGETHER), 3)
    taken[:, :ATTACKERS] = rng.integers(0, 10, (12, ATTACKERS))
    labels = torch.from_numpy(rng.permuted(np.concatenate([usual, taken]), axis=1))
    alarms, state, told, plain = Alarms(), Alarms.initial(), [], torch.empty(0)
    for part in labels:
        before = on(state["fired"])
        logits = 20 * torch.nn.functional.one_hot(part, 10).float()
        state, now = alarms.observe(state, logits, torch.empty(len(part), 0))
        told += [alarm for alarm in now if alarm not in before]
        plain = CollapseMonitor().observe(plain, logits)
        assert not CollapseMonitor().collapsed(plain), "by the largest share alone nothing would be seen"
    assert told == ["collapse"]


def test_steps_that_collapse_beside_an_attacker_are_told_while_it_happens():
    x, _ = digits("gaussian_noise")
    x = torch.cat([x, x, x])[: 12 * TOGETHER]
    calm, reckless = adapted("tent"), adapted("tent", lr=10.0)
    send(calm, x)
    assert not calm.events["collapse"]
    reckless.restore(calm.snapshot())
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).round()
    hostile = torch.from_numpy(np.random.default_rng(0).random(len(x)) < ATTACKERS / TOGETHER)
    said, told = send(reckless, torch.where(hostile[:, None, None, None], noise, x))
    assert torch.bincount(said[-256:]).max() < 0.9 * 256, "by the largest share alone little would be seen"
    assert reckless.events["collapse"] >= 1
    assert any("takes over" in each for each in told)


@pytest.mark.parametrize("method", ["bn", "tent", "eata", "sar", "shot"])
def test_digits_a_hundred_times_too_bright_are_counted_and_change_nobody_else(method):
    x, _ = digits()
    x = x[: 3 * TOGETHER]
    bad = (torch.arange(len(x)) % TOGETHER) < ATTACKERS
    sent = torch.where(bad[:, None, None, None], 100 * x, x)
    hostile, kind = adapted(method), adapted(method)
    said, _ = send(hostile, sent)
    parts = [part[~out] for part, out in zip(x.split(TOGETHER), bad.split(TOGETHER), strict=True)]
    alone = torch.cat([kind(part).argmax(1) for part in parts])
    assert torch.equal(said[~bad], alone)
    assert hostile.events["out_of_range"] == 3, "once a batch"


@pytest.mark.parametrize("method", ["bn", "tent", "shot"])
def test_digits_sorted_by_label_are_told(method):
    x, y = digits(order="sorted")
    adapter = adapted(method)
    said, told = send(adapter, x)
    source = adapter.source_view(x)[0].argmax(1)
    assert (said != y).float().mean() > (source != y).float().mean() + 0.03, "there is something to be told"
    assert adapter.events["order"] == 1
    assert any("come together" in each for each in told)


@pytest.mark.slow
def test_the_fifteen_corruptions_in_random_order_fire_at_most_once_in_a_hundred():
    streams = [(name, seed) for name in STANDARD for seed in range(14)]
    fired = []
    for name, seed in streams:
        adapter = adapted("bn")
        send(adapter, digits(name, seed=seed)[0])
        fired += [(name, seed, alarm) for alarm in ("order", "collapse", "disagreement") if adapter.events[alarm]]
    assert len(fired) <= len(streams) / 100, fired


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tent", "auto"])
def test_six_cycles_of_the_fifteen_corruptions_do_not_collapse(method):
    adapter, errors = adapted(method), []
    for cycle in range(6):
        wrong = []
        for name in STANDARD:
            x, y = digits(name, seed=cycle)
            wrong.append(send(adapter, x[:128])[0] != y[:128])
        errors.append(float(torch.cat(wrong).float().mean()))
    assert errors[-1] < errors[0] + 0.02, errors
