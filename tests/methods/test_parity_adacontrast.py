"""AdaContrast against a plain loop with lists for bank and queue."""

from __future__ import annotations

import copy

import pytest
import torch
from parity_check import SIZES, assert_close, forward, make_optimizer, network, step
from tesla_reference import images
from test_parity_rotta import Net
from torch import Tensor, nn

import offsupport
from offsupport.augment import color_jitter, flip, grayscale, simclr_view, weak_views


class Reference:
    def __init__(self, net: nn.Sequential, *, lr=2e-4, decay=0.999, bank=999, k=10, after=1024, queue=999, full=False):
        self.student, self.teacher = Net(net, 0.1), Net(copy.deepcopy(net), 0.1)
        self.opt = make_optimizer("sgd", list(net.parameters()), lr)
        self.decay, self.sizes, self.k, self.after, self.full = decay, (bank, queue), k, after, full
        self.bank: list[tuple[Tensor, Tensor]] = []
        self.queue: list[tuple[Tensor, int]] = []
        self.generator, self.seen, self.votes, self.masked = torch.Generator().manual_seed(0), 0, 0, 0

    def strong(self, x: Tensor) -> Tensor:
        if self.full:
            return simclr_view(x, self.generator)
        return grayscale(color_jitter(flip(x, self.generator), self.generator), self.generator)

    def features(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in list(net.net)[:-1]:
            x = net.normalised(layer, x, "train") if layer in net.stats else layer(x)
        return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12), net.net[-1](x)

    def run(self, stream: list[Tensor]):
        for x in stream:
            if len(x) < 16:
                yield self.small(x)
                continue
            self.adapt(x)
            yield forward(self.student.net, x).detach()

    def small(self, x: Tensor) -> Tensor:
        for layer in self.student.net:
            if layer in self.student.stats:
                mean, var = self.student.stats[layer]
                channels, n = x.transpose(0, 1).flatten(1), len(x)
                mean = (n * channels.mean(1) + 16 * mean) / (n + 16)
                var = (n * channels.var(1, unbiased=False) + 16 * var) / (n + 16)
                shape = (1, -1) + (1,) * (x.dim() - 2)
                x = (x - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt() * layer.weight.view(shape)
                x = x + layer.bias.view(shape)
            else:
                x = layer(x)
        return x.detach()

    def adapt(self, x: Tensor) -> None:
        weak = weak_views(x, 1, self.generator)[0]
        one, two = self.strong(x), self.strong(x)
        with torch.no_grad():
            z, logits = self.features(self.student, weak)
            labels = [self.label(a, b) for a, b in zip(z, logits, strict=True)]
            for mine, theirs in zip(self.teacher.net.parameters(), self.student.net.parameters(), strict=True):
                mine.copy_(self.decay * mine + (1 - self.decay) * theirs)
            keys, _ = self.features(self.teacher, two)
            past, said = self.features(self.teacher, weak)
        q, f = self.features(self.student, one)
        loss = nn.functional.cross_entropy(f, torch.tensor(labels))
        if self.queue:
            terms = []
            for row, key, label in zip(q, keys, labels, strict=True):
                others = [z for z, y in self.queue if y != label]
                self.masked += len(self.queue) - len(others)
                choice = torch.stack([row @ key, *(row @ z for z in others)]) / 0.07
                terms.append(-choice.log_softmax(0)[0])
            loss = loss + torch.stack(terms).mean()
        p = f.softmax(1).mean(0)
        step(self.opt, loss + (p * p.log()).sum())
        self.seen += len(x)
        self.bank = (self.bank + list(zip(past, said.softmax(1), strict=True)))[-self.sizes[0] :]
        self.queue = (self.queue + list(zip(keys, labels, strict=True)))[-self.sizes[1] :]

    def label(self, z: Tensor, logits: Tensor) -> int:
        if self.seen < self.after or not self.bank:
            return int(logits.argmax())
        self.votes += 1
        nearest = sorted(self.bank, key=lambda each: -float(z @ each[0]))[: self.k]
        return int(torch.stack([p for _, p in nearest]).mean(0).argmax())


@pytest.mark.parametrize(
    ("norm", "options", "settings"),
    [
        ("batch", {}, {}),
        (
            "batch",
            {"lr": 0.02, "decay": 0.5, "bank": 50, "neighbours": 3, "vote_after": 30, "queue": 40},
            {"lr": 0.02, "decay": 0.5, "bank": 50, "k": 3, "after": 30, "queue": 40},
        ),
        ("group", {"vote_after": 0, "strong": "full", "lr": 0.02}, {"after": 0, "full": True, "lr": 0.02}),
    ],
)
def test_adacontrast(norm, options, settings):
    net, start, stream = network(norm), network(norm), images(SIZES)
    reference = Reference(net, **settings)
    adapted = offsupport.adapt(start, "adacontrast", collapse="off", **options)
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        for name, value in net.named_parameters():
            assert_close(dict(adapted.model.named_parameters())[name], value, f"{name} after batch {t}")
    assert (reference.votes > 0) == ("vote_after" in options)
    assert reference.masked > 0
