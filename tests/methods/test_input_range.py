"""Samples that are in another unit than the model's teach nothing and harm nobody."""

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError, InputError
from offsupport.engine import guard
from offsupport.engine.source_stats import SourceStats
from offsupport.nn import Normalized
from offsupport.testing import NETWORKS, Case
from offsupport.testing.case import all_same_bits, promise_same_state, run, same_bits, stream


@pytest.mark.parametrize("method", ["bn", "tent", "shot", "sar"])
def test_one_frame_of_bytes_in_a_window_of_single_samples_changes_nothing(method):
    singles = stream(30, size=1)
    clean, adapted = (Case(method, NETWORKS["batch_norm"]).wrap(window=20) for _ in range(2))
    expected = run(clean, singles)
    got = run(adapted, [*singles[:25], 255 * singles[0], *singles[25:]])
    assert all_same_bits(expected, got[:25] + got[26:])
    promise_same_state(clean.snapshot(), adapted.snapshot(), "The frame left a trace.")
    assert adapted.events["out_of_range"] == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda x: 255 * x, "x / 255"),
        (lambda x: (x - 0.45) / 0.02, "Normalized(model, mean, std)"),
        (lambda x: x - 9, "None"),
    ],
)
def test_a_batch_wholly_outside_is_refused_with_the_line_to_add(change, line):
    adapted, (x,) = Case("tent", NETWORKS["group_norm"]).wrap(), stream(1)
    before = adapted.snapshot()
    for batch in (x, x[:1]):
        with pytest.raises(InputError, match=r"images in \[0, 1\]") as error:
            adapted(change(batch))
        assert line in error.value.remedy
    promise_same_state(before, adapted.snapshot(), "A refusal changes state.")
    assert not any(adapted.events.values())
    assert adapted.passes == {"forward": 0, "backward": 0}


def test_the_range_is_what_is_declared_with_some_room():
    adapted = Case("tent", NETWORKS["group_norm"]).wrap(input_range=(-1, 1))
    (x,) = stream(1)
    adapted(4 * x - 2)
    assert not adapted.events["out_of_range"]
    x[3] = 2.5
    adapted(x)
    assert adapted.events["out_of_range"] == 1


@pytest.mark.parametrize("declared", [(1, 0), (0, 1, 2), (0.0, float("nan")), "01", 1])
def test_a_range_is_two_numbers(declared):
    with pytest.raises(ConfigError, match="input_range"):
        Case("tent", NETWORKS["group_norm"]).wrap(input_range=declared)


def test_rows_of_numbers_have_no_range_but_moments():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x = 3 * torch.randn(20, 6)
    assert not any(guard.absurd(guard.FirstNorm.of(net).look(x, net)))
    adapted, clean = offsupport.adapt(net, "tent"), offsupport.adapt(net, "tent")
    odd = torch.cat([x, 1e4 * x[:1]])
    assert same_bits(adapted(odd)[:20], clean(x))
    assert adapted.events["out_of_range"] == 1
    with pytest.raises(InputError, match="first norm layer") as error:
        adapted(1e4 * x)
    assert "Normalized" in error.value.remedy


def test_statistics_that_are_none_of_the_source_condemn_no_image():
    net = NETWORKS["batch_norm"]()
    with torch.no_grad():
        net[1].running_mean.fill_(1e4)
    adapted, (x,) = offsupport.adapt(net, "tent"), stream(1)
    adapted(x)
    assert not adapted.events["out_of_range"]
    assert adapted.passes["backward"] == 1


class Tiles(nn.Module):
    """Cuts each image into four, so that the first norm layer sees four times as many."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        tiles = torch.cat([x[:, :, i : i + 4, j : j + 4] for i in (0, 4) for j in (0, 4)])
        return self.head(self.body(tiles).view(4, len(x), 4).mean(0))


def test_a_network_that_cuts_samples_into_parts_is_watched_too():
    torch.manual_seed(0)
    net, (x,) = Tiles(), stream(1)
    adapted, clean = (offsupport.adapt(net, "tent", input_range=None) for _ in range(2))
    odd = torch.cat([x[:5], 255 * x[:1], x[5:]])
    logits = adapted(odd)
    assert adapted.events["out_of_range"] == 1
    assert same_bits(torch.cat([logits[:5], logits[6:]]), clean(x))


def test_the_spread_of_source_images_is_about_one():
    net = NETWORKS["batch_norm"]()
    first = guard.FirstNorm.of(net)
    source = torch.cat([offsupport.testing.toy_images(64, seed, shifted=False)[0] for seed in range(4)])
    assert 0.5 < float(first.look(source, net).mean()) < 2
    given = net[0](source).double()
    mean, var = net[1].running_mean.double(), net[1].running_var.double()
    plain = (given - mean.view(1, -1, 1, 1)).square().mean((2, 3)).sum(1) / var.sum()
    torch.testing.assert_close(first.look(source, net).double(), plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("network", ["group_norm", "layer_norm", "batch_norm"])
def test_source_statistics_tell_the_moments_where_the_layer_has_none(network, tmp_path):
    case, (x,) = Case("eata", NETWORKS[network]), stream(1)
    adapted, clean = (case.wrap(input_range=None) for _ in range(2))
    got = adapted(torch.cat([x, 255 * x[:1]]))
    assert adapted.events["out_of_range"] == 1
    assert same_bits(got[:-1], clean(x))
    adapted.source.save(tmp_path / "stats.safetensors")
    again = SourceStats.load(tmp_path / "stats.safetensors")
    assert torch.equal(again.first_norm, adapted.source.first_norm)
    assert again.tensors.keys() == adapted.source.tensors.keys()
    source = torch.cat([offsupport.testing.toy_images(64, seed, shifted=False)[0] for seed in range(4)])
    spread = adapted.first_norm.look(source, case.network())
    assert not bool(guard.absurd(spread).any())


def test_a_wrapped_model_takes_plain_images_and_says_nothing():
    net = Normalized(NETWORKS["batch_norm"](), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    adapted = offsupport.adapt(net, "tent")
    run(adapted, stream(2))
    assert not any(adapted.events.values())


def test_the_range_is_saved_with_the_adapter(tmp_path):
    case, path = Case("tent", NETWORKS["group_norm"]), tmp_path / "a.safetensors"
    adapted = case.wrap(input_range=None)
    run(adapted, stream(1))
    adapted.save(path)
    again = offsupport.load_adapted(case.network(), path)
    assert again.options.input_range is None
    assert again.events == adapted.events
    with pytest.raises(offsupport.core.errors.FileError, match="input_range"):
        case.wrap().load(path)


def test_a_healthy_batch_costs_no_pass_more():
    for method in ("bn", "tent", "source"):
        adapted = Case(method, NETWORKS["batch_norm"]).wrap(input_range=None)
        run(adapted, stream(3))
        assert adapted.passes["forward"] == 3
