"""ROID, CMF, DeYO, RPL and RDumb against plain loops."""

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
    entropy,
    forward,
    make_optimizer,
    moved,
    network,
    norm_parameters,
    step,
    too_small,
)
from tesla_reference import images
from torch import Tensor, nn

import offsupport
from offsupport.augment import cotta_view, shuffled_patches

CLASSES = 7


def scaled(values: Tensor) -> Tensor:
    return (values - values.min()) / (values.max() - values.min()) if values.max() > values.min() else 0 * values


class Roid:
    """ROID; with ``filtered``, CMF."""

    def __init__(self, net, *, optimizer="adam", lr=1e-3, temperature=1 / 3, decay=0.9, source=0.99, **switches):
        self.net, self.parameters, self.switches = net, norm_parameters(net), switches
        self.opt = make_optimizer(optimizer, self.parameters, lr)
        self.start = [p.detach().clone() for p in self.parameters]
        self.hidden, self.v = [p.clone() for p in self.start], 0.0
        self.temperature, self.decay, self.source = temperature, decay, source
        self.m, self.generator = torch.full((CLASSES,), 1 / CLASSES).double(), torch.Generator().manual_seed(0)
        self.dropped = 0

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            if too_small(self.net, x):
                yield forward(self.net, x, "blend").detach()
                continue
            logits = forward(self.net, x)
            self.adapt(x, logits)
            yield self.corrected(logits.detach())

    def adapt(self, x: Tensor, logits: Tensor) -> None:
        p = logits.softmax(1)
        w = self.weights(p.detach())
        self.m = self.decay * self.m + (1 - self.decay) * p.detach().mean(0)
        kept = [i for i in range(len(x)) if w[i] > 0]
        self.dropped += len(x) - len(kept)
        q = p[kept].clamp(max=0.99)
        loss = (w[kept] * -(q * (q / (1 - q) + 1e-5).log()).sum(1)).sum() / len(x)
        if self.switches.get("consistency", True):
            other = forward(self.net, cotta_view(x[kept], self.generator, "reflection", noise=0.0)).softmax(1)
            cross = -0.5 * (p[kept] * other.log()).sum(1) - 0.5 * (other * p[kept].log()).sum(1)
            loss = loss + (w[kept] * cross).sum() / len(x)
        step(self.opt, loss)
        with torch.no_grad():
            self.back_by_filter() if self.switches.get("filtered") else self.back()

    def weights(self, p: Tensor) -> Tensor:
        if not self.switches.get("weighting", True):
            return torch.ones(len(p)).double()
        d = scaled(1 - (p @ self.m) / (p.norm(dim=1) * self.m.norm()))
        c = scaled((p * p.log()).sum(1))
        return torch.where(d < d.mean(), 0.0, (d * c / self.temperature).exp())

    def back(self) -> None:
        for parameter, source in zip(self.parameters, self.start, strict=True):
            parameter.copy_(self.source * parameter + (1 - self.source) * source)

    def back_by_filter(self) -> None:
        alpha, gamma = self.switches.get("alpha", 0.99), self.switches.get("gamma", 0.99)
        q = self.switches.get("q", 0.005) * sum(p.numel() for p in self.parameters) / 38400
        self.v = alpha**2 * self.v + q
        beta = (1 - q) / (self.v + 1 - q)
        beta = 0.89 if beta < 0.89 else 1.0 if beta > 0.9999 else beta
        self.v *= beta
        for i, (parameter, source) in enumerate(zip(self.parameters, self.start, strict=True)):
            predicted = alpha * self.hidden[i] + (1 - alpha) * source
            self.hidden[i] = beta * predicted + (1 - beta) * parameter.detach()
            parameter.copy_(gamma * parameter + (1 - gamma) * self.hidden[i])

    def corrected(self, logits: Tensor) -> Tensor:
        kind = self.switches.get("correction", "off")
        p = logits.softmax(1).mean(0)
        s = max(1 / len(logits), 1 / CLASSES) / p.max()
        prior = (p + s) / (1 + s * CLASSES)
        return {"off": logits, "paper": logits * prior, "log": logits + prior.log()}[kind]


@pytest.mark.parametrize(
    ("norm", "options", "settings"),
    [
        ("batch", {}, {}),
        (
            "group",
            {"lr": 0.01, "optimizer": "sgd", "source_decay": 0.9},
            {"lr": 0.01, "optimizer": "sgd", "source": 0.9},
        ),
        ("batch", {"consistency": False, "prior_correction": "paper"}, {"consistency": False, "correction": "paper"}),
        ("batch", {"weighting": False, "prior_correction": "log"}, {"weighting": False, "correction": "log"}),
    ],
)
def test_roid(norm, options, settings):
    net, start, stream = network(norm), network(norm), images(SIZES)
    if "prior_correction" in options:
        stream = [x for x in stream if len(x) >= 16]  # small batches are not corrected, as blended statistics are not
    reference = Roid(net, **settings)
    assert_parity(offsupport.adapt(start, "roid", collapse="off", **options), net, reference.run(stream), stream)
    assert moved(net, start) == {"norm0", "norm1", "norm2", "norm3"}
    assert bool(reference.dropped) == ("weighting" not in options)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"lr": 0.01}, {"lr": 0.01}),
        ({"lr": 0.01, "alpha": 0.7, "gamma": 0.5, "q": 0.9}, {"lr": 0.01, "alpha": 0.7, "gamma": 0.5, "q": 0.9}),
    ],
)
def test_cmf(options, settings):
    net, start, stream = network("batch"), network("batch"), images(SIZES)
    reference = Roid(net, filtered=True, **settings)
    adapted = offsupport.adapt(start, "cmf", collapse="off", **options)
    assert_parity(adapted, net, reference.run(stream), stream)
    assert adapted.memory["variance"].item() == pytest.approx(reference.v, rel=TOLERANCE)
    adapted.reset()
    assert adapted.memory["variance"].item() == 0.0


def reference_deyo(net, stream, seen, *, lr=1e-3, margin=0.5, drop=0.2, weight_margin=0.4, patches=4):
    opt, most = make_optimizer("sgd", norm_parameters(net, ("norm3",)), lr), math.log(CLASSES)
    generator = torch.Generator().manual_seed(0)
    for x in stream:
        if too_small(net, x):
            yield forward(net, x, "blend").detach()
            continue
        logits = forward(net, x)
        h, p = entropy(logits), logits.detach().softmax(1)
        sure = [i for i in range(len(x)) if h[i] < margin * most]
        chosen, fell = [], []
        if sure:
            small = too_small(net, x[sure])
            shuffled = shuffled_patches(x[sure], patches, generator)
            after = forward(net, shuffled, "blend" if small else "batch").detach().softmax(1)
            for row, i in zip(after, sure, strict=True):
                label = p[i].argmax()
                if p[i, label] - row[label] > drop:
                    chosen.append(i)
                    fell.append(p[i, label] - row[label])
        seen.append((len(x), len(sure), len(chosen)))
        if chosen:
            weight = (weight_margin * most - h[chosen].detach()).exp() + torch.stack(fell).exp()
            step(opt, (weight * h[chosen]).mean())
        yield logits.detach()


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("options", [{"lr": 0.02}, {"lr": 0.02, "margin": 0.7, "drop": 0.05, "patches": 2}])
def test_deyo(norm, options):
    net, start, stream, seen = network(norm, sharpness=3.0), network(norm, sharpness=3.0), batches(SIZES), []
    adapted = offsupport.adapt(start, "deyo", collapse="off", input_range=None, **options)
    assert_parity(adapted, net, reference_deyo(net, stream, seen, **options), stream)
    all_, sure, chosen = (sum(column) for column in zip(*seen, strict=True))
    assert all_ > sure > chosen > 0


def reference_rpl(net, stream, q):
    opt = make_optimizer("adam", norm_parameters(net), 1e-2)
    for x in stream:
        if too_small(net, x):
            yield forward(net, x, "blend").detach()
            continue
        logits = forward(net, x)
        p = logits.softmax(1)
        label = p.argmax(1)
        step(opt, ((1 - p[torch.arange(len(x)), label] ** q) / q).mean())
        yield logits.detach()


@pytest.mark.parametrize(("norm", "q"), [("batch", 0.8), ("group", 0.3)])
def test_rpl(norm, q):
    net, start, stream = network(norm), network(norm), batches(SIZES)
    adapted = offsupport.adapt(start, "rpl", lr=1e-2, q=q, collapse="off", input_range=None)
    assert_parity(adapted, net, reference_rpl(net, stream, q), stream)


def reference_rdumb(net: nn.Sequential, stream: list[Tensor], every: int, resets: list[int]) -> Iterator[Tensor]:
    start, served, p_bar = copy.deepcopy(net.state_dict()), 0, None
    opt = make_optimizer("adam", norm_parameters(net), 1e-2)
    for t, x in enumerate(stream):
        if served >= every:
            net.load_state_dict(start)
            opt, served, p_bar = make_optimizer("adam", norm_parameters(net), 1e-2), 0, None
            resets.append(t)
        served += len(x)
        if too_small(net, x):
            yield forward(net, x, "blend").detach()
            continue
        logits = forward(net, x)
        h, p, e0 = entropy(logits), logits.detach().softmax(1), 0.4 * math.log(CLASSES)
        keep = h < e0
        if p_bar is not None:
            keep &= (p @ p_bar) / (p.norm(dim=1) * p_bar.norm()) < 0.6
        if keep.any():
            step(opt, ((e0 - h[keep].detach()).exp() * h[keep]).mean())
            p_bar = p[keep].mean(0) if p_bar is None else 0.9 * p_bar + 0.1 * p[keep].mean(0)
        yield logits.detach()


def test_rdumb_is_eta_that_starts_anew():
    net, start, stream, resets = network("batch", sharpness=3.0), network("batch", sharpness=3.0), batches(SIZES), []
    adapted = offsupport.adapt(
        start, "rdumb", lr=1e-2, redundancy=0.6, reset_every=90, collapse="off", input_range=None
    )
    assert_parity(adapted, net, reference_rdumb(net, stream, 90, resets), stream)
    assert len(resets) == adapted.events["reset"] == 2


def test_rdumb_resets_every_64000_images_where_nothing_is_said():
    assert offsupport.adapt(network("batch"), "rdumb").reset_every == 64_000
    assert offsupport.adapt(network("batch"), "rdumb", reset_every=0).reset_every == 0
    assert offsupport.adapt(network("batch"), "tent").reset_every == 0
