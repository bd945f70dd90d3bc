"""The poisoning table: what an attacker sends, where it hides, and what is scored."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from offsupport.bench.store import Record
from offsupport.results.correctness import pack
from offsupport.studies.ours.poison import METHODS, SHARES, Attacker, PoisonConfig, claims, rows
from offsupport.studies.tables import TABLES, TableOptions

ATTACKS = ("constant", "binary", "inverted", "repeat", "white-box")


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()


def batch():
    draw = torch.Generator().manual_seed(1)
    return torch.rand(30, 3, 8, 8, generator=draw), torch.randint(3, (30,), generator=draw)


def attacker(attack, share=0.1):
    return Attacker(PoisonConfig(method="bn", dataset="digits-c", attack=attack, share=share), model())


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


def test_every_method_meets_every_attack_and_share():
    cells = TABLES["poison"].cells("smoke", TableOptions())
    assert len(cells) == len(METHODS) * (1 + len(ATTACKS) * len(SHARES))
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
