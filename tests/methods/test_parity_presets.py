"""Preset values against the published ones."""

from __future__ import annotations

import math

import pytest
from parity_check import batches, network

import offsupport
from offsupport.methods import METHODS
from offsupport.nn import projected, with_rotation_head

pytestmark = pytest.mark.filterwarnings("ignore:eata without source statistics is ETA")
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}
ADAM, SGD = {"optimizer": "adam", "lr": 1e-3}, {"optimizer": "sgd", "lr": 2.5e-4, "momentum": 0.9}
FOLLOWING = {"optimizer": "sgd", "momentum": 0.9, "bn_momentum": 0.1}
TTAC = FOLLOWING | {"confidence": 0.9, "class_min": 16, "global_length": 1280, "ridge": 1 / 30}
TTTPP = FOLLOWING | {"temperature": 0.5, "base_temperature": 0.07, "mean_weight": 0.5, "chance": "queue"}
TESLA = {"views": 4, "queue": 0, "neighbours": 1, "policy_length": 2, "policy_lr": 0.1, "bn_momentum": 0.1}
TESLA |= {"lambda_kl": 1.0, "lambda_norm": 1.0, "rotation": "constant", "sampling": "uniform"}
TESLA_S = {"align_weight": 0.05, "moment_window": 1280, "ridge": 1 / 30}
PUBLISHED = {
    ("tent", "cifar10"): ADAM,
    ("tent", "cifar100"): ADAM,
    ("tent", "imagenet"): SGD,
    ("eata", "cifar10"): ADAM | {"margin": 0.4, "redundancy": 0.4, "fisher_weight": 1.0},
    ("eata", "cifar100"): ADAM | {"margin": 0.4, "redundancy": 0.1, "fisher_weight": 1.0},
    ("eata", "imagenet"): SGD | {"margin": 0.4, "redundancy": 0.05, "fisher_weight": 2000.0},
    ("sar", "imagenet"): SGD | {"margin": 0.4, "rho": 0.05, "loss_decay": 0.9},
    ("ttac", "cifar10"): TTAC | {"lr": 1e-2, "scale": 0.05, "class_length": 128, "class_prior": 0},
    ("ttac", "cifar100"): TTAC | {"lr": 1e-3, "scale": 0.5, "class_length": 64, "class_terms": "mean"},
    ("ttac", "imagenet"): TTAC | {"lr": 1e-3, "scale": 0.05, "class_prior": 64, "class_terms": "sum"},
    ("tttpp", "cifar10"): TTTPP | {"lr": 1e-2, "queue": 1536, "feature_scale": 0.05, "projection_scale": 0.2},
    ("tttpp", "cifar100"): TTTPP | {"lr": 1e-4, "queue": 2048, "feature_scale": 5.0, "projection_scale": 20.0},
    ("memo", "cifar10"): {"optimizer": "sgd", "lr": 5e-3, "copies": 32, "steps": 1},
    ("memo", "imagenet"): {"optimizer": "sgd", "lr": 2.5e-4, "copies": 64, "steps": 1, "prior": 16.0},
    ("tesla", "cifar10"): ADAM | TESLA | {"decay": 0.99},
    ("tesla", "cifar100"): ADAM | TESLA | {"decay": 0.99},
    ("tesla", "imagenet"): TESLA | {"optimizer": "sgd", "lr": 1e-3, "momentum": 0.9, "decay": 0.9},
    ("tesla-s", "cifar10"): ADAM | TESLA | TESLA_S | {"decay": 0.99},
    ("tesla-s", "cifar100"): ADAM | TESLA | TESLA_S | {"decay": 0.99},
    ("tesla-s", "imagenet"): TESLA | TESLA_S | {"optimizer": "sgd", "lr": 1e-3, "momentum": 0.9, "decay": 0.9},
}
MEMORY = {"capacity": 64, "update_every": 64}
PUBLISHED |= {
    ("lame", "cifar10"): {"affinity": "rbf", "neighbours": 5, "rounds": 100, "tolerance": 1e-8, "weight": 1.0},
    ("t3a", "cifar10"): {"supports": 100},
    ("t3a", "imagenet"): {"supports": 20},
    ("rotta", "cifar10"): ADAM
    | MEMORY
    | {"decay": 0.999, "bn_momentum": 0.05, "age_weight": 1.0, "entropy_weight": 1.0},
    ("note", "cifar10"): MEMORY | {"optimizer": "adam", "lr": 1e-4, "bn_momentum": 0.01},
    ("rdumb", "imagenet"): SGD | {"margin": 0.4, "redundancy": 0.05},
    ("roid", "cifar10"): ADAM | {"temperature": 1 / 3, "source_decay": 0.99, "prior_correction": "paper"},
    ("roid", "imagenet"): SGD | {"prediction_decay": 0.9, "weighting": True, "consistency": True},
    ("cmf", "imagenet"): SGD | {"alpha": 0.99, "gamma": 0.99, "q": 0.005},
    ("deyo", "imagenet"): SGD | {"margin": 0.5, "drop": 0.3, "weight_margin": 0.4, "patches": 4},
    ("cotta", "cifar10"): ADAM | {"sure": 0.92, "restore": 0.01, "views": 32, "decay": 0.999, "loss": "cross_entropy"},
    ("cotta", "cifar100"): ADAM | {"sure": 0.72, "restore": 0.01},
    ("cotta", "imagenet"): {"optimizer": "sgd", "lr": 1e-2, "sure": 0.1, "restore": 0.001, "loss": "symmetric"},
    ("petta", "cifar10"): ADAM | MEMORY | {"pull": 10.0, "anchor": 1.0, "mean_rate": 0.05, "loss": "symmetric"},
    ("rpl", "imagenet"): {"optimizer": "sgd", "lr": 5e-4, "q": 0.8},
    ("neo", "imagenet"): {"mean": "all", "prior": 0.0},
    ("rmt", "cifar10"): ADAM | {"decay": 0.999, "contrast": 1.0, "temperature": 0.1, "projector": 128},
    ("rmt", "imagenet"): {"optimizer": "sgd", "lr": 1e-2, "momentum": 0.9},
    ("ttt", "cifar10"): {"optimizer": "sgd", "lr": 1e-3, "momentum": 0.0, "copies": 32, "tune": "encoder-and-head"},
    ("actmad", "cifar10"): {"optimizer": "sgd", "lr": 1e-2, "maps": "position"},
    ("actmad", "cifar100"): {"optimizer": "sgd", "lr": 1e-3},
    ("actmad", "imagenet"): {"optimizer": "sgd", "lr": 2.5e-4},
    ("adacontrast", "cifar10"): {"optimizer": "sgd", "lr": 2e-4, "bank": 16384, "queue": 16384, "neighbours": 10},
    ("adacontrast", "imagenet"): {"lr": 2e-4, "temperature": 0.07, "decay": 0.999, "vote_after": 1024},
    ("deyo", "cifar10"): ADAM | {"margin": 0.5, "drop": 0.2},
    ("petta", "imagenet"): ADAM | {"loss": "cross_entropy"},
    ("rdumb", "cifar100"): ADAM | {"redundancy": 0.4},
    ("rpl", "cifar10"): ADAM | {"q": 0.8},
    ("t3a", "cifar100"): {"supports": 20},
}
FOA = {"prompts": 3, "population": 27, "weight": 0.4, "shift_decay": 0.9}
SOURCE = batches((20, 20), seed=1)


@pytest.mark.parametrize(("method", "preset"), PUBLISHED)
def test_published_values(method, preset):
    net = network("batch", CLASSES[preset])
    heads = {"tttpp": projected, "ttt": with_rotation_head}
    net = heads[method](net).double() if method in heads else net
    aligns = METHODS[method].info.source == "required"
    stats = offsupport.source_stats(net, SOURCE, method=method) if aligns else None
    config = offsupport.adapt(net, method, preset=preset, source=stats).config
    for name, value in PUBLISHED[method, preset].items():
        assert getattr(config, name) == value, name


@pytest.mark.parametrize(("preset", "nats"), [("cifar10", 0.05), ("cifar100", 0.05), ("imagenet", 0.2)])
def test_sar_recovers_at_the_published_loss(preset, nats):
    config = offsupport.adapt(network("batch", CLASSES[preset]), "sar", preset=preset).config
    assert config.reset_below * math.log(CLASSES[preset]) == pytest.approx(nats, rel=0.1)


@pytest.mark.parametrize("preset", ["cifar10", "imagenet"])
def test_foa_searches_as_published(preset):
    """A vision transformer is what it needs, so that it has no place in the table above."""
    config = METHODS["foa"].config_class(**METHODS["foa"].presets[preset])
    assert {name: getattr(config, name) for name in FOA} == FOA
