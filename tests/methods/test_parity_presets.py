"""Preset values against the published ones."""

from __future__ import annotations

import math

import pytest
from parity_check import network

import offsupport

pytestmark = pytest.mark.filterwarnings("ignore:eata without source statistics is ETA")
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
ADAM, SGD = {"optimizer": "adam", "lr": 1e-3}, {"optimizer": "sgd", "lr": 2.5e-4, "momentum": 0.9}
PUBLISHED = {
    ("tent", "cifar10"): ADAM,
    ("tent", "cifar100"): ADAM,
    ("tent", "imagenet"): SGD,
    ("eata", "cifar10"): ADAM | {"margin": 0.4, "redundancy": 0.4, "fisher_weight": 1.0},
    ("eata", "cifar100"): ADAM | {"margin": 0.4, "redundancy": 0.1, "fisher_weight": 1.0},
    ("eata", "imagenet"): SGD | {"margin": 0.4, "redundancy": 0.05, "fisher_weight": 2000.0},
    ("sar", "imagenet"): SGD | {"margin": 0.4, "rho": 0.05, "loss_decay": 0.9},
}


@pytest.mark.parametrize(("method", "preset"), PUBLISHED)
def test_published_values(method, preset):
    config = offsupport.adapt(network("batch", CLASSES[preset]), method, preset=preset).config
    for name, value in PUBLISHED[method, preset].items():
        assert getattr(config, name) == value, name


@pytest.mark.parametrize(("preset", "nats"), [("cifar10", 0.05), ("cifar100", 0.05), ("imagenet", 0.2)])
def test_sar_recovers_at_the_published_loss(preset, nats):
    config = offsupport.adapt(network("batch", CLASSES[preset]), "sar", preset=preset).config
    assert config.reset_below * math.log(CLASSES[preset]) == pytest.approx(nats, rel=0.1)
