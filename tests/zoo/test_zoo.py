import os
from pathlib import Path

import pytest

import offsupport
from offsupport import zoo
from offsupport.core.checkpoints import load_tensors, tensors_sha256
from offsupport.core.errors import ConfigError, FileError
from offsupport.core.files import sha256_file
from offsupport.nn import WithProjection
from offsupport.training import read_recipe
from offsupport.training.loop import Examples, correct

NAMES = zoo.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_card_fits_its_weights_and_its_recipe(name):
    card = zoo.card(name)
    path = zoo.folder(name) / "model.safetensors"
    assert card["name"] == name
    assert card["file_sha256"] == sha256_file(path)
    assert path.stat().st_size <= 4 << 20
    assert card["weights_sha256"] == tensors_sha256(load_tensors(path)[0])
    assert card["recipe"] == read_recipe(name).settings()
    assert card["command"].startswith(f"offsupport train {name} ")
    low, high = card["test"]["ci95"]
    assert low < card["test"]["accuracy"] < high
    assert card["test"]["n"] == {"cifar10": 10_000, "digits": 599}[card["recipe"]["dataset"]]
    assert len(card["log"]) == card["epochs"]


@pytest.mark.parametrize("name", NAMES)
def test_the_models_load(name):
    model = offsupport.load_model(f"zoo:{name}")
    assert isinstance(model, WithProjection) == (name == "cifar10-resnet18x0.25-joint")
    assert not model.training


def test_a_short_name_leads_to_the_best_of_the_models_it_may_mean():
    with pytest.raises(ConfigError, match=r"Did you mean 'cifar10-resnet18x0\.25-supervised'"):
        offsupport.load_model("zoo:cifar10-resnet18")
    with pytest.raises(ConfigError, match="Did you mean 'cifar10-mae-tiny-joint'"):
        offsupport.load_model("zoo:cifar10-mae-t")
    with pytest.raises(ConfigError, match="Did you mean 'digits-small'"):
        offsupport.load_model("zoo:digit-smal")


def test_the_accuracy_of_the_digits_network_is_measured_again():
    card, test = zoo.card("digits-small"), offsupport.data.load("digits", split="test")
    assert test.sha256 == card["data"]["test_sha256"]
    right = correct(offsupport.load_model("zoo:digits-small"), Examples.of(test))
    assert right / len(test) == pytest.approx(card["test"]["accuracy"], abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("cifar10")])
def test_the_accuracy_on_the_card_is_measured_again(name):
    card = zoo.card(name)
    root, dataset = Path(os.environ.get("OFFSUPPORT_DATA", ".")), card["recipe"]["dataset"]
    if dataset == "cifar10" and not (root / "cifar-10-batches-py").is_dir():
        pytest.skip("needs CIFAR-10 in $OFFSUPPORT_DATA")
    test = offsupport.data.load(dataset, root)
    assert test.sha256 == card["data"]["test_sha256"]
    right = correct(offsupport.load_model(f"zoo:{name}"), Examples.of(test))
    # The last bits of the logits differ between processors and thread counts: an image or a few may change sides.
    assert right / len(test) == pytest.approx(card["test"]["accuracy"], abs=max(5e-4, 1.5 / len(test)))


@pytest.mark.parametrize(
    "text", ["[]", "5", "{}", '{"name": "a", "about": "b", "file_sha256": "c", "recipe": 5}', "[" * 200, "\xff"]
)
def test_a_card_that_is_none_is_said(tmp_path, monkeypatch, text):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "card.json").write_text(text, encoding="latin1")
    monkeypatch.setattr(zoo, "_ROOT", tmp_path)
    with pytest.raises(FileError, match=r"card\.json") as error:
        zoo.card("mine")
    assert error.value.remedy
