"""Batch sizes: blended statistics, windows, single samples."""

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import ConfigError
from offsupport.testing import NETWORKS, Case
from offsupport.testing.case import run, same_bits, stream


def bn_net(pixels=True):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    bn = net[1]
    with torch.no_grad():
        bn.running_mean.copy_(torch.randn(4))
        bn.running_var.copy_(torch.rand(4) + 0.5)
        bn.weight.copy_(torch.randn(4))
        bn.bias.copy_(torch.randn(4))
    return net.eval()


def by_hand(net, x, mean, var):
    bn = net[1]
    z = net[0](x)
    shape = (1, -1, 1, 1)
    z = (z - mean.view(shape)) / (var.view(shape) + bn.eps).sqrt() * bn.weight.view(shape) + bn.bias.view(shape)
    return net[3](z.flatten(1))


@pytest.mark.parametrize("method", ["bn", "tent", "shot", "eata", "sar"])
@pytest.mark.parametrize(("size", "prior"), [(1, 16.0), (1, 0.0), (2, 4.0), (15, 16.0), (7, 1000.0)])
def test_a_small_batch_blends_the_statistics_by_the_formula(method, size, prior):
    net, x = bn_net(), torch.rand(size, 3, 8, 8)
    adapted = Case(method, lambda: net).wrap(prior=prior)
    with torch.no_grad():
        z = net[0](x)
        weight = size / (size + prior)
        mean = weight * z.mean((0, 2, 3)) + (1 - weight) * net[1].running_mean
        var = weight * z.var((0, 2, 3), correction=0) + (1 - weight) * net[1].running_var
        expected = by_hand(net, x, mean, var)
    assert torch.allclose(adapted(x), expected, atol=1e-5)
    assert adapted.events["small_batch"] == 1


@pytest.mark.parametrize("method", ["bn", "tent", "shot"])
def test_a_batch_of_min_batch_stands_alone(method):
    net, x = bn_net(), torch.rand(16, 3, 8, 8)
    adapted = offsupport.adapt(net, method)
    with torch.no_grad():
        z = net[0](x)
        expected = by_hand(net, x, z.mean((0, 2, 3)), z.var((0, 2, 3), correction=0))
    assert torch.allclose(adapted(x), expected, atol=1e-5)
    assert adapted.events["small_batch"] == 0


def test_source_uses_source_statistics_at_any_size():
    net = bn_net()
    adapted = offsupport.adapt(net, "source")
    for size in (1, 3, 40):
        x = torch.rand(size, 3, 8, 8)
        with torch.no_grad():
            assert torch.allclose(adapted(x), net(x), atol=1e-6)
    assert adapted.events["small_batch"] == 0


@pytest.mark.parametrize(
    ("method", "network", "size"),
    [
        *[("tent", "batch_norm", 16), ("tent", "group_norm", 1), ("shot", "group_norm", 16), ("bn", "batch_norm", 16)],
        *[("sar", "layer_norm", 1), ("eata", "one_pixel", 16), ("shot", "no_norm", 16), ("source", "no_norm", 1)],
    ],
)
def test_the_smallest_batch_with_a_step(method, network, size):
    assert Case(method, NETWORKS[network]).wrap().min_batch == size


def test_min_batch_is_the_users_choice():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", min_batch=3, lr=0.01)
    for size, steps in ((2, 0), (3, 1)):
        before = adapted.snapshot()
        run(adapted, stream(1, size=size))
        moved = any(not same_bits(a, before.parameters[k]) for k, a in adapted.snapshot().parameters.items())
        assert moved == bool(steps)


@pytest.mark.parametrize("track", [True, False])
def test_one_value_per_channel_under_batch_statistics_gives_the_shift(track):
    """With one sample and 1x1 maps the normalised value is 0 and does not depend on the input."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 4, 8)
    net = nn.Sequential(first, nn.BatchNorm2d(4, track_running_stats=track), nn.Flatten(), nn.Linear(4, 5)).eval()
    nn.init.normal_(net[1].bias)
    adapted = offsupport.adapt(net, "shot", min_batch=1, lr=0.1, pseudo_weight=1.0)
    x = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        expected = net[3](net[1].bias[None])
    assert torch.allclose(adapted(x), expected, atol=1e-6)
    assert same_bits(adapted.model[0].weight, first.weight), "a constant has no gradient"
    assert not same_bits(adapted.model[1].bias, net[1].bias)


# Windows -------------------------------------------------------------------------------------------------------------


def by_moments(net, x, past):
    """Normalise each layer by the mean and variance of past images and of ``x``; return logits and moments, plainly."""
    found, place = [], 0
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            values = x.double().flatten(2)
            found.append(torch.stack([values.mean(2), (values**2).mean(2)], 2))
            mean, square = torch.cat([each[place] for each in past] + [found[-1]]).mean(0).unbind(1)
            var = square - mean**2
            x = (x - mean.view(1, -1, 1, 1)) / (var.view(1, -1, 1, 1) + layer.eps).sqrt()
            x = x * layer.weight.view(1, -1, 1, 1) + layer.bias.view(1, -1, 1, 1)
            place += 1
        else:
            x = layer(x)
    return x, found


@torch.no_grad()
def test_moments_stand_in_for_the_past_images_of_a_window():
    net = NETWORKS["batch_norm"]().double()
    singles = [x.double() for x in stream(40, size=1)]
    adapted = offsupport.adapt(net, "bn", window=20, min_batch=1)
    past, passes = [], []
    for i, x in enumerate(singles, start=1):
        if i % 20 == 0:  # a step passes the whole window again
            whole, found = by_moments(net, torch.cat(singles[i - 20 : i]), [])
            expected, past = whole[-1:], [[each[k : k + 1] for each in found] for k in range(20)]
        else:
            expected, found = by_moments(net, x, past[-19:])
            past.append(found)
        seen = adapted.passes["forward"]
        assert torch.allclose(adapted(x), expected, atol=1e-8), i
        passes.append(adapted.passes["forward"] - seen)
    assert passes == [1] * 40


def test_single_images_in_a_window_are_answered_nearly_as_the_newest_of_a_batch():
    singles = stream(40, size=1)
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "bn", window=32)
    out = run(adapted, singles)
    plain = offsupport.adapt(NETWORKS["batch_norm"](), "bn")
    for i in (31, 35, 39):
        expected = plain(torch.cat(singles[i - 31 : i + 1]))[-1:]
        assert torch.allclose(out[i], expected, atol=1e-5 if i == 31 else 0.1)
    assert adapted.events["small_batch"] == 15


def test_a_window_passes_only_new_images_where_they_do_not_share_statistics():
    net, sizes = NETWORKS["group_norm"](), []
    net.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    adapted = offsupport.adapt(net, "tent", window=8, inplace=True)
    run(adapted, stream(16, size=1))
    assert sorted(sizes[-16:]) == [1] * 14 + [8] * 2


class Quarters(nn.Module):
    """Looks at each quarter of an image by itself."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        parts = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
        return self.net(parts).view(len(x), 4, -1).mean(1)


def test_a_window_knows_images_that_a_network_cuts_into_parts():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))
    adapted = offsupport.adapt(Quarters(net), "bn", window=8, min_batch=1)
    plain, singles = offsupport.adapt(Quarters(net), "bn", min_batch=1), torch.rand(12, 3, 8, 8).split(1)
    out = [adapted(x) for x in singles]
    # One layer, whose input no statistics change: here moments stand in exactly.
    for i in (3, 7, 10):
        expected = plain(torch.cat(singles[max(0, i - 7) : i + 1]))[-1:]
        assert torch.allclose(out[i], expected, atol=1e-5)


def test_a_window_whose_moments_are_not_known_is_passed_once():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "bn", window=32)
    run(adapted, stream(40, size=1))
    adapted.memory["window_moments"] = torch.empty(0)
    plain, x = offsupport.adapt(NETWORKS["batch_norm"](), "bn"), stream(1, size=1, seed=7)[0]
    expected = plain(torch.cat([adapted.memory["window"][1:], x]))[-1:]
    assert torch.allclose(adapted(x), expected, atol=1e-5)
    assert adapted.memory["window_moments"].shape[1] == 32


def test_a_window_steps_once_per_window_of_new_images():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=32, lr=0.01)
    backward = []
    for x in stream(30, size=5):
        run(adapted, [x])
        backward.append(adapted.passes["backward"])
    # 5 x 7 = 35 is the first to reach 32 new images; then the count starts again.
    assert [i + 1 for i in range(1, 30) if backward[i] > backward[i - 1]] == [7, 14, 21, 28]


def test_a_batch_larger_than_the_window_is_served_whole():
    x = stream(1, size=50)[0]
    windowed = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=32)
    plain = offsupport.adapt(NETWORKS["batch_norm"](), "tent")
    assert same_bits(windowed(x), plain(x))
    assert same_bits(windowed.memory["window"], x[-32:])


def test_a_window_smaller_than_min_batch_is_refused():
    with pytest.raises(ConfigError, match="window=16 or more"):
        offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=8)
    offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=8, min_batch=8)
    offsupport.adapt(NETWORKS["group_norm"](), "tent", window=8)


def test_a_recovery_keeps_the_window():
    adapted = offsupport.adapt(NETWORKS["group_norm"](), "sar", window=8, reset_below=0.9, margin=2.0, collapse="off")
    run(adapted, stream(20, size=1))
    assert adapted.events["reset"] > 0
    assert len(adapted.memory["window"]) == 8


def test_an_absurd_image_does_not_stay_in_the_window():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "bn", window=32)
    run(adapted, stream(1, size=32))
    run(adapted, [torch.full((1, *stream(1)[0].shape[1:]), 1e30), *stream(3, size=1, seed=5)])
    assert float(adapted.memory["window"].abs().max()) < 10
    assert len(adapted.memory["window"]) == 32


def test_a_window_starts_anew_when_images_change_their_size():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    adapted = offsupport.adapt(net, "tent", window=20)
    for size in (8, 8, 10, 8):
        assert adapted(torch.rand(5, 3, size, size)).shape == (5, 5)
    assert adapted.memory["window"].shape == (5, 3, 8, 8)


@pytest.mark.parametrize("window", [-1, 2.5, "8"])
def test_a_window_is_a_natural_number(window):
    with pytest.raises(ConfigError, match="window"):
        offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=window)


# Statistics of the target --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bn", "tent"])
def test_adding_a_constant_per_channel_changes_source_and_not_batch_statistics(method):
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)),
    ).eval()
    x = torch.rand(64, 3, 12, 12)
    shift = torch.tensor([0.3, -0.2, 0.5]).view(1, 3, 1, 1)
    plain, moved = offsupport.adapt(net, method), offsupport.adapt(net, method)
    for _ in range(3):
        assert torch.allclose(plain(x), moved(x + shift), atol=1e-4)
    source = offsupport.adapt(net, "source")
    assert not torch.allclose(source(x), source(x + shift), atol=1e-2)
