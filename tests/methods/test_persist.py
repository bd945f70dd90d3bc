"""Adapters on disk: what is refused, and that damage is always noticed."""

import json
import random

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import offsupport
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import FileError, OffsupportError, SourceStatsError
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


# Crafted files: the checksum is right, the content is not -------------------------------------------------------------


def crafted(path, change, manifest=lambda found: found):
    """Rewrite a saved adapter with other tensors or another manifest, and a checksum that fits."""
    tensors, found = load_tensors(path)
    broken = path.with_name("crafted.safetensors")
    save_tensors(broken, change(dict(tensors)), manifest(found))
    return broken


WEIGHT = "parameters/1.weight"
TENSORS = {
    "one number for all": (lambda t: t | {WEIGHT: torch.ones(1)}, r"parameters/1\.weight of shape \(1,\)"),
    "a scalar": (lambda t: t | {WEIGHT: torch.tensor(1.0)}, r"parameters/1\.weight of shape \(\)"),
    "NaN": (lambda t: t | {WEIGHT: t[WEIGHT] * float("nan")}, r"8 non-finite of 8 values in parameters/1\.weight"),
    "truth values": (lambda t: t | {WEIGHT: t[WEIGHT] != 0}, r"parameters/1\.weight as bool"),
    "integers": (lambda t: t | {WEIGHT: t[WEIGHT].int()}, r"parameters/1\.weight as int32"),
    "another precision": (lambda t: t | {WEIGHT: t[WEIGHT].double()}, r"parameters/1\.weight as torch\.float64"),
    "one is missing": (lambda t: without(t, WEIGHT), r"lacks parameters/1\.weight\."),
    "two are missing": (lambda t: without(t, WEIGHT, "memory/fresh"), r"lacks .* and 1 more"),
    "one too many": (lambda t: t | {"parameters/9.weight": torch.ones(8)}, r"also holds parameters/9\.weight"),
    "of no part": (lambda t: t | {"x": torch.ones(8)}, "also holds x"),
    "memory is missing": (lambda t: without(t, "memory/window"), "lacks memory/window"),
    "memory of another shape": (lambda t: t | {"memory/fresh": torch.zeros(5)}, r"memory/fresh of shape \(5,\)"),
    "memory with NaN": (lambda t: t | {"memory/window": t["memory/window"] * float("nan")}, "in memory/window"),
    "no generator": (lambda t: without(t, "generator"), "lacks generator"),
    "another generator": (lambda t: t | {"generator": torch.zeros_like(t["generator"])}, "no state of a random"),
    "half of a moment": (lambda t: without(t, "optimizer/1.weight/exp_avg"), r"lacks optimizer/1\.weight/exp_avg"),
    "a moment of another shape": (
        lambda t: t | {"optimizer/1.weight/exp_avg": torch.zeros(1)},
        r"optimizer/1\.weight/exp_avg of shape \(1,\)",
    ),
    "a moment of nothing": (lambda t: t | {"optimizer/0.weight/exp_avg": torch.zeros(1)}, "also holds optimizer/0"),
}


def without(tensors, *names):
    return {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize("name", TENSORS)
def test_a_crafted_adapter_is_refused_by_name_and_changes_nothing(saved, name):
    change, word = TENSORS[name]
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=20)
    run(adapted, stream(1, seed=5))
    counted = dict(adapted.events), dict(adapted.passes)
    refused(adapted, crafted(saved, change), word)
    assert counted == (adapted.events, adapted.passes)


@pytest.mark.parametrize("counters", [5, [], {"collapse": -1}, {"collapse": 1.5}, {"collapse": None}])
@pytest.mark.parametrize("name", ["events", "passes"])
def test_counters_that_are_none_are_refused(saved, name, counters):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=20)
    refused(adapted, crafted(saved, dict, lambda found: found | {name: counters}), "counts .* no events")


@pytest.mark.parametrize(
    ("manifest", "word"),
    [
        (lambda found: found | {"config": 5}, "holds no adapter"),
        (lambda found: found | {"method": ["tent"]}, "holds no adapter"),
        (lambda found: found | {"config": {"model": 1}}, "has a hyper-parameter 'model'"),
        (lambda found: found | {"config": {"inplace": True}}, "has a hyper-parameter 'inplace'"),
        (lambda found: found | {"seed": 2**70}, "'seed' is out of range"),
    ],
)
def test_a_crafted_set_up_is_refused(saved, manifest, word):
    with pytest.raises(OffsupportError, match=word):
        offsupport.load_adapted(NETWORKS["batch_norm"](), crafted(saved, dict, manifest))


def test_a_file_from_before_the_first_step_loads(tmp_path):
    offsupport.adapt(NETWORKS["batch_norm"](), "tent").save(tmp_path / "a.safetensors")
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent")
    run(adapted, stream(2))
    adapted.load(tmp_path / "a.safetensors")
    assert not changed(offsupport.adapt(NETWORKS["batch_norm"](), "tent").snapshot(), adapted.snapshot())


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


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d | {"model.7.bias": torch.ones(1)}, r"model\.7\.bias of shape \(1,\)"),
        (lambda d: d | {"model.7.bias": d["model.7.bias"] * float("nan")}, r"non-finite of 4 values in model\.7\.bias"),
        (lambda d: without(d, "model.7.bias"), r"lacks model\.7\.bias"),
        (lambda d: d | {"_extra_state": 5}, "is not one of an adapter"),
        (lambda d: d | {"_extra_state": without(d["_extra_state"], "state")}, "is not one of an adapter"),
    ],
)
def test_a_state_dict_is_loaded_whole_or_not_at_all(change, word):
    given = offsupport.adapt(NETWORKS["batch_norm"](), "tent")
    run(given, stream(2))
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent")
    before = adapted.snapshot(), [tensor.clone() for tensor in adapted.model.state_dict().values()]
    with pytest.raises(FileError, match=word):
        adapted.load_state_dict(change(dict(given.state_dict())))
    assert not changed(before[0], adapted.snapshot())
    assert all_same_bits(before[1], adapted.model.state_dict().values())


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


# Crafted source statistics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "manifest", "word"),
    [
        (lambda t: without(t, "class_mean"), dict, "lack class_mean"),
        (lambda t: t | {"feature_cov": torch.ones(1)}, dict, r"hold feature_cov of shape \(1,\)"),
        (lambda t: t | {"class_mean": t["class_mean"][0, 0].clone()}, dict, r"hold class_mean of shape \(\)"),
        (lambda t: t | {"class_count": torch.ones(9)}, dict, r"hold class_count of shape \(9,\)"),
        (lambda t: t | {"class_cov": t["class_cov"] * float("nan")}, dict, "non-finite of .* values in class_cov"),
        (dict, lambda m: m | {"samples": "many"}, "holds no source statistics"),
        (dict, lambda m: m | {"provenance": 5}, "holds no source statistics"),
        (dict, lambda m: m | {"head": None}, "holds no source statistics"),
    ],
)
def test_crafted_source_statistics_are_refused_by_name(tmp_path, change, manifest, word):
    model, path = NETWORKS["batch_norm"](), tmp_path / "s.safetensors"
    offsupport.source_stats(model, stream(2), "ttac").save(path)
    with pytest.raises(OffsupportError, match=word) as error:
        offsupport.adapt(model, "ttac", source=SourceStats.load(crafted(path, change, manifest)))
    assert error.value.remedy


def test_fisher_weights_of_another_shape_are_refused(tmp_path):
    model, path = NETWORKS["batch_norm"](), tmp_path / "s.safetensors"
    offsupport.source_stats(model, stream(2), "eata").save(path)
    broken = crafted(path, lambda t: t | {"1.weight": torch.ones(1)})
    with pytest.raises(FileError, match=r"1\.weight of shape \(1,\)"):
        offsupport.adapt(model, "eata", source=SourceStats.load(broken))


# Crafted memory: what gets its shape from the stream ------------------------------------------------------------------

ODD = {
    "scalar": lambda t: torch.zeros((), dtype=t.dtype),
    "one": lambda t: torch.ones(1, dtype=t.dtype),
    "longer": lambda t: torch.cat([t.flatten(), t.flatten()]),
    "of another rank": lambda t: t[None].clone(),
    "empty": lambda t: t.new_empty(0),
    "shorter": lambda t: t.flatten()[:-1].clone() if t.numel() > 1 else t,
    "negative": lambda t: -torch.ones_like(t),
    "huge": lambda t: torch.full_like(t, 3e38 if t.is_floating_point() else 2**40),
    "zero": torch.zeros_like,
    **{str(kind): lambda t, kind=kind: t.to(kind) for kind in (torch.double, torch.long, torch.half, torch.bool)},
}


@pytest.mark.slow
@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize("method", ["auto", "minimal", "tent"])
def test_memory_that_no_stream_leaves_is_refused_or_harmless(method, with_source):
    """Whatever a file says was remembered: it is refused, or the next images are answered."""
    adapted = Case(method, NETWORKS["batch_norm"], source=with_source).wrap(window=20, monitor=True)
    run(adapted, stream(4) + stream(1, size=1, seed=3))
    told = adapted.get_extra_state()
    for name, tensor in told["state"].items():
        for odd in ODD.values() if name.startswith("memory/") else ():
            other = adapted.fork()
            try:
                other.set_extra_state({**told, "state": told["state"] | {name: odd(tensor)}})
            except FileError:
                assert not changed(adapted.snapshot(), other.snapshot())
                continue
            assert all(bool(logits.isfinite().all()) for logits in run(other, stream(3, seed=7))), name
            other.estimate()


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("minimal", "recent", torch.tensor([2**40])),  # counting such labels would take terabytes
        ("auto", "calm", torch.tensor([2**40])),
        ("minimal", "recent", torch.tensor([-1])),
        ("minimal", "evidence", torch.tensor([-48.0, 0.1], dtype=torch.float64)),  # 16 images more divide by zero
        ("minimal", "surprise", torch.tensor(-1.0, dtype=torch.float64)),
        ("minimal", "classes", torch.tensor([2.0, -1.0, 0.0, 0.0])),
        ("minimal", "gathered", torch.full((37,), 17.0)),  # more images than a group waits for
        ("minimal", "collapse", torch.ones(3, 4)),
        ("minimal", "usual", torch.ones(5)),
        ("minimal", "moments", torch.zeros(10)),  # no images weigh anything
        ("auto", "weights", torch.zeros(3)),
        ("auto", "velocity", torch.zeros(3)),
    ],
)
def test_crafted_memory_is_refused_by_name(tmp_path, method, name, value):
    adapted, path = Case(method, NETWORKS["batch_norm"]).wrap(monitor=True), tmp_path / "a.safetensors"
    run(adapted, stream(4))
    adapted.save(path)
    refused(adapted, crafted(path, lambda t: t | {f"memory/{name}": value}), f"memory/{name}")


NAN = float("nan")


@pytest.fixture(scope="module")
def statistics_of_auto(tmp_path_factory):
    model, path = NETWORKS["batch_norm"](), tmp_path_factory.mktemp("auto") / "s.safetensors"
    x, labels = offsupport.testing.toy_images(200, seed=1, shifted=False)
    offsupport.source_stats(model, [x], "auto", labels=labels).save(path)
    offsupport.adapt(model, "auto", source=SourceStats.load(path))
    return path


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t | {"share": torch.tensor(1.0)}, "share outside"),
        (lambda t: t | {"share": torch.tensor(-0.1)}, "share outside"),
        (lambda t: t | {"share": torch.tensor([0.3, 0.3])}, "share outside"),
        (lambda t: t | {"share": torch.tensor(NAN)}, "non-finite"),
        (lambda t: without(t, "clean"), "lack clean"),
        (lambda t: without(t, "within"), "lack within"),
        (lambda t: t | {"clean": t["clean"][:, :-1].clone()}, "hold clean of shape"),
        (lambda t: t | {"spread": -t["spread"]}, "hold spread"),
        (lambda t: t | {"class_means": t["class_means"][:-1].clone()}, "hold class_means"),
        (lambda t: t | {"law": -t["law"]}, "hold law"),
        (lambda t: t | {"law": t["law"].reshape(2, 2).clone()}, "hold law"),
        (lambda t: t | {"first_norm//moments": torch.tensor(1.0)}, "moments of the first norm layer"),
        (lambda t: t | {"first_norm//moments": torch.zeros(2, 8)}, "moments of the first norm layer"),
        (lambda t: without(t, "calibration//marks"), "lack calibration//marks"),
        (lambda t: t | {"calibration//law": torch.full((4,), 1e9, dtype=torch.float64)}, "has law"),
        (lambda t: t | {"calibration//benefit": torch.zeros(1)}, "has benefit"),
        (lambda t: t | {"calibration//entropies": torch.zeros(())}, "has entropies"),
        (lambda t: t | {"calibration//size": torch.zeros(3)}, "has marks and size"),
        (lambda t: t | {"calibration//source": torch.zeros(7, dtype=torch.float64)}, "has scales"),
        (lambda t: without(t, "calibration//clean/widths"), "lack calibration//clean/widths"),
        (lambda t: t | {"calibration//clean/widths": torch.tensor([2**40])}, "has clean"),
        (lambda t: t | {"calibration//clean/spread": torch.zeros_like(t["calibration//clean/spread"])}, "has clean"),
    ],
)
def test_crafted_statistics_of_auto_are_refused_by_name(statistics_of_auto, change, word):
    model, path = NETWORKS["batch_norm"](), statistics_of_auto
    with pytest.raises(OffsupportError, match=word):
        offsupport.adapt(model, "auto", source=SourceStats.load(crafted(path, change)))


@pytest.mark.parametrize("method", ["auto", "minimal"])
def test_statistics_of_other_classes_than_the_model_has_are_said_when_it_answers(tmp_path, method):
    model, path = NETWORKS["batch_norm"](), tmp_path / "s.safetensors"
    offsupport.source_stats(model, [offsupport.testing.toy_images(40, seed=1, shifted=False)[0]], method).save(path)
    fifth = torch.full((5,), 0.2)
    broken = crafted(path, lambda t: without(t, "class_means") | {"law": fifth})
    adapted = offsupport.adapt(model, method, source=SourceStats.load(broken))
    with pytest.raises(SourceStatsError, match="of 5 classes, and the model has 4"):
        run(adapted, stream(2))
