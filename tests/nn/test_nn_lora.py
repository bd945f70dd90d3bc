"""Low-rank updates of every kind of layer: what they add, what they cost nothing, and how they go away again."""

import copy
import pickle

import pytest
import torch
from torch import nn

from offsupport.functional import effective_rank, product_singular_values, soft_threshold
from offsupport.nn.lora import add_updates, describe_updates, gains, merge, updatable_layers, updated_layers

KINDS = {
    "3x3": lambda: nn.Conv2d(6, 8, 3, padding=1),
    "strided": lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False),
    "1x1": lambda: nn.Conv2d(6, 10, 1),
    "dilated": lambda: nn.Conv2d(6, 8, 3, padding=2, dilation=2),
    "grouped": lambda: nn.Conv2d(6, 8, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(6, 12, 3, groups=6, padding=1),
    "reflected": lambda: nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect"),
    "same": lambda: nn.Conv2d(6, 8, 3, padding="same"),
    "linear": lambda: nn.Linear(6, 5),
    "conv1d": lambda: nn.Conv1d(6, 8, 3),
    "conv3d": lambda: nn.Conv3d(6, 8, 3, padding=1),
}
ALLOWED = {"grouped": 3, "depthwise": 1, "linear": 5}


def inputs(kind, dtype=torch.float64):
    shape = {"linear": (7, 6), "conv1d": (4, 6, 9), "conv3d": (2, 6, 5, 5, 5)}.get(kind, (4, 6, 9, 9))
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


def with_update(kind, rank=4, gates="normal", moved=True, dtype=torch.float64):
    """Return a layer as it came and a copy with an update that is not zero, unless it is not ``moved``."""
    torch.manual_seed(0)
    plain = KINDS[kind]().to(dtype)
    layer = copy.deepcopy(plain)
    generator = torch.Generator().manual_seed(1)
    parameters = add_updates(nn.Sequential(layer), rank, gates, generator)
    if moved:
        with torch.no_grad():
            layer.low_rank.up.normal_(0, 0.3, generator=generator)
    return plain, layer, parameters


def two_branches(plain, layer, x):
    """The published form, written as three layers: y = W x + s U (g * D x)."""
    low_rank, weight = layer.low_rank, plain.weight
    gate = low_rank.gate
    if isinstance(plain, nn.Linear):
        return plain(x) + low_rank.scale * (gate * (x @ low_rank.down.T)) @ low_rank.up.T
    down = copy.deepcopy(plain)
    down.bias, down.out_channels = None, low_rank.rank
    down.weight = nn.Parameter(low_rank.down.detach().view(low_rank.rank, *weight.shape[1:]))
    inner = down(x)
    gated = inner * gate.view(1, -1, *[1] * (inner.dim() - 2))
    return plain(x) + low_rank.scale * torch.einsum("ok,nk...->no...", low_rank.up, gated)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("grouped", "depthwise")])
def test_one_layer_equals_the_published_two_branches(kind):
    plain, layer, _ = with_update(kind)
    x = inputs(kind)
    torch.testing.assert_close(layer(x), two_branches(plain, layer, x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(layer(x), plain(x))


@pytest.mark.parametrize("kind", KINDS)
def test_the_update_is_low_rank_in_the_flattened_weight(kind):
    plain, layer, _ = with_update(kind)
    low_rank = layer.low_rank
    update = (layer.weight - plain.weight).flatten(1)
    expected = sum(
        low_rank.scale * low_rank.gate[k] * torch.outer(low_rank.up[:, k], low_rank.down[k])
        for k in range(low_rank.rank)
    )
    torch.testing.assert_close(update, expected, rtol=1e-12, atol=1e-14)
    assert low_rank.rank == min(4, ALLOWED.get(kind, 4))
    assert low_rank.scale == 4 / low_rank.rank
    assert torch.linalg.matrix_rank(update) == low_rank.rank


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_zero_update_is_the_layer_bit_for_bit(kind, dtype):
    plain, layer, _ = with_update(kind, moved=False, dtype=dtype)
    x = inputs(kind, dtype)
    assert torch.equal(layer(x), plain(x))
    assert torch.equal(layer.weight, plain.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_finite_differences(kind):
    _, layer, parameters = with_update(kind, rank=2)
    x = inputs(kind)[:2].requires_grad_()
    names = [name.removeprefix("0.") for name in parameters] + ["weight"]
    values = [dict(layer.named_parameters())[name].detach().requires_grad_() for name in names]

    def run(x, *tensors):
        return torch.func.functional_call(layer, dict(zip(names, tensors, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


WIDE = {
    "3x3": (lambda: nn.Conv2d(5, 64, 3, padding=1), (3, 5, 6, 6)),
    "strided": (lambda: nn.Conv2d(5, 64, 3, stride=2, padding=1, bias=False), (3, 5, 7, 7)),
    "dilated": (lambda: nn.Conv2d(5, 64, 3, dilation=2, padding=2), (3, 5, 6, 6)),
    "1x1": (lambda: nn.Conv2d(5, 64, 1), (3, 5, 4, 4)),
    "conv1d": (lambda: nn.Conv1d(5, 64, 3), (3, 5, 9)),
    "conv3d": (lambda: nn.Conv3d(5, 64, 3, padding=1), (2, 5, 3, 3, 3)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", WIDE)
def test_gradients_of_the_factors_alone_are_those_through_the_whole_weight(kind, bias, monkeypatch):
    make, shape = WIDE[kind]
    torch.manual_seed(0)
    layer = make().double().requires_grad_(False)
    if layer.bias is not None:
        layer.bias.requires_grad_(bias)
    add_updates(nn.Sequential(layer), 3, "normal", torch.Generator().manual_seed(1))
    nn.init.normal_(layer.low_rank.up)
    assert gains(layer, type(make()), 3)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]

    def run():
        y = layer(x)
        return [y, *torch.autograd.grad((y * y.detach().cos()).sum(), wanted)]

    alone = run()
    assert "_Convolution" in type(layer(x).grad_fn).__name__
    monkeypatch.setattr("offsupport.nn.lora.gains", lambda *_: False)
    whole = run()
    assert "_Convolution" not in type(layer(x).grad_fn).__name__
    assert torch.equal(alone[0], whole[0])
    for a, b in zip(alone, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_where_the_factors_alone_gain_nothing():
    wide = nn.Conv2d(64, 64, 3)
    assert gains(wide, nn.Conv2d, 16)
    assert not gains(wide, nn.Conv2d, 17)
    assert not gains(nn.Conv2d(64, 32, 3), nn.Conv2d, 1)
    assert not gains(nn.Conv2d(64, 64, 3, groups=2), nn.Conv2d, 1)
    assert not gains(nn.Conv2d(64, 64, 3, padding="same"), nn.Conv2d, 1)
    assert not gains(nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"), nn.Conv2d, 1)
    assert not gains(Standardised(64, 64, 3), Standardised, 1)
    assert not gains(nn.Linear(64, 64), nn.Linear, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_merging_keeps_the_function_and_gives_the_layer_back(kind):
    plain, layer, _ = with_update(kind, dtype=torch.float32)
    x = inputs(kind, torch.float32)
    before = layer(x)
    merge(layer)
    assert type(layer) is type(plain)
    assert [name for name, _ in layer.named_parameters()] == [name for name, _ in plain.named_parameters()]
    torch.testing.assert_close(layer(x), before, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(layer(x), plain(x))


def test_the_weight_in_use_keeps_the_memory_layout_of_its_own():
    layer = nn.Conv2d(6, 4, 3).to(memory_format=torch.channels_last)
    add_updates(nn.Sequential(layer), 2, "ones", torch.Generator().manual_seed(0))
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)


def test_clipping_by_both_sides_and_scale():
    _, layer, _ = with_update("3x3", rank=64)
    assert (layer.low_rank.rank, layer.low_rank.scale) == (6, 64 / 6)
    _, layer, _ = with_update("linear", rank=64)
    assert (layer.low_rank.rank, layer.low_rank.scale) == (5, 64 / 5)


@pytest.mark.parametrize(("gates", "mean", "deviation"), [("normal", 0.0, 1.0), ("ones", 1.0, 0.0)])
def test_how_gates_start(gates, mean, deviation):
    layer = nn.Sequential(nn.Linear(2000, 2000))
    add_updates(layer, 2000, gates, torch.Generator().manual_seed(0))
    gate, down = layer[0].low_rank.gate, layer[0].low_rank.down
    assert abs(gate.mean().item() - mean) < 0.1
    assert abs(gate.std().item() - deviation) < 0.1
    assert down.abs().max() <= 2000**-0.5
    assert abs(down.std().item() - (3 * 2000) ** -0.5) < 1e-3


def test_without_gates_there_are_none():
    plain, layer, parameters = with_update("3x3", gates="none")
    assert set(parameters) == {"0.low_rank.up", "0.low_rank.down"}
    update = (layer.weight - plain.weight).flatten(1)
    torch.testing.assert_close(update, layer.low_rank.up @ layer.low_rank.down)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(128, 4))


def updated_network():
    net = network()
    generator = torch.Generator().manual_seed(0)
    add_updates(net, 2, "normal", generator)
    with torch.no_grad():
        for layer in updated_layers(net).values():
            layer.low_rank.up.normal_(generator=generator)
    return net


def test_the_state_dict_is_that_of_the_plain_network_and_holds_the_sums():
    net, plain, x = updated_network(), network(), torch.rand(2, 3, 8, 8)
    assert list(net.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(net.state_dict())
    assert torch.equal(plain(x), net(x))


def test_loading_sets_the_weights_in_use():
    net, x = updated_network(), torch.rand(2, 3, 8, 8)
    before, split = net(x), net[0].low_rank.up.clone()
    net.load_state_dict(net.state_dict())
    assert torch.equal(net(x), before)
    assert torch.equal(net[0].low_rank.up, split)
    net.load_state_dict(network().state_dict())
    assert torch.equal(net(x), network()(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_keep_their_updates_to_themselves(copied):
    net, x = updated_network(), torch.rand(2, 3, 8, 8)
    other = copied(net)
    assert torch.equal(other(x), net(x))
    with torch.no_grad():
        other[0].low_rank.up.zero_()
    assert not torch.equal(other(x), net(x))


def test_updates_from_before_are_merged_first():
    net, x = updated_network(), torch.rand(2, 3, 8, 8)
    before = net(x)
    add_updates(net, 3, "ones", torch.Generator().manual_seed(1))
    torch.testing.assert_close(net(x), before, rtol=1e-5, atol=1e-6)
    assert all(layer.low_rank.up.count_nonzero() == 0 for layer in updated_layers(net).values())


class Standardised(nn.Conv2d):
    """A convolution with a forward of its own that reads the weight twice."""

    def forward(self, x):
        weight = (self.weight - self.weight.mean((1, 2, 3), keepdim=True)) / self.weight.std((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias)


def test_a_subclass_keeps_its_own_forward_and_attention_is_reached_where_it_reads_a_weight():
    layer = Standardised(3, 4, 3)
    net = nn.Sequential(layer)
    add_updates(net, 2, "ones", torch.Generator().manual_seed(0))
    before = net(torch.ones(1, 3, 5, 5))
    torch.nn.init.ones_(layer.low_rank.up[:1])
    assert isinstance(layer, Standardised)
    assert not torch.equal(net(torch.ones(1, 3, 5, 5)), before)
    attention = nn.MultiheadAttention(8, 2)
    assert list(updatable_layers(attention)) == ["out_proj"]
    add_updates(attention, 2, "ones", torch.Generator().manual_seed(0))
    tokens = torch.rand(3, 1, 8)
    before = attention(tokens, tokens, tokens)[0]
    torch.nn.init.ones_(attention.out_proj.low_rank.up)
    assert not torch.equal(attention(tokens, tokens, tokens)[0], before)


def test_layers_without_a_weight_of_their_own_are_left_alone():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    assert updatable_layers(nn.Sequential(normed, nn.LazyLinear(3), nn.BatchNorm2d(4))) == {}
    head = nn.Linear(4, 4)
    assert list(updatable_layers(nn.Sequential(nn.Linear(4, 4), nn.Sequential(head)), [head])) == ["0"]


def test_what_is_said_of_updates():
    net = network()
    add_updates(net, 4, "ones", torch.Generator().manual_seed(0))
    start = describe_updates(net)
    assert start["0"] == {"rank": 3, "zeros": 0.0, "effective_rank": 0.0, "change": 0.0}
    assert start["2"]["rank"] == 4
    weight, low_rank = net[4]._parameters["weight"], net[4].low_rank
    with torch.no_grad():
        low_rank.up.copy_(torch.eye(4))
        low_rank.down.copy_(torch.eye(4, 128))
        low_rank.gate.copy_(torch.tensor([2.0, 2.0, 0.0, 0.0]))
    found = describe_updates(net)["4"]
    assert found["zeros"] == 0.5
    assert found["effective_rank"] == pytest.approx(2.0)
    assert found["change"] == pytest.approx(8**0.5 / weight.norm().item())


def test_singular_values_of_a_product():
    a, b = torch.randn(9, 3, dtype=torch.float64), torch.randn(3, 20, dtype=torch.float64)
    torch.testing.assert_close(product_singular_values(a, b), torch.linalg.svdvals(a @ b)[:3])
    assert effective_rank(torch.tensor([1.0, 0.0])) == pytest.approx(1.0)
    assert 1 < effective_rank(torch.tensor([1.0, 0.2])) < 2


def test_soft_threshold_is_the_proximal_map():
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    candidates = torch.linspace(-2, 2, 4001, dtype=torch.float64)
    cost = 0.5 * (candidates - x[:, None]) ** 2 + 0.3 * candidates.abs()
    torch.testing.assert_close(soft_threshold(x, 0.3), candidates[cost.argmin(1)], atol=1e-3, rtol=0)
    assert (soft_threshold(x, 0.3) == 0).sum() == (x.abs() <= 0.3).sum()


def test_layers_that_share_a_weight_share_its_update():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    net[2].weight = net[0].weight
    x, generator = torch.rand(2, 4, 6, 6), torch.Generator().manual_seed(0)
    assert set(add_updates(net, 2, "ones", generator)) == {f"0.low_rank.{name}" for name in ("down", "up", "gate")}
    with torch.no_grad():
        net[0].low_rank.up.normal_(generator=generator)
        expected = net(x)
        other = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        other[2].weight = other[0].weight
        other.load_state_dict(net.state_dict())
        torch.testing.assert_close(other(x), expected)
        torch.testing.assert_close(merge(net)(x), expected)
    assert net[2].weight is net[0].weight
