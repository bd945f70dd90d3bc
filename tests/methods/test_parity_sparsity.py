"""+SC against plain loops over separate two-branch layers: y = W x + s U (g * D x)."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from parity_check import (
    NORM,
    SIZES,
    assert_close,
    batches,
    dense_network,
    entropy,
    forward,
    make_optimizer,
    network,
    norm_parameters,
    too_small,
)
from torch import Tensor, nn

import offsupport

pytestmark = pytest.mark.filterwarnings("ignore:.*layers allow", "ignore:eata without source")
NETWORKS = {"bn": lambda: network("batch"), "gn": lambda: network("group"), "dense-bn": lambda: dense_network("batch")}
RANK = 3


class TwoBranches(nn.Module):
    """A layer beside a gated low-rank branch, as published: three layers for one."""

    def __init__(self, host: nn.Module, down: Tensor, gate: Tensor | None) -> None:
        super().__init__()
        self.host = host
        rank = len(down)
        self.scale = RANK / rank
        if isinstance(host, nn.Linear):
            self.down = nn.Linear(host.in_features, rank, bias=False).double()
            self.up = nn.Linear(rank, host.out_features, bias=False).double()
        else:
            shape = (host.kernel_size, host.stride, host.padding)
            self.down = nn.Conv2d(host.in_channels, rank, *shape, bias=False).double()
            self.up = nn.Conv2d(rank, host.out_channels, 1, bias=False).double()
        self.down.weight = nn.Parameter(down.view_as(self.down.weight).clone())
        self.up.weight = nn.Parameter(torch.zeros_like(self.up.weight))
        self.gate = None if gate is None else nn.Parameter(gate.clone())

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(x)
        if self.gate is not None:
            inner = inner * self.gate.view(1, -1, *[1] * (inner.dim() - 2))
        return self.host(x) + self.scale * self.up(inner)


def with_branches(net: nn.Sequential, adapted: nn.Module, head: bool = True) -> nn.Sequential:
    """The network with branches that start where those of ``adapted`` do."""
    start = {name: p.detach().clone() for name, p in adapted.model.named_parameters() if ".low_rank." in name}
    layers = {}
    for name, layer in copy.deepcopy(net).named_children():
        if isinstance(layer, (nn.Conv2d, nn.Linear)) and (head or name != "head"):
            gate = start.get(f"{name}.low_rank.gate")
            layer = TwoBranches(layer, start[f"{name}.low_rank.down"], gate)
        layers[name] = layer
    full = nn.Sequential()
    for name, layer in layers.items():
        full.add_module(name, layer)
    return full


def low_rank_parameters(net: nn.Sequential) -> dict[str, nn.Parameter]:
    found = {}
    for name, layer in net.named_children():
        if isinstance(layer, TwoBranches):
            found |= {f"{name}.low_rank.up": layer.up.weight, f"{name}.low_rank.down": layer.down.weight}
            found |= {} if layer.gate is None else {f"{name}.low_rank.gate": layer.gate}
    return found


def reference(net, stream, loss, own, *, lr=1e-2, ratio_l=1.0, l1=0.0, prox=0.0, optimizer="adam") -> Iterator[Tensor]:
    low = low_rank_parameters(net)
    gates = [p for name, p in low.items() if name.endswith("gate")]
    optimizers = [make_optimizer(optimizer, list(low.values()), ratio_l * lr)]
    optimizers += [make_optimizer(optimizer, own, lr)] if own else []
    for x in stream:
        logits = forward(net, x, "blend" if too_small(net, x) else "batch")
        if not too_small(net, x):
            total = loss(logits)
            if l1:
                total = total + l1 * torch.cat([gate.abs() for gate in gates]).mean()
            for each in optimizers:
                each.zero_grad()
            total.backward()
            for each in optimizers:
                each.step()
            with torch.no_grad():
                for gate in gates:
                    gate.copy_(gate.sign() * (gate.abs() - prox).clamp(min=0))
        yield logits.detach()


def assert_constrained_parity(adapted, net, expected, stream) -> None:
    low = low_rank_parameters(net)
    for t, (x, logits) in enumerate(zip(stream, expected, strict=True)):
        assert_close(adapted(x), logits, f"logits of batch {t}")
        mine = dict(adapted.model.named_parameters())
        assert {name for name in mine if ".low_rank." in name} == set(low)
        for name, value in low.items():
            assert_close(mine[name].detach(), value.detach().reshape(mine[name].shape), f"{name} after batch {t}")
        for name, layer in net.named_children():
            if isinstance(layer, NORM):
                assert_close(mine[f"{name}.weight"].detach(), layer.weight.detach(), f"{name} after batch {t}")
    assert max(p.detach().abs().max() for name, p in low.items() if name.endswith("up")) > 1e-3


def mean_entropy(logits: Tensor) -> Tensor:
    return entropy(logits).mean()


SET_UPS = {
    "l1": ({"ratio_s": 0.5}, {"l1": 0.5}),
    "prox": ({"penalty": "prox", "prox": 0.03}, {"prox": 0.03}),
    "no penalty": ({"penalty": "none"}, {}),
    "no gates": ({"gates": False}, {}),
    "ratio": ({"penalty": "none", "ratio_l": 3.0}, {"ratio_l": 3.0}),
    "sgd": ({"optimizer": "sgd", "ratio_s": 0.5, "lr": 0.05}, {"optimizer": "sgd", "l1": 0.5, "lr": 0.05}),
}


@pytest.mark.parametrize("set_up", SET_UPS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_tent(kind, set_up):
    ours, theirs = SET_UPS[set_up]
    plain, stream = NETWORKS[kind](), batches(SIZES)
    options = {"lr": 1e-2, "ratio_l": 1.0, **ours}
    adapted = offsupport.adapt(plain, "tent+sc", rank=RANK, collapse="off", input_range=None, **options)
    net = with_branches(plain, adapted)
    expected = reference(net, stream, mean_entropy, norm_parameters(net), **theirs)
    assert_constrained_parity(adapted, net, expected, stream)


def test_a_frozen_base_and_a_head_left_alone():
    plain, stream = network("batch"), batches(SIZES)
    options = {"lr": 1e-2, "ratio_l": 1.0, "freeze_base": True, "head": False}
    adapted = offsupport.adapt(plain, "tent+sc", rank=RANK, collapse="off", input_range=None, **options)
    net = with_branches(plain, adapted, head=False)
    assert_constrained_parity(adapted, net, reference(net, stream, mean_entropy, [], l1=1e-3), stream)
    unmoved = [
        name for name, p in plain.named_parameters() if torch.equal(p, dict(adapted.model.named_parameters())[name])
    ]
    assert len(unmoved) == len(list(plain.parameters()))


def test_shot_trains_the_weights_below_the_updates_as_well():
    plain, stream = network("batch"), batches(SIZES)
    adapted = offsupport.adapt(plain, "shot+sc", rank=RANK, lr=5e-2, ratio_s=0.1, collapse="off", input_range=None)
    net = with_branches(plain, adapted)
    own = [p for name, p in net.named_parameters() if not name.startswith("head") and ".down" not in name]
    own = [p for p in own if all(p is not each for each in low_rank_parameters(net).values())]

    def information(logits: Tensor) -> Tensor:
        p = logits.softmax(1)
        return entropy(logits).mean() + (p.mean(0) * p.mean(0).log()).sum()

    expected = reference(net, stream, information, own, lr=5e-2, l1=0.1, optimizer="sgd")
    assert_constrained_parity(adapted, net, expected, stream)
    weights = dict(adapted.model.named_parameters())
    assert_close(weights["conv1.weight"].detach(), net.conv1.host.weight.detach(), "conv1")
    assert not torch.equal(weights["conv1.weight"], plain.conv1.weight)
    assert torch.equal(weights["head.weight"], plain.head.weight)


def test_fisher_weights_hold_the_parameters_of_the_method_alone():
    plain, stream = network("batch"), batches(SIZES)
    stats = offsupport.source_stats(plain, batches([32, 32], seed=5), "eata+sc")
    assert stats.method == "eata"
    assert set(stats.tensors) == {name for name, _ in plain.named_parameters() if name.startswith("norm")}
    options = {"lr": 1e-2, "margin": 2.0, "redundancy": 2.0, "fisher_weight": 50.0}
    adapted = offsupport.adapt(
        plain, "eata+sc", source=stats, rank=RANK, penalty="none", collapse="off", input_range=None, **options
    )
    net = with_branches(plain, adapted)
    own = {f"{n}.{k}": p for n, m in net.named_children() if isinstance(m, NORM) for k, p in m.named_parameters()}
    start = {name: p.detach().clone() for name, p in own.items()}

    def loss(logits: Tensor) -> Tensor:
        h = entropy(logits)
        weight = (2.0 * torch.tensor(float(logits.shape[1])).double().log() - h.detach()).exp()
        pull = sum((stats.tensors[name] * (p - start[name]) ** 2).sum() for name, p in own.items())
        return (weight * h).mean() + 50.0 * pull

    assert_constrained_parity(adapted, net, reference(net, stream, loss, list(own.values())), stream)


def test_sharpness_is_measured_over_all_parameters():
    plain, stream = network("group"), batches([24] * 10)
    options = {"lr": 1e-2, "margin": 2.0, "reset_below": 0.0, "rho": 0.1, "exclude_last": 0.0, "ratio_l": 1.0}
    adapted = offsupport.adapt(plain, "sar+sc", rank=RANK, penalty="none", collapse="off", input_range=None, **options)
    net = with_branches(plain, adapted)
    parameters = norm_parameters(net) + list(low_rank_parameters(net).values())
    opt = make_optimizer("sgd", parameters, 1e-2)

    def steps() -> Iterator[Tensor]:
        for x in stream:
            logits = forward(net, x)
            ascent = torch.autograd.grad(mean_entropy(logits), parameters)
            norm = torch.cat([g.flatten() for g in ascent]).norm()
            before = [p.detach().clone() for p in parameters]
            with torch.no_grad():
                for p, g in zip(parameters, ascent, strict=True):
                    p += 0.1 * g / (norm + 1e-12)
            descent = torch.autograd.grad(mean_entropy(forward(net, x)), parameters)
            with torch.no_grad():
                for p, value, g in zip(parameters, before, descent, strict=True):
                    p.copy_(value)
                    p.grad = g
            opt.step()
            yield logits.detach()

    assert_constrained_parity(adapted, net, steps(), stream)
