"""SAR against a plain loop: two filters, the sharpness-aware step, the running loss, recovery and excluded layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from parity_check import (
    SIZES,
    TOLERANCE,
    assert_parity,
    batches,
    change,
    dense_network,
    entropy,
    forward,
    make_optimizer,
    moved,
    network,
    norm_parameters,
    too_small,
)
from torch import Tensor, nn

import offsupport

LR = {"adam": 3e-3, "sgd": 2e-2}
NETWORKS = {"bn": network, "gn": network, "dense-bn": dense_network, "dense-gn": dense_network}
SHARPNESS = 3.0


def make(kind: str) -> nn.Sequential:
    return NETWORKS[kind]("batch" if kind.endswith("bn") else "group", sharpness=SHARPNESS)


class Reference:
    """``first`` and ``second`` count the predictions behind each filter; ``recoveries`` the batches that recovered."""

    def __init__(
        self, net: nn.Sequential, optimizer: str, lr: float, skip: tuple[str, ...] = ("norm3",), **options: float
    ):
        self.net, self.parameters = net, norm_parameters(net, skip)
        self.start = copy.deepcopy(net.state_dict())
        self.new_optimizer = lambda: make_optimizer(optimizer, self.parameters, lr)
        classes = net.head.weight.shape[0]
        self.margin = options.get("margin", 0.4) * math.log(classes)
        self.reset_below = options.get("reset_below", 0.02) * math.log(classes)
        self.rho, self.decay = options.get("rho", 0.05), options.get("loss_decay", 0.9)
        self.opt, self.running_loss = self.new_optimizer(), None
        self.seen: list[int] = []
        self.first: list[int] = []
        self.second: list[int] = []
        self.recoveries: list[int] = []

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for t, x in enumerate(stream):
            if too_small(self.net, x):
                yield forward(self.net, x, "blend").detach()
                continue
            logits = forward(self.net, x)
            self.adapt(x, entropy(logits))
            if self.running_loss is not None and self.running_loss < self.reset_below:
                self.recoveries.append(t)
                self.net.load_state_dict(self.start)
                self.opt, self.running_loss = self.new_optimizer(), None
            yield logits.detach()

    def adapt(self, x: Tensor, h: Tensor) -> None:
        s1 = h < self.margin
        self.seen.append(len(h))
        self.first.append(int(s1.sum()))
        if not s1.any():
            return
        perturbation = self.ascent(h[s1].mean())
        self.move(perturbation, +1)
        h2 = entropy(forward(self.net, x))
        s2 = s1 & (h2 < self.margin)
        self.second.append(int(s2.sum()))
        loss = h2[s2].mean()
        if s2.any():
            self.opt.zero_grad()
            loss.backward()
        self.move(perturbation, -1)
        if not s2.any():
            return
        self.opt.step()
        old = self.running_loss
        self.running_loss = loss.item() if old is None else self.decay * old + (1 - self.decay) * loss.item()

    def ascent(self, loss: Tensor) -> list[Tensor]:
        gradients = torch.autograd.grad(loss, self.parameters)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        return [self.rho * g / norm for g in gradients]

    @torch.no_grad()
    def move(self, perturbation: list[Tensor], sign: int) -> None:
        for parameter, eps in zip(self.parameters, perturbation, strict=True):
            parameter += sign * eps


def assert_both_filters_act(reference: Reference) -> None:
    assert sum(reference.seen) > sum(reference.first) > sum(reference.second) > 0
    assert len(reference.second) >= 10


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_sar(kind, optimizer):
    net, start, stream = make(kind), make(kind), batches(SIZES)
    reference = Reference(net, optimizer, LR[optimizer], rho=0.3)
    adapted = offsupport.adapt(
        start, "sar", lr=LR[optimizer], optimizer=optimizer, rho=0.3, collapse="off", input_range=None
    )
    assert_parity(adapted, net, reference.run(stream), stream)
    assert_both_filters_act(reference)
    assert adapted.memory["loss"].item() == pytest.approx(reference.running_loss, rel=TOLERANCE)
    assert moved(net, start) == {"norm0", "norm1", "norm2"}  # of four norm layers, a quarter is left alone
    assert change(net, start) > 0.001


@pytest.mark.parametrize("kind", ["bn", "gn"])
def test_recovery(kind):
    net, stream = make(kind), batches(SIZES)
    options = {"reset_below": 0.2, "loss_decay": 0.5}
    reference = Reference(net, "sgd", 0.2, **options)
    adapted = offsupport.adapt(net, "sar", lr=0.2, collapse="off", input_range=None, **options)
    assert_parity(adapted, net, reference.run(stream), stream)
    assert 0 < len(reference.recoveries) < len(stream) / 2
    assert min(reference.recoveries) > 0
    assert adapted.events["reset"] == len(reference.recoveries)


def test_an_empty_second_filter_makes_no_step():
    net, stream = make("bn"), batches(SIZES)
    options = {"margin": 0.15, "rho": 1.0}
    reference = Reference(net, "sgd", 0.02, **options)
    adapted = offsupport.adapt(net, "sar", lr=0.02, collapse="off", input_range=None, **options)
    assert_parity(adapted, net, reference.run(stream), stream)
    assert 0 in reference.second
    assert any(reference.second)


@pytest.mark.parametrize(
    ("option", "skip"),
    [
        ({"exclude_last": 0.0}, ()),
        ({"exclude_last": 0.5}, ("norm2", "norm3")),
        ({"exclude": r"norm[02]"}, ("norm0", "norm2")),
        ({"exclude": r"^norm1$"}, ("norm1",)),
    ],
)
def test_excluded_layers(option, skip):
    net, start, stream = make("bn"), make("bn"), batches(SIZES)
    adapted = offsupport.adapt(start, "sar", lr=0.02, collapse="off", input_range=None, **option)
    assert_parity(adapted, net, Reference(net, "sgd", 0.02, skip=skip).run(stream), stream)
    assert moved(net, start) == {"norm0", "norm1", "norm2", "norm3"} - set(skip)


@pytest.mark.parametrize("classes", [4, 10, 30])
def test_defaults_scale_with_the_number_of_classes(classes):
    net, stream = network("batch", classes, SHARPNESS), batches(SIZES)
    reference = Reference(net, "sgd", 0.03)
    assert_parity(offsupport.adapt(net, "sar", collapse="off", input_range=None), net, reference.run(stream), stream)
    assert sum(reference.seen) > sum(reference.first) > 0
