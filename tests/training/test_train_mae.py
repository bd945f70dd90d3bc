"""Objectives of masked autoencoders, the optimiser they are trained by, and runs that are taken up."""

import json

import pytest
import torch
from torch.nn import functional as F

from offsupport.core.errors import ConfigError
from offsupport.nn import build_network
from offsupport.training import read_recipe
from offsupport.training.loop import Examples, begin, pace
from offsupport.training.objectives import make_objective
from offsupport.training.recipe import make_recipe
from offsupport.training.run import ALONE, train


def objective(name, seed=0, **options):
    torch.manual_seed(seed)
    return make_objective(name, build_network("mae-digits/8", 10, "digits"), options)


def batch(n=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, 32, 32, generator=generator), torch.randint(10, (n,), generator=generator)


def test_reconstruction_is_the_loss_under_masks_that_change_with_the_step():
    made, (x, y) = objective("mae"), batch()
    first = made([x], y)
    inner = made.model.model
    assert torch.equal(first.value, inner.loss((x - 0.5) / 0.5, made._masks(6, 16)))
    assert torch.equal(made([x], y).value, first.value)
    made.after_step()
    assert not torch.equal(made([x], y).value, first.value)
    assert not made.classifies
    first.value.backward()
    assert all(p.grad is None for p in inner.classifier.parameters())
    assert inner.decoder_pred.weight.grad is not None


def test_the_joint_loss_is_the_sum_of_both():
    made, (x, y) = objective("mae-joint", classify=0.3, smoothing=0.1), batch()
    loss = made([x], y)
    logits = made.model(x)
    expected = made.reconstruction(x) + 0.3 * F.cross_entropy(logits, y, label_smoothing=0.1)
    torch.testing.assert_close(loss.value, expected)
    assert torch.equal(loss.right, logits.argmax(1) == y)


def test_the_head_learns_from_tokens_that_are_kept():
    made, (x, y) = objective("mae-head", smoothing=0.0), batch()
    pixels = (255 * x).round().to(torch.uint8)
    kept = made.prepare(Examples(pixels, y))
    tokens, labels = kept.batch(torch.arange(6))
    assert tokens.dtype == torch.float32
    assert kept.images.dtype == torch.float16
    loss = made([tokens], labels)
    torch.testing.assert_close(loss.value, F.cross_entropy(made.model(pixels / 255), y), rtol=1e-3, atol=1e-3)
    loss.value.backward()
    moved = {name.split(".")[1] for name, p in made.model.named_parameters() if p.grad is not None}
    assert moved == {"classifier"}


def test_a_head_starts_from_a_pre_trained_encoder_and_stays_fresh_itself():
    trained, made = objective("mae", seed=1), objective("mae-head", seed=2)
    own = made.head.head.weight.clone()
    made.start_from(trained.model.state_dict())
    assert torch.equal(made.model.model.norm.weight, trained.model.model.norm.weight)
    assert torch.equal(made.model.model.decoder_pred.weight, trained.model.model.decoder_pred.weight)
    assert torch.equal(made.head.head.weight, own)


def test_the_rate_warms_up_and_falls():
    recipe = read_recipe("cifar10-mae-tiny-encoder")
    rates = [pace(recipe, step, 10).lr for step in range(10 * recipe.epochs)]
    top = len(rates) // 10
    assert rates.index(max(rates)) in (top - 1, top)
    assert max(rates) == pytest.approx(recipe.lr)
    assert rates[0] == pytest.approx(recipe.lr / top)
    assert rates[-1] < 1e-3 * recipe.lr
    assert all(a > b for a, b in zip(rates[top:], rates[top + 1 :], strict=False))


def test_adamw_decays_matrices_and_not_vectors():
    made = objective("mae-joint")
    run = begin(read_recipe("digits-mae-joint"), made, 0, ALONE)
    decayed, plain = run.optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.05, 0.0)
    assert all(p.dim() > 1 for p in decayed["params"])
    assert all(p.dim() == 1 for p in plain["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(made.parameters()))


def quick(folder, objective, **changes):
    """Write a recipe of two short epochs, and return its path."""
    settings = {"about": "", "dataset": "digits", "network": "mae-digits/8", "objective": objective, "epochs": 2}
    settings |= {"batch_size": 64, "epoch_images": 256, "optimizer": "adamw", "lr": 1e-3, "schedule": "warm-up"}
    path = folder / f"{objective}.yaml"
    path.write_text(json.dumps({**settings, "channels_last": False, **changes}))
    return str(path)


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("mae", {"views": "shift"}),
        ("mae-head", {"start": "encoder"}),
        ("mae-joint", {"start": "encoder", "views": "shift"}),
        ("supervised", {"start": "encoder", "views": "shift"}),
    ],
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(objective, changes, tmp_path, monkeypatch):
    if "start" in changes:
        train(quick(tmp_path, "mae", epochs=1), out=tmp_path / "encoder")
    path = quick(tmp_path, objective, **changes)
    whole = train(path, out=tmp_path / "whole")
    from offsupport.training import run as module

    real = module.epochs

    def one_epoch(*args, **kwargs):
        yield next(real(*args, **kwargs))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "epochs", one_epoch)
    with pytest.raises(KeyboardInterrupt):
        train(path, out=tmp_path / "parts")
    monkeypatch.setattr(module, "epochs", real)
    parts = train(path, out=tmp_path / "parts")
    assert parts["weights_sha256"] == whole["weights_sha256"]
    assert (whole["test"] is None) == (objective == "mae")
    assert [line["epoch"] for line in parts["log"]] == [1, 2]


@pytest.mark.parametrize("family", ["digits-mae", "cifar10-mae-tiny"])
def test_recipes_form_a_family(family):
    first = read_recipe(f"{family}-encoder")
    assert (first.objective, first.start) == ("mae", None)
    for stage, name in {"": "mae-head", "-joint": "mae-joint", "-finetune": "supervised"}.items():
        recipe = read_recipe(family + stage)
        assert (recipe.objective, recipe.start, recipe.network) == (name, f"{family}-encoder", first.network)
        make_objective(recipe.objective, build_network(recipe.network, 10, recipe.dataset), recipe.options)
    # Tokens are computed once, so the images of a head cannot vary.
    assert read_recipe(family).views == "none"


@pytest.mark.parametrize("name", ["mae", "mae-joint"])
@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.5])
def test_a_ratio_that_leaves_nothing_to_learn_is_refused(name, ratio):
    with pytest.raises(ConfigError, match=rf"mask ratio of {ratio}.*above 0 and below 1"):
        objective(name, mask_ratio=ratio)


def test_recipes_reject_an_unknown_optimizer():
    values = {"about": "", "dataset": "digits", "network": "mae-digits/8", "epochs": 1, "batch_size": 1, "lr": 1.0}
    with pytest.raises(ConfigError, match="'sgd' or 'adamw'"):
        make_recipe({**values, "optimizer": "lion"}, "recipe 'x'")
