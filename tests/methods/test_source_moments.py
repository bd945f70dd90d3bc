"""Statistics of source features: what is kept, where it came from, and what is refused."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.checkpoints import save_tensors
from offsupport.core.errors import ConfigError, InputError, ModelError, SourceStatsError
from offsupport.engine import source_stats as features
from offsupport.engine.config import Options
from offsupport.methods import METHODS, SourceStats
from offsupport.testing import NETWORKS, toy_images

LOADER = [toy_images(16, seed, shifted=False) for seed in range(3)]


def stats_of(method, network="projection", **options):
    return offsupport.source_stats(NETWORKS[network](), LOADER, method=method, **options)


@pytest.mark.parametrize("method", ["ttac", "tttpp"])
def test_missing_statistics_are_refused_with_the_lines_to_add(method):
    with pytest.raises(SourceStatsError, match="needs source statistics") as error:
        offsupport.adapt(NETWORKS["projection"](), method)
    assert f'source_stats(model, source_loader, method="{method}")' in error.value.remedy


@pytest.mark.parametrize("method", ["ttac", "tttpp"])
def test_statistics_of_another_model_or_method_are_refused(method):
    model, stats = NETWORKS["projection"](), stats_of(method)
    with torch.no_grad():
        next(model.parameters())[0] += 1e-6
    with pytest.raises(SourceStatsError, match="other weights"):
        offsupport.adapt(model, method, source=stats)
    with pytest.raises(SourceStatsError, match=f"for '{method}', not 'eata'"):
        offsupport.adapt(NETWORKS["projection"](), "eata", source=stats)


def test_no_projection_head_is_refused_with_the_recipe_that_makes_one():
    with pytest.raises(ModelError, match="projection head") as error:
        offsupport.source_stats(NETWORKS["batch_norm"](), LOADER, method="tttpp")
    assert "offsupport train cifar10-resnet18x0.25-joint" in error.value.remedy


def test_statistics_survive_a_file_with_their_provenance(tmp_path):
    stats = stats_of("ttac", provenance={"dataset": "toy", "split": "train"})
    stats.save(tmp_path / "stats.safetensors")
    again = SourceStats.load(tmp_path / "stats.safetensors")
    assert again.provenance == {"dataset": "toy", "split": "train", "transform": "none"}
    assert (again.method, again.model_sha256, again.samples) == ("ttac", stats.model_sha256, 48)
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in stats.tensors.items())
    model = NETWORKS["projection"]()
    x = toy_images(24, 50)[0]
    one, two = (offsupport.adapt(model, "ttac", source=each)(x) for each in (stats, again))
    assert torch.equal(one, two)


def test_a_file_without_provenance_still_loads(tmp_path):
    stats = stats_of("ttac")
    manifest = {"method": "ttac", "model_sha256": stats.model_sha256, "samples": 48}
    save_tensors(tmp_path / "old.safetensors", stats.tensors, manifest)
    assert SourceStats.load(tmp_path / "old.safetensors").provenance == {}
    save_tensors(tmp_path / "other.safetensors", stats.tensors, {"method": "ttac"})
    with pytest.raises(SourceStatsError, match="no source statistics"):
        SourceStats.load(tmp_path / "other.safetensors")


def test_a_stream_says_what_it_is():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 10))
    stream = offsupport.data.stream("digits", split="train", limit=64, batch_size=32, seed=3)
    stats = offsupport.source_stats(network, stream, method="ttac")
    about = stream.describe()
    assert stats.provenance["dataset"] == "digits"
    assert stats.provenance["split"] == "train"
    assert stats.provenance["sha256"] == about["sha256"]
    assert stats.provenance["limit"] == 64


def test_crops_change_the_statistics_repeatably_and_are_recorded():
    plain, one, two = stats_of("ttac"), *(stats_of("ttac", transform="crop") for _ in range(2))
    assert one.provenance["transform"] == "crop"
    assert torch.equal(one.tensors["feature_mean"], two.tensors["feature_mean"])
    assert not torch.allclose(one.tensors["feature_mean"], plain.tensors["feature_mean"])
    with pytest.raises(ConfigError, match="'crops'"):
        stats_of("ttac", transform="crops")


def test_class_covariances_are_diagonal_where_asked_for_or_where_they_are_large(monkeypatch):
    full, diagonal = stats_of("ttac"), stats_of("ttac", class_cov="diagonal")
    assert full.tensors["class_cov"].shape == (4, 32, 32)
    expected = full.tensors["class_cov"].diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal.tensors["class_cov"], expected)
    monkeypatch.setattr(features, "LARGEST_FULL", 4 * 4 * 32 * 32 - 1)
    assert stats_of("ttac").tensors["class_cov"].shape == (4, 32)
    assert stats_of("ttac", class_cov="full").tensors["class_cov"].shape == (4, 32, 32)
    with pytest.raises(SourceStatsError, match="diagonals") as error:
        offsupport.adapt(NETWORKS["projection"](), "ttac", source=diagonal, class_cov="full")
    assert 'class_cov="full"' in error.value.remedy


def test_diagonal_statistics_and_the_diagonal_of_full_ones_adapt_alike():
    model, x = NETWORKS["projection"](), toy_images(32, 50)[0]
    outputs = [
        offsupport.adapt(model, "ttac", source=stats_of("ttac", class_cov=form), class_cov="diagonal", class_min=1)(x)
        for form in ("full", "diagonal")
    ]
    torch.testing.assert_close(*outputs)


def test_features_too_wide_for_a_covariance_are_refused(monkeypatch):
    monkeypatch.setattr("offsupport.engine.adapter.WIDEST", 31)
    with pytest.raises(ModelError, match="32 coordinates") as error:
        stats_of("ttac")
    assert "head=" in error.value.remedy


@pytest.mark.parametrize("method", ["ttac", "tttpp", "tesla-s"])
def test_statistics_of_another_layer_are_refused(method, tmp_path):
    model, layer = NETWORKS["projection"](), "backbone.3"
    stats = offsupport.source_stats(model, LOADER, method="ttac", head="backbone.7")
    assert stats.head == "backbone.7"
    assert stats.head == stats_of("ttac").head
    stats = dataclasses.replace(stats_of(method), head=layer)
    stats.save(tmp_path / "stats.safetensors")
    for each in (stats, SourceStats.load(tmp_path / "stats.safetensors")):
        with pytest.raises(SourceStatsError, match=f"inputs of '{layer}', and the classifier here is") as error:
            offsupport.adapt(model, method, source=each)
        assert f'head="{layer}"' in error.value.remedy
    offsupport.adapt(model, method, source=dataclasses.replace(stats, head=""))  # of an older file


def test_a_head_that_the_model_never_calls_is_refused():
    model = NETWORKS["batch_norm"]()
    model.add_module("spare", nn.Linear(4, 4))
    model.forward = lambda x: nn.Sequential(*list(model.children())[:-1])(x)
    for call in (
        lambda: offsupport.source_stats(model, LOADER, method="ttac"),
        lambda: offsupport.adapt(model, "tesla")(toy_images(16, 0)[0]),
        lambda: offsupport.adapt(model, "shot", pseudo_weight=0.3)(toy_images(16, 0)[0]),
    ):
        with pytest.raises(ModelError, match="is not called") as error:
            call()
        assert "head=" in error.value.remedy


@pytest.mark.parametrize("method", ["ttac", "tttpp", "tesla-s"])
def test_statistics_come_to_the_device_of_the_model(method):
    stats = stats_of(method)
    away = METHODS[method](NETWORKS["projection"]().to("meta"), METHODS[method].config_class(), Options(), stats)
    assert {tensor.device.type for tensor in away.source.tensors.values()} == {"meta"}
    moved = ("mean", "class_mean", "feature", "projection")
    assert {away.memory[name].device.type for name in moved if name in away.memory} <= {"meta"}
    assert {tensor.device.type for tensor in stats.tensors.values()} == {"cpu"}


@pytest.mark.parametrize("method", ["ttac", "tttpp"])
def test_source_images_that_tell_nothing_are_refused(method):
    for loader, words in (([], "least|only one"), ([torch.full((16, 3, 8, 8), math.nan)], "non-finite")):
        with pytest.raises(InputError, match=words):
            offsupport.source_stats(NETWORKS["projection"](), loader, method=method)


@pytest.mark.parametrize("method", ["ttac", "tttpp", "tesla-s"])
def test_source_images_that_do_not_vary_are_refused(method):
    loader = [torch.full((16, 3, 8, 8), 0.5)] * 2
    with pytest.raises(InputError, match="do not vary"):
        offsupport.source_stats(NETWORKS["projection"](), loader, method=method)


@pytest.mark.parametrize(
    "loader",
    [
        [toy_images(1, seed)[0] for seed in range(20)],
        [toy_images(16, 0)[0]] * 3,
        [toy_images(16, 0)[0]],
        [toy_images(size, 0)[0] for size in (7, 16, 16)],
    ],
    ids=["single images", "one batch again", "one batch", "an odd first batch"],
)
def test_batches_that_do_not_show_chance_are_refused(loader):
    with pytest.raises(InputError, match="by chance") as error:
        offsupport.source_stats(NETWORKS["projection"](), loader, method="tttpp")
    assert "two such batches" in error.value.remedy


def test_unknown_options_of_source_stats_are_named():
    with pytest.raises(ConfigError, match="class_covv"):
        stats_of("ttac", class_covv="full")


def test_tttpp_wants_images_in_the_unit_range_and_does_not_complain_of_some_in_the_middle_of_a_stream():
    model, stats = NETWORKS["projection"](), stats_of("tttpp")
    x = toy_images(24, 50)[0]
    with pytest.raises(InputError, match=r"\[0, 1\]") as error:
        offsupport.adapt(model, "tttpp", source=stats)((x - 0.5) / 0.25)
    assert "Normalized" in error.value.remedy
    adapted = offsupport.adapt(model, "tttpp", source=stats)
    adapted(x)
    x[::2] = (x[::2] - 0.5) / 0.1
    assert adapted(x).isfinite().all()
    assert adapted.events["out_of_range"] == 1


@pytest.mark.parametrize("method", ["ttac", "tttpp"])
def test_copies_of_one_image_make_no_step_and_leave_statistics_alone(method):
    model, stats = NETWORKS["projection"](), stats_of(method)
    adapted = offsupport.adapt(model, method, source=stats)
    adapted(toy_images(24, 50)[0])
    before = adapted.snapshot()
    adapted(torch.full((24, 3, 8, 8), 0.5))
    after = adapted.snapshot()
    assert adapted.events["empty_selection"] == 1
    assert all(torch.equal(value, after.parameters[name]) for name, value in before.parameters.items())
    assert torch.equal(before.memory["running"], after.memory["running"])
