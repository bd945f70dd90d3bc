"""The poisoning table: what an attacker sends, where it hides, and what is scored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from offsupport.bench.cell import Place
from offsupport.bench.store import Record
from offsupport.core.errors import ConfigError
from offsupport.results.correctness import pack
from offsupport.studies.ours.poison import (
    METHODS,
    SHARES,
    Attacker,
    Planner,
    PoisonConfig,
    claims,
    prepare_poison,
    rows,
)
from offsupport.studies.paper.table2 import MODEL
from offsupport.studies.tables import TABLES, TableOptions
from offsupport.testing import NETWORKS, Case, toy_images
from offsupport.testing.case import changed

ATTACKS = ("constant", "binary", "inverted", "repeat", "white-box", "adaptive")
TOY = NETWORKS["batch_norm"]


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()


def batch():
    draw = torch.Generator().manual_seed(1)
    return torch.rand(30, 3, 8, 8, generator=draw), torch.randint(3, (30,), generator=draw)


def attacker(attack, share=0.1):
    planner = Planner(TOY(), Case("minimal", TOY).wrap()) if attack == "adaptive" else None
    return Attacker(PoisonConfig(method="bn", dataset="digits-c", attack=attack, share=share), model(), planner)


@pytest.mark.parametrize("attack", ATTACKS)
def test_benign_images_are_untouched_and_the_others_are_images(attack):
    x, y = batch()
    mixed, good = attacker(attack).mix(x, y)
    assert torch.equal(mixed[good], x)
    bad = mixed[[i for i in range(len(mixed)) if i not in good.tolist()]]
    assert len(bad) == 3
    assert 0 <= bad.min() <= bad.max() <= 1


def test_without_an_attack_nothing_is_added():
    x, y = batch()
    mixed, good = attacker("none", 0.0).mix(x, y)
    assert len(mixed) == len(x)
    assert torch.equal(mixed[good], x)


def test_the_same_wrong_image_comes_again():
    x, y = batch()
    sender = attacker("repeat")
    first, second = sender.images(x, y, 2), sender.images(x.flip(0), y.flip(0), 2)
    assert torch.equal(first, second)
    assert model()(first[:1]).argmax() != y[(x == first[0]).flatten(1).all(1)][0]


def test_the_crafted_images_raise_the_loss_of_the_others_more_than_noise_does():
    x, y = batch()

    def loss(bad):
        net = model()
        net[1].train()
        with torch.no_grad():
            return float(cross_entropy(net(torch.cat([x, bad]))[: len(x)], y))

    noise = [torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    assert loss(attacker("white-box").images(x, y, 3)) > max(loss(each) for each in noise)


def settled(bad, victim):
    """The loss of the benign images after ``victim`` saw the same batch until nothing moves any more."""
    x, y = toy_images(30, seed=5)
    for _ in range(30):
        victim(torch.cat([x, bad]))
    with victim.norm_statistics.using("running"):
        return float(cross_entropy(victim.predict(x), y))


@pytest.mark.parametrize("trusted", [True, False])
def test_what_is_made_against_minimal_harms_it_more_than_noise_does(trusted):
    x, y = toy_images(30, seed=5)
    planner = Planner(TOY(), Case("minimal", TOY).wrap(trusted=trusted))
    before = planner.twin.snapshot()
    noise = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    crafted = planner.images(x, y, noise)
    assert not changed(before, planner.twin.snapshot())
    harms = [settled(bad, Case("minimal", TOY).wrap(trusted=trusted)) for bad in (noise, noise.round(), crafted)]
    assert max(harms) == harms[-1] > min(harms)


def test_the_plan_is_where_minimal_settles_when_the_batch_comes_again_and_again():
    x, y = toy_images(30, seed=5)
    bad, victim = torch.ones(3, 3, 8, 8), Case("minimal", TOY).wrap()
    bad[:, :, ::4] = 0.0  # a constant image would not be counted
    assert settled(bad, victim) == pytest.approx(float(Planner(TOY(), victim)._plan(x, y)(bad)), rel=0.02)


def test_a_method_without_a_bound_is_refused_as_not_trusted_before_anything_runs(tmp_path):
    config = PoisonConfig(method="tent", dataset="digits-c", model=MODEL, trusted=False)
    with pytest.raises(ConfigError, match="sets no bound"):
        prepare_poison([config], Place(Path(tmp_path)))


def test_every_method_meets_every_attack_and_share():
    cells = TABLES["poison"].cells("smoke", TableOptions())
    assert len(cells) == len(METHODS) * (1 + (len(ATTACKS) - 1) * len(SHARES)) + 3
    assert {cell.config["attack"] for cell in cells} == {"none", *ATTACKS}


def record(method, attack, share, wrong):
    config = PoisonConfig(method=method, dataset="digits-c", attack=attack, share=share, corruption="fog")
    images = pack(range(200), [i >= wrong for i in range(200)])
    cell = config.cell()
    return Record(cell.key, cell, {"domains": {"fog": {"images": images}}}, {}, {})


def test_costs_are_held_against_the_stream_without_an_attacker():
    found = [
        record("source", "none", 0.0, 100),
        record("minimal", "none", 0.0, 40),
        record("minimal", "binary", 0.1, 40),
        record("minimal", "constant", 0.1, 80),
        record("minimal", "white-box", 0.1, 60),
    ]
    assert {(row.column, round(row.value)) for row in rows(found)} >= {
        ("digits-c/binary-10", 20),
        ("digits-c/none", 50),
    }
    assert [claim.verdict for claim in claims(found)] == ["holds", "does-not-hold", "holds"]
