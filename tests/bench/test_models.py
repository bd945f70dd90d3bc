import pytest
import torch
from torch import nn

from offsupport.bench.models import MODELS, BuiltIn, load_model


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
    first, second = load_model("toy", tmp_path), load_model("toy", tmp_path)
    assert len(trained) == 1
    assert torch.equal(first.weight, torch.full((2, 2), 3.0))
    assert torch.equal(first.weight, second.weight)
    assert not first.training
    load_model("toy", tmp_path / "other")
    assert len(trained) == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data[:-1] + b"\x01", lambda data: b""])
def test_a_damaged_model_is_trained_again(trained, tmp_path, damage):
    load_model("toy", tmp_path)
    path = tmp_path / "models" / "toy.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert torch.equal(load_model("toy", tmp_path).weight, torch.full((2, 2), 3.0))
    assert len(trained) == 2


@pytest.mark.slow
def test_the_digits_model_is_trained_alike_whatever_the_threads(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    one = load_model("digits-small", tmp_path / "a").state_dict()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    other = load_model("digits-small", tmp_path / "b").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
