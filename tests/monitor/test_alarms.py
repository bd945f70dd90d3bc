"""Alarms of a stream: what fires, what does not, and what is told."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

from offsupport.monitor import Alarms, CollapseMonitor, gathering, order_score, repeats
from offsupport.monitor.alarms import labels_of, looks_of, on, quarrel, standardised
from offsupport.testing import NETWORKS, Case, toy_images
from offsupport.testing.case import run, same_bits


def answers(labels, classes=10, sure=4.0):
    return sure * torch.nn.functional.one_hot(torch.as_tensor(labels), classes).float()


def watch(labels, batch=64, alarms=None, state=None):
    """Return what fired, in order, and the state."""
    alarms, state, told = alarms or Alarms(), state or Alarms.initial(), []
    for part in torch.as_tensor(labels).split(batch):
        before = on(state["fired"])
        state, now = alarms.observe(state, answers(part), torch.empty(len(part), 0))
        told += [alarm for alarm in now if alarm not in before]
    return told, state


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2, 0], [0, 0, 0, 0, 1, 2, 3, 3]])
@pytest.mark.parametrize("lags", [1, 2])
def test_repeats_are_held_against_all_orders_of_the_same_labels(labels, lags):
    def equal(order):
        return sum(
            order[i] == order[i + lag]
            for lag in range(1, min(lags, len(order) // 4) + 1)
            for i in range(len(order) - lag)
        )

    counts = np.array([equal(order) for order in itertools.permutations(labels)], dtype=float)
    assert repeats(torch.tensor(labels), lags) == pytest.approx((equal(labels) - counts.mean()) / counts.std())


def test_repeats_of_random_orders_have_mean_zero_and_deviation_one_whatever_the_shares():
    rng = np.random.default_rng(0)
    for shares in ([0.1] * 10, [0.82] + [0.02] * 9):
        found = [repeats(torch.from_numpy(rng.choice(10, 256, p=shares))) for _ in range(300)]
        assert abs(np.mean(found)) < 0.25
        assert 0.8 < np.std(found) < 1.25


def test_nothing_is_said_of_one_class_or_of_few():
    assert repeats(torch.zeros(200, dtype=torch.long)) == 0.0
    assert repeats(torch.tensor([1, 1])) == 0.0
    assert order_score(torch.empty(0, dtype=torch.long)) == 0.0


def test_looks_of_random_orders_have_deviation_one_and_gatherings_stand_out():
    generator = torch.Generator().manual_seed(0)
    scenes = torch.rand(5, 3, 8, 8, generator=generator)
    place = torch.arange(250) // 50
    x = scenes[place] + 0.5 * torch.rand(250, 3, 8, 8, generator=generator)
    found = [gathering(standardised(looks_of(x[torch.randperm(250, generator=generator)]))) for _ in range(200)]
    assert abs(np.mean(found)) < 0.3
    assert 0.7 < np.std(found) < 1.3
    assert gathering(standardised(looks_of(x))) > 10
    noise = torch.rand(250, 3, 8, 8, generator=generator)
    noise[125:] = 0.3 * noise[125:] + 0.6
    assert gathering(standardised(looks_of(noise))) < 3, "another light is no order"


def test_sums_of_neighbours_are_those_of_plain_loops():
    looks = torch.rand(40, 6, generator=torch.Generator().manual_seed(1)).double()
    z = (looks - looks.mean(0)) / looks.std(0, correction=0)
    pairs = [(i, j) for i in range(40) for j in range(i + 1, min(40, i + 6))]
    alike = sum(float(z[i] @ z[j]) for i, j in pairs) + len(pairs) * 6 / 39
    spread = math.sqrt(len(pairs) * float((z.T @ z / 40).square().sum()))
    assert gathering(looks, lags=5) == pytest.approx(alike / spread)


def test_there_are_no_looks_of_what_is_no_image_or_blank():
    assert looks_of(torch.rand(3, 7)).shape == (3, 0)
    assert gathering(torch.empty(100, 0)) == 0.0
    assert gathering(standardised(looks_of(torch.zeros(100, 3, 8, 8)))) == 0.0


def test_a_class_that_takes_over_is_no_order():
    rng = np.random.default_rng(1)
    share = np.linspace(0.1, 0.9, 256)
    labels = np.where(rng.random(256) < share, 3, rng.integers(0, 10, 256))
    assert repeats(torch.from_numpy(labels)) > 4
    assert order_score(torch.from_numpy(labels)) < 3


@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_a_sorted_stream_is_noticed_once_per_episode(batch):
    rng = np.random.default_rng(0)
    sorted_ = np.repeat(np.arange(10), 50)
    # A model that is right on a third of the images only.
    seen = np.where(rng.random(500) < 0.35, sorted_, rng.integers(0, 10, 500))
    told, state = watch(seen, batch)
    assert told == ["order"]
    again, _ = watch(rng.integers(0, 10, 600), 50, state=state)
    assert again == []


def test_random_orders_do_not_fire():
    rng = np.random.default_rng(2)
    for shares in ([0.1] * 10, [0.55] + [0.05] * 9, [0.91] + [0.01] * 9):
        assert watch(rng.choice(10, 4000, p=shares))[0] == []


def test_a_growing_share_fires_long_before_it_is_nearly_everything():
    rng = np.random.default_rng(3)
    usual = rng.integers(0, 10, 1500)
    grown = np.where(rng.random(1500) < 0.45, 7, rng.integers(0, 10, 1500))
    told, state = watch(np.concatenate([usual, grown[:700]]))
    assert told == ["collapse"]
    assert float(state["collapse"][1].max() / state["collapse"][1].sum()) < 0.7


def test_the_monitor_needs_most_of_a_window_and_both_signs():
    monitor = CollapseMonitor(window=100)
    certain = torch.tensor([[20.0, 0.0, 0.0, 0.0]])
    torn = torch.tensor([[0.1, 0.0, 0.0, 0.0]])
    assert not monitor.collapsed(monitor.observe(torch.empty(0), certain.expand(69, 4)))
    assert monitor.collapsed(monitor.observe(torch.empty(0), certain.expand(71, 4)))
    assert not monitor.collapsed(monitor.observe(torch.empty(0), torn.expand(200, 4))), "one class, but not certain"
    half = torch.cat([certain.expand(94, 4), certain.roll(1, 1).expand(6, 4)])
    assert not monitor.collapsed(monitor.observe(torch.empty(0), half)), "94 % are no collapse"


def test_the_monitor_fades_over_its_window_and_weighs_positions_as_one_sample():
    monitor = CollapseMonitor(window=100)
    first = monitor.observe(torch.empty(0), torch.zeros(50, 4))
    assert first[0].sum() == pytest.approx(50)
    second = monitor.observe(first, torch.zeros(50, 4))
    assert second[0].sum() == pytest.approx(50 + 50 * math.exp(-0.5))
    dense = monitor.observe(torch.empty(0), torch.zeros(50, 4, 6, 6))
    assert same_bits(dense, first)


def test_dense_predictions_count_by_their_most_frequent_class():
    dense = torch.zeros(2, 3, 2, 2)
    dense[0, 1] = 1
    dense[1, 2, 0] = 1
    dense[1, 2, 1, 0] = 1
    assert labels_of(dense).tolist() == [1, 2]


def test_a_quarrel_is_a_rise_of_disagreement_while_the_source_sees_nothing_new():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 512)
    source = answers(labels) + torch.from_numpy(rng.normal(size=(512, 10))).float()
    adapted = source.clone()
    assert not quarrel(adapted, source)
    flipped = torch.arange(512) % 5 == 0
    adapted[256:][flipped[256:]] = adapted[256:][flipped[256:]].roll(1, 1)
    assert quarrel(adapted, source)
    changed = source.clone()
    changed[256:] /= 4
    assert not quarrel(adapted, changed), "the images have changed as well"


@pytest.mark.parametrize("method", ["bn", "tent", "shot"])
def test_label_sorted_images_warn_while_they_come(method):
    x, y = toy_images(2000, seed=5)
    x = x[y.argsort(stable=True)][::3]
    adapted = Case(method, NETWORKS["batch_norm"]).wrap()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for part in x.split(32):
            adapted(part)
    assert adapted.events["order"] >= 1
    assert any("come together" in str(each.message) for each in caught)


def test_random_order_of_the_same_images_does_not_warn():
    x, _ = toy_images(640, seed=5)
    adapted = Case("tent", NETWORKS["batch_norm"]).wrap()
    run(adapted, list(x.split(32)))
    assert not adapted.events["order"]
    assert not adapted.events["collapse"]


def test_alarms_can_be_switched_off():
    x, y = toy_images(640, seed=5)
    adapted = Case("bn", NETWORKS["batch_norm"]).wrap(collapse="off")
    run(adapted, list(x[y.argsort()].split(32)))
    assert not adapted.events["order"]
    assert not adapted.memory["recent"].numel()
