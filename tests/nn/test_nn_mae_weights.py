"""Masked autoencoders from files, in the layout of the public checkpoints."""

import argparse

import pytest
import torch
from safetensors.torch import save_file

from offsupport.core.checkpoints import save_tensors
from offsupport.core.errors import FileError
from offsupport.core.weights import read_weights
from offsupport.nn import build_network, load_mae, load_model, mae, resnet18
from offsupport.nn.loading import load_weights, our_names

SMALL = {"image": 8, "patch": 4, "dim": 8, "depth": 2, "heads": 2, "decoder_dim": 4, "decoder_depth": 1}
SMALL |= {"decoder_heads": 2, "head_dim": 8, "head_depth": 1, "head_heads": 2}


def block(prefix, dim):
    """The tensors of one block as published."""
    shapes = {
        "norm1.weight": (dim,),
        "norm1.bias": (dim,),
        "attn.qkv.weight": (3 * dim, dim),
        "attn.qkv.bias": (3 * dim,),
    }
    shapes |= {"attn.proj.weight": (dim, dim), "attn.proj.bias": (dim,), "norm2.weight": (dim,), "norm2.bias": (dim,)}
    shapes |= {"mlp.fc1.weight": (4 * dim, dim), "mlp.fc1.bias": (4 * dim,)}
    shapes |= {"mlp.fc2.weight": (dim, 4 * dim), "mlp.fc2.bias": (dim,)}
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def public_layout():
    """Random weights under every name of a published MAE checkpoint with decoder, for the small shape."""
    shapes = {"cls_token": (1, 1, 8), "pos_embed": (1, 5, 8), "mask_token": (1, 1, 4), "decoder_pos_embed": (1, 5, 4)}
    shapes |= {"patch_embed.proj.weight": (8, 3, 4, 4), "patch_embed.proj.bias": (8,)}
    shapes |= {"norm.weight": (8,), "norm.bias": (8,), "decoder_embed.weight": (4, 8), "decoder_embed.bias": (4,)}
    shapes |= {"decoder_norm.weight": (4,), "decoder_norm.bias": (4,), "decoder_pred.weight": (48, 4)}
    shapes |= {"decoder_pred.bias": (48,)} | block("decoder_blocks.0", 4)
    shapes |= block("blocks.0", 8) | block("blocks.1", 8)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


def test_a_public_checkpoint_loads_with_nothing_missing(tmp_path):
    weights = public_layout()
    path = tmp_path / "mae.pth"
    torch.save({"model": weights, "epoch": 800, "args": argparse.Namespace(lr=1e-3)}, path)
    model = load_mae(path, **SMALL)
    assert set(model.state_dict()) == set(weights)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in weights.items())
    assert model.classifier is None
    with_head = load_mae(path, classes=3, **SMALL)
    assert with_head(torch.rand(1, 3, 8, 8)).shape == (1, 3)


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
@pytest.mark.parametrize("head", ["vit", "linear"])
def test_a_model_goes_through_a_file(kind, head, tmp_path):
    torch.manual_seed(0)
    model, path = mae("tiny/4", 3, head, **SMALL).eval(), tmp_path / f"model.{kind}"
    if kind == "pth":
        torch.save(model.state_dict(), path)
    else:
        save_file(model.state_dict(), path)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(load_mae(path, **SMALL).eval()(x), model(x))


def test_the_head_of_a_published_linear_probe_is_the_classifier(tmp_path):
    probe = {"head.0.running_mean": torch.zeros(8), "head.0.running_var": torch.ones(8)}
    probe |= {
        "head.0.num_batches_tracked": torch.tensor(5),
        "head.1.weight": torch.rand(7, 8),
        "head.1.bias": torch.rand(7),
    }
    torch.save({"model": {**public_layout(), **probe}}, tmp_path / "probe.pth")
    model = load_mae(tmp_path / "probe.pth", **SMALL)
    assert torch.equal(model.classifier[1].bias, probe["head.1.bias"])


def test_wrappers_leave_no_trace(tmp_path):
    torch.save({"state_dict": {f"module.{k}": v for k, v in public_layout().items()}}, tmp_path / "a.pth")
    assert set(our_names(read_weights(tmp_path / "a.pth")[0])) == set(public_layout())


def test_a_checkpoint_without_a_decoder_says_what_is_missing_and_what_makes_it(tmp_path):
    weights = {k: v for k, v in public_layout().items() if not k.startswith(("decoder", "mask_token"))}
    torch.save(weights, tmp_path / "encoder.pth")
    with pytest.raises(FileError, match=r"no decoder.*tensors are missing.*offsupport train cifar10-mae-tiny-encoder"):
        load_mae(tmp_path / "encoder.pth", **SMALL)


def test_other_networks_are_refused(tmp_path):
    with pytest.raises(FileError, match=r"blocks.0.*Is it another network"):
        load_weights(
            mae("tiny/4", **SMALL),
            {k: v for k, v in public_layout().items() if "blocks.0." not in k or "dec" in k},
            "it",
        )
    with pytest.raises(FileError, match="which this network does not have"):
        load_weights(mae("tiny/4", **SMALL), {**public_layout(), "fc.weight": torch.zeros(1)}, "it")
    torch.save(public_layout(), tmp_path / "mae.pth")
    with pytest.raises(FileError, match=r"of shape .* and this network has"):
        load_mae(tmp_path / "mae.pth", **{**SMALL, "patch": 2})
    with pytest.raises(FileError, match="There is no file"):
        load_mae(tmp_path / "nothing.pth")


@pytest.mark.parametrize("head", ["vit", "linear"])
def test_a_part_of_a_classifier_is_refused_and_none_of_it_is_not(head, tmp_path):
    torch.manual_seed(0)
    weights, path = mae("tiny/4", 3, head, **SMALL).state_dict(), tmp_path / "model.pth"
    names = [name for name in weights if name.startswith("classifier.")]
    needed = [name for name in names if not name.endswith("num_batches_tracked")]
    for absent in needed:
        torch.save({name: value for name, value in weights.items() if name != absent}, path)
        with pytest.raises(FileError, match=rf"part of a classifier: 1 tensors.* {absent}.*train a new one"):
            load_mae(path, **SMALL)
    torch.save({name: value for name, value in weights.items() if name not in names}, path)
    assert load_mae(path, classes=5, **SMALL)(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_a_file_that_does_not_count_its_batches_loads(tmp_path):
    weights = mae("tiny/4", 3, "linear", **SMALL).state_dict()
    weights["classifier.0.running_mean"] += 1
    del weights["classifier.0.num_batches_tracked"]
    torch.save(weights, tmp_path / "old.pth")
    loaded = load_mae(tmp_path / "old.pth", **SMALL)
    assert torch.equal(loaded.classifier[0].running_mean, weights["classifier.0.running_mean"])


def test_the_weights_of_a_resnet_are_no_autoencoder(tmp_path):
    torch.save(resnet18(width=4).state_dict(), tmp_path / "resnet.pth")
    with pytest.raises(FileError, match=r"not a masked autoencoder.*another network"):
        load_mae(tmp_path / "resnet.pth")
    with pytest.raises(FileError, match=r"not a masked autoencoder.*another network"):
        load_model(f"file:{tmp_path / 'resnet.pth'}", network="mae-digits/8", normalization="digits")


def test_load_model_takes_autoencoders_that_say_what_they_are(tmp_path):
    torch.manual_seed(0)
    model = build_network("mae-digits/8", 10, "digits").eval()
    path = tmp_path / "model.safetensors"
    save_tensors(path, model.state_dict(), {"network": "mae-digits/8", "normalization": "digits"})
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load_model(f"file:{path}")(x), model(x))
    weights = {name: value for name, value in model.state_dict().items() if "classifier" not in name}
    save_tensors(path, weights, {"network": "mae-digits/8", "normalization": "digits"})
    with pytest.raises(FileError, match=r"holds no classifier.*cifar10-mae-tiny"):
        load_model(f"file:{path}")
