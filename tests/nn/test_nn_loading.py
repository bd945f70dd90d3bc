import importlib
import re
import sys
import types

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.checkpoints import save_tensors
from offsupport.core.errors import ConfigError, FileError, ModelError
from offsupport.nn import Normalized, WithProjection, build_network, load_model, loading, projected
from offsupport.nn.inspect import best_layout
from offsupport.nn.loading import load_mae
from offsupport.nn.mae import mae
from offsupport.studies import models

NAME = "resnet18x0.0625"
X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = build_network(NAME, 7, "cifar10")
    model.train()
    model(X)  # running statistics that differ from the fresh ones
    return model.eval()


def supcon(weights, body="encoder.", classifier="fc.", projection="head."):
    """The layout of published code: encoder, classifier and projection under names of their own."""
    named = {}
    for name, value in weights.items():
        if name.startswith("projection."):
            named[projection + name.removeprefix("projection.")] = value
        elif name.startswith("fc."):
            named[classifier + name.removeprefix("fc.")] = value
        else:
            named[body + name] = value
    return named


def have_channels_last(model):
    """Tell of the 3x3 convolutions of a model whether their channels come last; of 1x1 both layouts are the same."""
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    return {w.is_contiguous(memory_format=torch.channels_last) for w in weights if w.shape[2] > 1}


@pytest.mark.parametrize(("network", "last"), [("resnet18x0.25", True), ("digits-small", True), (NAME, False)])
def test_channels_come_last_unless_a_layer_does_not_survive_it(tmp_path, network, last):
    """A strided 1x1 convolution of 4 channels ruins the heap there: see best_layout."""
    path = tmp_path / "model.safetensors"
    whole = build_network(network, 3, "cifar10")
    save_tensors(path, whole.state_dict(), {"network": network, "normalization": "cifar10"})
    assert have_channels_last(offsupport.load_model(f"file:{path}")) == {last}


@pytest.mark.parametrize(
    ("layer", "last"),
    [
        (nn.Conv2d(4, 8, 1, stride=2), False),
        (nn.Conv2d(4, 8, 1, stride=(1, 2)), False),
        (nn.Conv2d(12, 8, 1, stride=2), False),
        (nn.Conv2d(16, 8, 1, stride=2), True),
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv2d(3, 8, 3, stride=2), True),
        (nn.GroupNorm(2, 4), False),
    ],
)
def test_the_layers_that_do_not_survive_it(layer, last):
    assert best_layout(nn.Sequential(nn.Conv2d(3, 4, 3), layer)) == (
        torch.channels_last if last else torch.contiguous_format
    )


LAYOUTS = {
    "plain": lambda w: w,
    "data parallel": lambda w: {f"module.{name}": value for name, value in w.items()},
    "wrapped twice": lambda w: {f"module.model.{name}": value for name, value in w.items()},
    "semi-simclr": supcon,
    "semi-simclr, parallel inside": lambda w: supcon(w, "encoder.module."),
    "tttpp": lambda w: supcon(w, "ext.", "head.fc."),
    "shortcut": lambda w: {name.replace("downsample", "shortcut"): value for name, value in w.items()},
    "linear": lambda w: supcon(w, "", "linear."),
    "no counts": lambda w: {name: value for name, value in w.items() if "num_batches" not in name},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_usual_layouts_give_the_same_predictions(tmp_path, model, layout):
    torch.save({"model": LAYOUTS[layout](model.model.state_dict())}, tmp_path / "w.pth")
    loaded = load_model(f"file:{tmp_path / 'w.pth'}", network=NAME, normalization="cifar10")
    assert torch.equal(loaded(X), model(X))
    assert not loaded.training
    assert isinstance(loaded, Normalized)


@pytest.mark.parametrize("layout", ["semi-simclr", "data parallel"])
def test_a_projection_head_is_kept(tmp_path, model, layout):
    whole = projected(model, 16)
    weights = {**model.model.state_dict(), **{f"projection.{k}": v for k, v in whole.projection.state_dict().items()}}
    torch.save(LAYOUTS[layout](weights), tmp_path / "w.pth")
    loaded = load_model(f"file:{tmp_path / 'w.pth'}", network=NAME, normalization="cifar10")
    assert isinstance(loaded, WithProjection)
    for ours, theirs in zip(loaded.both(X), whole.both(X), strict=True):
        assert torch.equal(ours, theirs)


def test_our_own_files_say_what_they_are(tmp_path, model):
    path = tmp_path / "model.safetensors"
    save_tensors(path, projected(model).state_dict(), {"network": NAME, "normalization": "cifar10"})
    loaded = offsupport.load_model(f"file:{path}")
    assert isinstance(loaded, WithProjection)
    assert torch.equal(loaded(X), model(X))


def test_what_does_not_fit_is_named(tmp_path, model):
    path = tmp_path / "w.pth"
    weights = model.model.state_dict()

    def load(network=NAME, normalization="cifar10"):
        return load_model(f"file:{path}", network=network, normalization=normalization)

    torch.save(weights, path)
    with pytest.raises(ModelError, match="does not say which network"):
        load(None)
    with pytest.raises(
        FileError, match=r"holds conv1\.weight of shape \(4, 3, 3, 3\), and resnet18 has \(64, 3, 3, 3\)"
    ):
        load("resnet18")
    with pytest.raises(FileError, match=r"lacks layer1\.0\.conv3\.weight and \d+ more"):
        load("resnet26x0.0625")
    torch.save({**weights, "extra": torch.ones(1)}, path)
    with pytest.raises(FileError, match="also holds extra"):
        load()
    torch.save({name: weights[name] for name in weights if "fc" not in name}, path)
    with pytest.raises(FileError, match="holds no classifier"):
        load()
    torch.save(weights, path)
    with pytest.raises(ConfigError, match="Did you mean 'resnet18'"):
        load("resnt18")
    with pytest.raises(ConfigError, match="Unknown normalisation 'cifar'"):
        load(normalization="cifar")


@pytest.mark.parametrize(
    "name",
    ["resnet18x0.125", "resnet50x0.125-imagenet", "resnet18x0.25-gn", "resnet26x0.5-imagenet-gn", "digits-small"],
)
def test_a_network_that_was_not_said_or_mistaken_is_told_by_its_layers(tmp_path, name):
    """Published weights of ImageNet begin with a stem that resnet50 alone does not have: few would know its name."""
    path = tmp_path / "w.pth"
    torch.save(build_network(name, 7, "imagenet").model.state_dict(), path)
    for network in (None, "resnet18"):
        with pytest.raises((ModelError, FileError), match=f"By its layers it is {name}[:;] .*--network {name} "):
            load_model(f"file:{path}", network=network, normalization="imagenet" if network else None)
    assert load_model(f"file:{path}", network=name, normalization="imagenet")


def test_a_network_that_none_of_ours_resembles_is_not_guessed(tmp_path, model):
    path = tmp_path / "w.pth"
    weights = model.model.state_dict()
    for change in ({"extra.weight": torch.ones(3)}, {"conv1.weight": torch.ones(())}, {"fc.bias": torch.ones(())}):
        torch.save({**weights, **change}, path)
        with pytest.raises(ModelError, match=r"Say it: --network resnet50-imagenet --normalization imagenet"):
            load_model(f"file:{path}")


@pytest.mark.parametrize("name", ["resnet18", "zoo:", "hub:resnet18", "", "x" * 300, "x\0", "\ud800"])
def test_names_without_a_kind_are_refused(name):
    with pytest.raises(ConfigError, match="names no model"):
        load_model(name)


def test_a_path_without_its_kind_is_understood(tmp_path):
    path = tmp_path / "weights.pth"
    for load in (load_model, lambda name: models.source_model(name, tmp_path)):
        path.write_bytes(b"")
        with pytest.raises(FileError, match=re.escape(str(path))):  # it holds no weights, whatever it is called
            load(str(path))
        torch.save({"weight": torch.zeros(3)}, path)
        with pytest.raises(ConfigError) as error:
            load(str(path))
        assert f"Write file:{path} --network NAME" in error.value.remedy
    with pytest.raises(ConfigError, match="Unknown model 'digits-smal'") as error:
        models.source_model("digits-smal", tmp_path)
    assert "'digits-small'" in error.value.remedy
    assert "file:PATH" in error.value.remedy


def test_an_unknown_zoo_model_is_refused():
    with pytest.raises(ConfigError, match="The zoo has no model 'nothing'"):
        load_model("zoo:nothing")


def test_timm_models_come_with_their_own_normalisation(monkeypatch):
    stub = types.ModuleType("timm")
    inner = nn.Flatten()
    inner.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    asked = {}
    stub.list_models = lambda: ["vit_base"]
    stub.create_model = lambda name, **options: asked.update(name=name, **options) or inner
    monkeypatch.setitem(sys.modules, "timm", stub)
    model = load_model("timm:vit_base.augreg")
    assert asked == {"name": "vit_base.augreg", "pretrained": True}
    assert torch.equal(model(torch.ones(1, 3, 1, 1)), torch.full((1, 3), 2.0))
    with pytest.raises(ConfigError, match="timm has no model 'vit_bose'"):
        load_model("timm:vit_bose")


def test_without_timm_the_remedy_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"offsupport\[timm\]"):
        load_model("timm:vit_base")
    importlib.invalidate_caches()


def test_widths_and_stems_by_name():
    small, large = build_network("resnet18x0.25", 10, "cifar10"), build_network("resnet50-imagenet", 5, "imagenet")
    assert small.model.conv1.out_channels == 16
    assert large.model.conv1.kernel_size == (7, 7)
    assert large.model.fc.out_features == 5
    with pytest.raises(ConfigError, match="has no channels"):
        build_network("resnet18x0.001", 10, "cifar10")


# Files that say one thing and hold another.


def saved(tmp_path, weights, **manifest):
    path = tmp_path / "model.safetensors"
    save_tensors(path, weights, {"network": NAME, "normalization": "cifar10", **manifest})
    return f"file:{path}"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.conv1.weight", lambda t: t * float("nan"), r"108 non-finite of 108 values in conv1\.weight"),
        ("model.bn1.running_var", lambda t: t + float("inf"), r"4 non-finite of 4 values in bn1\.running_var"),
        ("model.conv1.weight", lambda t: t.double() * 1e300, r"non-finite of 108 values in conv1\.weight"),
        ("model.conv1.weight", lambda t: t != 0, r"conv1\.weight as bool, and .* has float32"),
        ("model.fc.weight", lambda t: t.int(), r"fc\.weight as int32, and .* has float32"),
        ("model.bn1.weight", lambda t: t[:1].clone(), r"bn1\.weight of shape \(1,\), and .* has \(4,\)"),
        ("model.fc.bias", lambda t: t[0].clone(), r"classifier has fc\.bias of shape \(\)"),
        (
            "model.fc.bias",
            lambda t: torch.zeros(10**6),
            r"fc\.bias of shape \(1000000,\) and weights of shape \(7, 32\)",
        ),
    ],
)
def test_weights_that_cannot_be_are_refused_by_name(tmp_path, model, name, change, message):
    weights = model.state_dict()
    with pytest.raises(FileError, match=message) as error:
        load_model(saved(tmp_path, weights | {name: change(weights[name])}))
    assert error.value.remedy


@pytest.mark.parametrize(
    "manifest", [{"network": 5}, {"network": ["resnet18"]}, {"normalization": {}}, {"network": None}]
)
def test_a_file_that_names_no_network_is_said(tmp_path, model, manifest):
    lacking = "how its network standardises images" if "normalization" in manifest else "which network"
    with pytest.raises(ModelError, match=f"does not say {lacking}"):
        load_model(saved(tmp_path, model.state_dict(), **manifest))


@pytest.mark.parametrize("factor", ["65", "9999", "9" * 400])
def test_a_network_that_no_memory_holds_is_not_built(tmp_path, model, factor):
    with pytest.raises(ConfigError, match="too wide"):
        load_model(saved(tmp_path, model.state_dict(), network=f"resnet18x{factor}"))
    with pytest.raises(FileError, match=r"holds conv1\.weight of shape"):
        load_model(saved(tmp_path, model.state_dict(), network="resnet18x64"))


@pytest.mark.parametrize(
    ("size", "classes", "message"), [("vit-l/16", 2, "tensors of the encoder are missing"), ("tiny/4", 10**5, "holds")]
)
def test_an_autoencoder_larger_than_its_file_is_not_built(tmp_path, monkeypatch, size, classes, message):
    """Weights of one column name as many classes as they like; a layer for them has many columns."""
    devices = []

    def made(*given, **options):
        devices.append(torch.zeros(0).device.type)
        return mae(*given, **options)

    monkeypatch.setattr(loading, "mae", made)
    head = {"classifier.1.weight": torch.zeros(classes, 1), "classifier.1.bias": torch.zeros(classes)}
    own = {} if size != "tiny/4" else mae(size).state_dict()
    name = saved(tmp_path, {"cls_token": torch.zeros(1), **own, **head}, network=f"mae-{size}")
    for load in (load_model, lambda name: load_mae(name.removeprefix("file:"), size)):
        with pytest.raises(FileError, match=message):
            load(name)
    assert devices == ["meta", "meta"]


@pytest.mark.parametrize("branch", ["", ".", "layer9", "model..", "__class__", "forward", "\0", "x" * 10**5, 5, []])
def test_a_place_where_no_rotation_head_can_branch_off_is_said(tmp_path, model, branch):
    turns = {f"rotation.{name}": torch.zeros(4, 4) for name in ("0.weight", "weight")}
    with pytest.raises(offsupport.OffsupportError):
        load_model(saved(tmp_path, model.state_dict() | turns, branch=branch))


def test_tensors_under_two_names_and_half_of_a_projection_are_refused(tmp_path, model):
    weights = model.state_dict()
    with pytest.raises(FileError, match="twice"):
        load_model(saved(tmp_path, weights | {"module.fc.bias": weights["model.fc.bias"] + 1}))
    with pytest.raises(FileError, match="part of a projection head"):
        load_model(saved(tmp_path, weights | {"projection.0.weight": torch.ones(3, 3)}))
    with pytest.raises(FileError, match=r"its projection head has \(3,\)|lacks 0"):
        load_model(saved(tmp_path, weights | {"projection.2.weight": torch.ones(3, 3)}))


def test_counts_of_batches_in_another_type_do_not_matter(tmp_path, model):
    halved = {name: tensor.half() for name, tensor in model.state_dict().items()}
    assert torch.allclose(load_model(saved(tmp_path, halved))(X), model(X), atol=1e-2)
