"""EATA and ETA against a plain loop: two filters, weights, running mean prediction and the Fisher penalty."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from parity_check import (
    SIZES,
    assert_close,
    assert_parity,
    batches,
    change,
    entropy,
    forward,
    make_optimizer,
    moved,
    network,
    norm_parameters,
    step,
    too_small,
)
from torch import Tensor, nn
from torch.nn import functional as F

import offsupport

pytestmark = pytest.mark.filterwarnings("ignore:eata without source statistics is ETA")
LR = {"adam": 5e-3, "sgd": 2e-3}


class Reference:
    """``reliable`` and ``kept`` count the samples behind the first and behind both filters, batch by batch."""

    def __init__(self, net: nn.Sequential, optimizer: str, lr: float, classes: int, **options: float):
        self.net, self.parameters = net, norm_parameters(net)
        self.opt = make_optimizer(optimizer, self.parameters, lr)
        self.margin = options.get("margin", 0.4) * math.log(classes)
        self.redundancy = options.get("redundancy", 1.265 / math.sqrt(classes))
        self.alpha, self.decay = options.get("fisher_weight", 1.0), options.get("memory_decay", 0.9)
        self.source = [p.detach().clone() for p in self.parameters]
        self.fisher = [torch.zeros_like(p) for p in self.parameters]
        self.mean_prediction: Tensor | None = None
        self.reliable: list[int] = []
        self.kept: list[int] = []

    def see_source(self, stream: list[Tensor]) -> None:
        for x in stream:
            logits = forward(self.net, x)
            loss = F.cross_entropy(logits, logits.argmax(1))
            for fisher, gradient in zip(self.fisher, torch.autograd.grad(loss, self.parameters), strict=True):
                fisher += gradient**2 / len(stream)

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            if too_small(self.net, x):
                yield forward(self.net, x, "blend").detach()
                continue
            logits = forward(self.net, x)
            kept = self.filtered(logits.detach())
            if kept:
                step(self.opt, self.loss(logits[kept]))
                mean = logits[kept].softmax(1).mean(0).detach()
                old = self.mean_prediction
                self.mean_prediction = mean if old is None else self.decay * old + (1 - self.decay) * mean
            yield logits.detach()

    def filtered(self, logits: Tensor) -> list[int]:
        reliable = [i for i, h in enumerate(entropy(logits)) if h < self.margin]
        kept = [i for i in reliable if not self.redundant(logits[i].softmax(0))]
        self.reliable.append(len(reliable))
        self.kept.append(len(kept))
        return kept

    def redundant(self, p: Tensor) -> bool:
        m = self.mean_prediction
        return m is not None and abs(m @ p) / (m.norm() * p.norm()) >= self.redundancy

    def loss(self, logits: Tensor) -> Tensor:
        h = entropy(logits)
        loss = (torch.exp(self.margin - h.detach()) * h).mean()
        for p, p0, fisher in zip(self.parameters, self.source, self.fisher, strict=True):
            loss = loss + self.alpha * (fisher * (p - p0) ** 2).sum()
        return loss


def assert_both_filters_act(reference: Reference, stream: list[Tensor]) -> None:
    seen = [len(x) for x in stream if not too_small(reference.net, x)]
    assert any(0 < reliable < n for reliable, n in zip(reference.reliable, seen, strict=True))
    assert any(0 < kept < reliable for kept, reliable in zip(reference.kept, reference.reliable, strict=True))
    assert sum(kept > 0 for kept in reference.kept) >= 5


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("with_source", [True, False])
def test_eata(norm, optimizer, with_source):
    net, start = network(norm, sharpness=3.0), network(norm, sharpness=3.0)
    stream, source_stream = batches(SIZES, drift=0.3), batches((32, 20, 28), seed=1, drift=0)
    options = {"fisher_weight": 20.0, "redundancy": 0.65}
    reference = Reference(net, optimizer, LR[optimizer], 7, **options)
    source = None
    if with_source:
        source = offsupport.source_stats(start, source_stream, method="eata")
        reference.see_source(source_stream)
    adapted = offsupport.adapt(
        start, "eata", source=source, lr=LR[optimizer], optimizer=optimizer, collapse="off", input_range=None, **options
    )
    assert_parity(adapted, net, reference.run(stream), stream)
    assert_both_filters_act(reference, stream)
    assert moved(net, start) == {"norm0", "norm1", "norm2", "norm3"}
    assert change(net, start) > 0.0005


def test_fisher_holds_the_parameters_near_the_source():
    source_stream, stream = batches((32, 20, 28), seed=1), batches(SIZES)
    distances = []
    for weight in (0.0, 1000.0):
        start = network("batch", sharpness=3.0)
        source = offsupport.source_stats(start, source_stream, method="eata")
        adapted = offsupport.adapt(
            start, "eata", source=source, fisher_weight=weight, redundancy=0.6, collapse="off", input_range=None
        )
        for x in stream:
            adapted(x)
        distances.append(change(adapted.model, start))
    assert distances[1] < distances[0]


@pytest.mark.parametrize("classes", [4, 10, 30])
def test_defaults_scale_with_the_number_of_classes(classes):
    net, stream = network("batch", classes, sharpness=6.0), batches(SIZES, drift=0.3)
    reference = Reference(net, "adam", 1e-3, classes)
    adapted = offsupport.adapt(net, "eata", collapse="off", input_range=None)
    assert_parity(adapted, net, reference.run(stream), stream)
    assert_both_filters_act(reference, stream)


def test_margin_and_memory_decay():
    net, stream = network("batch", sharpness=3.0), batches(SIZES, drift=0.3)
    options = {"margin": 0.3, "memory_decay": 0.5, "redundancy": 0.7}
    reference = Reference(net, "adam", 5e-3, 7, **options)
    assert_parity(
        offsupport.adapt(net, "eata", lr=5e-3, collapse="off", input_range=None, **options),
        net,
        reference.run(stream),
        stream,
    )
    assert_both_filters_act(reference, stream)


def test_nothing_kept_makes_no_step():
    net, stream = network("batch"), batches((24, 24))
    adapted = offsupport.adapt(net, "eata", margin=1e-6, collapse="off", input_range=None)
    for x in stream:
        assert_close(adapted(x), forward(net, x).detach(), "logits")
    assert moved(adapted.model, net) == set()
    assert adapted.events["empty_selection"] == 2
