import sys

import pytest
import torch
from torch import nn

from offsupport import zoo
from offsupport.core.checkpoints import save_tensors
from offsupport.core.errors import ConfigError, ModelError
from offsupport.core.files import sha256_file
from offsupport.nn import build_network
from offsupport.studies import AdaptConfig
from offsupport.studies.models import MODELS, BuiltIn, pinned, register_model, source_model, unpinned


@pytest.fixture
def trained(monkeypatch):
    count: list[int] = []

    def train() -> nn.Module:
        count.append(1)
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, 3.0)
        nn.init.zeros_(model.bias)
        return model

    monkeypatch.setitem(MODELS._items, "toy", BuiltIn("toy", lambda: nn.Linear(2, 2), train))
    return count


def test_a_model_is_trained_once_per_folder(trained, tmp_path):
    first, second = source_model("toy", tmp_path), source_model("toy", tmp_path)
    assert len(trained) == 1
    assert torch.equal(first.weight, torch.full((2, 2), 3.0))
    assert torch.equal(first.weight, second.weight)
    assert not first.training
    source_model("toy", tmp_path / "other")
    assert len(trained) == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data[:-1] + b"\x01", lambda data: b""])
def test_a_damaged_model_is_trained_again(trained, tmp_path, damage):
    source_model("toy", tmp_path)
    path = tmp_path / "models" / "toy.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert torch.equal(source_model("toy", tmp_path).weight, torch.full((2, 2), 3.0))
    assert len(trained) == 2


@pytest.mark.slow
def test_the_digits_model_is_trained_alike_whatever_the_threads(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    one = source_model("digits-small", tmp_path / "a").state_dict()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    other = source_model("digits-small", tmp_path / "b").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_files_and_zoo_models_are_pinned_by_their_weights(tmp_path):
    path = tmp_path / "model.safetensors"
    facts = {"network": "resnet18x0.0625", "normalization": "cifar10"}
    network = build_network("resnet18x0.0625", 10, "cifar10")
    save_tensors(path, network.state_dict(), facts)
    cell = AdaptConfig(dataset="digits-c", method="bn", model=f"file:{path}").cell()
    name = cell.config["model"]
    assert name == f"file:{path}@{sha256_file(path)[:12]}"
    assert pinned(name) == name
    assert torch.equal(source_model(name, tmp_path).model.fc.weight, network.model.fc.weight)
    nn.init.zeros_(network.model.fc.weight)
    save_tensors(path, network.state_dict(), facts)
    assert AdaptConfig(dataset="digits-c", method="bn", model=f"file:{path}").cell().key != cell.key
    with pytest.raises(ModelError, match="have changed: this asks for"):
        source_model(name, tmp_path)
    with pytest.raises(ConfigError, match="The zoo has no model"):
        pinned("zoo:nothing")
    for card in map(zoo.card, zoo.names()):
        assert pinned(f"zoo:{card['name']}") == f"zoo:{card['name']}@{card['file_sha256'][:12]}"


def test_the_path_of_a_file_may_hold_an_at(tmp_path):
    path = tmp_path / "me@home" / "model@best.safetensors"
    path.parent.mkdir()
    network = build_network("resnet18x0.0625", 10, "cifar10")
    save_tensors(path, network.state_dict(), {"network": "resnet18x0.0625", "normalization": "cifar10"})
    name = pinned(f"file:{path}")
    assert name == f"file:{path}@{sha256_file(path)[:12]}"
    assert (pinned(name), unpinned(name), unpinned(f"file:{path}")) == (name, f"file:{path}", f"file:{path}")
    for each in (name, f"file:{path}"):
        assert torch.equal(source_model(each, tmp_path).model.fc.weight, network.model.fc.weight)
    with pytest.raises(ModelError, match="have changed"):
        source_model(f"file:{path}@{'0' * 12}", tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ":y", "x\0:y", "\ud800"])
def test_a_name_that_no_file_can_have_is_an_unknown_model(tmp_path, name):
    with pytest.raises(ConfigError, match=r"Unknown model|is code"):
        source_model(name, tmp_path)


def test_a_registered_model_is_made_by_its_function_and_kept_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr(MODELS, "_items", dict(MODELS._items))

    def made():
        return nn.Linear(2, 2)

    assert register_model("of-mine.1", "a line")(made) is made
    assert not source_model("of-mine.1", tmp_path).training
    assert not list(tmp_path.iterdir())
    register_model("of-mine.1")(made)  # a notebook's cell, run again
    with pytest.raises(ConfigError, match="registered already"):
        register_model("digits-small")(made)
    for name in ("mine:model", "../mine", "", "a b"):
        with pytest.raises(ConfigError, match="cannot be the name"):
            register_model(name)
    register_model("of-mine.2")(lambda: "no model")
    with pytest.raises(ModelError, match="returned str"):
        source_model("of-mine.2", tmp_path)


def test_code_is_imported_only_where_its_very_name_was_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "of_mine_three.py").write_text("from torch import nn\ndef made(): return nn.Linear(2, 2)\n")
    for code in ((), {"of_mine_three:other"}, {"of_mine_three"}):
        with pytest.raises(ConfigError, match="--allow-code"):
            source_model("of_mine_three:made", tmp_path, frozenset(code))
    assert "of_mine_three" not in sys.modules
    assert str(tmp_path) not in sys.path
    assert isinstance(source_model("of_mine_three:made", tmp_path, {"of_mine_three:made"}), nn.Linear)
    (tmp_path / "c:model").touch()
    with pytest.raises(ConfigError, match="file:c:model"):
        source_model("c:model", tmp_path)
