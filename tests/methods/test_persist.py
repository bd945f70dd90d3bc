"""Adapters on disk: what is refused, and that damage is always noticed."""

import json
import random

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import offsupport
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import FileError, SourceStatsError
from offsupport.engine.source_stats import SourceStats
from offsupport.testing import NETWORKS, Case
from offsupport.testing.case import all_same_bits, changed, quiet, run, same_bits, stream


@pytest.fixture
def saved(tmp_path):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=20)
    run(adapted, stream(3))
    adapted.save(tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_the_file_holds_only_what_changed(saved):
    tensors, manifest = load_tensors(saved)
    assert {name for name in tensors if name.startswith("parameters/")} == {
        f"parameters/{layer}.{kind}" for layer in (1, 4) for kind in ("weight", "bias")
    }
    assert manifest["method"] == "tent"
    assert manifest["config"]["lr"] == 1e-3


def refused(adapted, saved, word):
    before = adapted.snapshot()
    with pytest.raises(FileError, match=word) as error:
        adapted.load(saved)
    assert error.value.remedy
    assert not changed(before, adapted.snapshot())


def test_other_weights_are_refused(saved):
    model = NETWORKS["batch_norm"]()
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] += 1e-6
    refused(offsupport.adapt(model, "tent", window=20), saved, "other weights")


@pytest.mark.parametrize(
    ("method", "options"),
    [("sar", {"window": 20}), ("tent", {"window": 20, "lr": 0.5}), ("tent", {"window": 21}), ("bn", {"window": 20})],
)
def test_another_set_up_is_refused(saved, method, options):
    refused(offsupport.adapt(NETWORKS["batch_norm"](), method, **options), saved, "set-up")


def test_a_model_that_has_moved_is_still_recognised(saved):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=20)
    run(adapted, stream(2, seed=9))
    adapted.load(saved)
    expected = load_tensors(saved)[0]
    assert same_bits(adapted.model[1].weight, expected["parameters/1.weight"])


def test_source_statistics_belong_to_the_state(tmp_path):
    with_source = Case("eata", NETWORKS["batch_norm"]).wrap()
    without = Case("eata", NETWORKS["batch_norm"], source=False).wrap()
    with_source.save(tmp_path / "eata.safetensors")
    refused(without, tmp_path / "eata.safetensors", "source_sha256")


def test_load_adapted_restores_method_and_hyper_parameters(tmp_path):
    model = NETWORKS["batch_norm"]()
    adapted = offsupport.adapt(model, "sar", window=20, lr=0.02, exclude="4")
    run(adapted, stream(2))
    adapted.save(tmp_path / "sar.safetensors")
    again = offsupport.load_adapted(model, tmp_path / "sar.safetensors")
    assert again.config == adapted.config
    assert all_same_bits(run(adapted, stream(2, seed=3)), run(again, stream(2, seed=3)))


def test_load_adapted_in_inference_mode_continues(tmp_path, saved):
    with torch.inference_mode():
        again = offsupport.load_adapted(NETWORKS["batch_norm"](), saved)
        other = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=20)
        other.load(saved)
    assert all_same_bits(run(again, stream(4, seed=3)), run(other, stream(4, seed=3)))


def test_load_adapted_refuses_other_files(tmp_path):
    stats = offsupport.source_stats(NETWORKS["batch_norm"](), stream(1), "eata")
    stats.save(tmp_path / "stats.safetensors")
    with pytest.raises(FileError, match="no adapter"):
        offsupport.load_adapted(NETWORKS["batch_norm"](), tmp_path / "stats.safetensors")
    with pytest.raises(FileError, match="no file"):
        offsupport.load_adapted(NETWORKS["batch_norm"](), tmp_path / "absent.safetensors")


# State dicts ---------------------------------------------------------------------------------------------------------


def test_a_state_dict_of_other_weights_or_another_method_is_refused_before_any_change():
    given = offsupport.adapt(NETWORKS["batch_norm"](), "tent")
    run(given, stream(2))
    other_model = NETWORKS["batch_norm"]()
    with torch.no_grad():
        other_model[7].bias += 1
    for adapted in (
        offsupport.adapt(other_model, "tent"),
        offsupport.adapt(NETWORKS["batch_norm"](), "sar"),
        offsupport.adapt(NETWORKS["batch_norm"](), "tent", lr=0.1),
    ):
        before = {name: value.clone() for name, value in adapted.model.state_dict().items()}
        with pytest.raises(FileError, match="state dict"):
            adapted.load_state_dict(given.state_dict())
        assert all_same_bits(before.values(), adapted.model.state_dict().values())


# Damage --------------------------------------------------------------------------------------------------------------


def test_every_bit_flip_and_every_truncation_is_noticed(saved):
    """Samples of both over the whole file; the header, where a flip changes meaning, bit by bit."""
    whole = saved.read_bytes()
    rng = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    flips = [(i, 1 << rng.randrange(8)) for i in range(0, header, 2)]
    flips += [(rng.randrange(header, len(whole)), 1 << rng.randrange(8)) for _ in range(100)]
    broken = saved.with_name("broken.safetensors")
    for position, bit in flips:
        damaged = bytearray(whole)
        damaged[position] ^= bit
        broken.write_bytes(damaged)
        with pytest.raises(FileError):
            load_tensors(broken)
    for length in [0, 1, 7, 8, 9, header - 1, header, len(whole) - 1, *rng.sample(range(len(whole)), 40)]:
        broken.write_bytes(whole[:length])
        with pytest.raises(FileError):
            load_tensors(broken)
    broken.write_bytes(whole + b"\0")
    with pytest.raises(FileError):
        load_tensors(broken)


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(FileError, match="not written by offsupport"):
        load_tensors(path)
    torch.save({"a": torch.ones(2)}, path)
    with pytest.raises(FileError, match=r"x\.safetensors"):
        load_tensors(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError):
        load_tensors(path)


def test_another_schema_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    monkeypatch.setattr("offsupport.core.checkpoints.SCHEMA", 999)
    save_tensors(path, {"a": torch.ones(2)}, {})
    monkeypatch.undo()
    with pytest.raises(FileError, match="version"):
        load_tensors(path)


def test_tensors_and_manifest_come_back_as_they_were(tmp_path):
    tensors = {
        "empty": torch.empty(0),
        "scalar": torch.tensor(3.0),
        "strided": torch.arange(12.0).view(3, 4).T,
        "int": torch.tensor([1, 2]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
    }
    manifest = {"text": "é", "list": [1, None, 2.5]}
    save_tensors(tmp_path / "t.safetensors", tensors, manifest)
    loaded, again = load_tensors(tmp_path / "t.safetensors")
    assert all(same_bits(loaded[name], tensors[name]) for name in tensors)
    assert again == json.loads(json.dumps(manifest))


# Source statistics ---------------------------------------------------------------------------------------------------


def test_source_statistics_survive_the_disk_and_are_tied_to_model_and_method(tmp_path):
    model = NETWORKS["batch_norm"]()
    stats = offsupport.source_stats(model, stream(2), "eata")
    stats.save(tmp_path / "s.safetensors")
    with torch.inference_mode():
        loaded = SourceStats.load(tmp_path / "s.safetensors")
    assert (loaded.method, loaded.model_sha256, loaded.samples) == (stats.method, stats.model_sha256, stats.samples)
    a, b = (offsupport.adapt(model, "eata", source=each) for each in (stats, loaded))
    assert all_same_bits(run(a, stream(3)), run(b, stream(3)))
    with torch.no_grad():
        model[0].bias += 1
    with pytest.raises(SourceStatsError, match="other weights"):
        offsupport.adapt(model, "eata", source=loaded)
    with pytest.raises(SourceStatsError, match="no source statistics"):
        offsupport.adapt(model, "tent", source=loaded)
    with pytest.raises(SourceStatsError, match="'eata', not 'other'"):
        loaded.require("other", loaded.model_sha256, "")


def test_an_adapter_is_no_source_statistics(saved):
    with pytest.raises(SourceStatsError, match="no source statistics"):
        SourceStats.load(saved)


def test_eata_without_source_statistics_says_so():
    with pytest.warns(UserWarning, match="ETA"):
        offsupport.adapt(NETWORKS["batch_norm"](), "eata")
    with quiet():
        assert offsupport.adapt(NETWORKS["batch_norm"](), "eata").source is None


def test_the_identity_of_a_model_holds_buffers_that_no_checkpoint_holds(tmp_path):
    from offsupport.nn import Normalized

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    offsupport.adapt(Normalized(net, [0.5] * 3, [0.5] * 3), "tent").save(tmp_path / "a.safetensors")
    with pytest.raises(FileError, match="other weights"):
        offsupport.adapt(Normalized(net, [0.0] * 3, [2.0] * 3), "tent").load(tmp_path / "a.safetensors")


def test_options_that_steer_the_stream_come_back(tmp_path):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5), nn.Linear(5, 5))
    saved = offsupport.adapt(net, "shot", head="2", collapse="reset", window=20, seed=3)
    saved.save(tmp_path / "a.safetensors")
    loaded = offsupport.load_adapted(net, tmp_path / "a.safetensors")
    assert loaded.options == saved.options
    assert set(loaded.parameters_adapted) == set(saved.parameters_adapted)
