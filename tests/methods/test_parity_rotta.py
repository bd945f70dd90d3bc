"""RoTTA and NOTE against loops over single images with plain lists for memories."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from parity_check import BATCH_NORM, SIZES, assert_close, entropy, make_optimizer, network, norm_parameters, step
from tesla_reference import images
from torch import Tensor, nn

import offsupport
from offsupport.augment import cotta_view

CLASSES = 7


class Net:
    """A network whose batch norm has statistics of its own and one of three ways to use them."""

    def __init__(self, net: nn.Sequential, momentum: float):
        self.net, self.momentum = net, momentum
        layers = [layer for layer in net if isinstance(layer, BATCH_NORM)]
        self.stats = {layer: [layer.running_mean.clone(), layer.running_var.clone()] for layer in layers}

    def __call__(self, x: Tensor, how: str) -> Tensor:
        for layer in self.net:
            x = self.normalised(layer, x, how) if isinstance(layer, BATCH_NORM) else layer(x)
        return x

    def normalised(self, layer: nn.Module, x: Tensor, how: str) -> Tensor:
        mean, var = self.stats[layer]
        channels = x.transpose(0, 1).flatten(1)
        m, own = self.momentum, (channels.mean(1), channels.var(1, unbiased=False))
        if how == "robust":
            mean, var = (1 - m) * mean + m * own[0], (1 - m) * var + m * own[1]
            self.stats[layer] = [mean.detach(), var.detach()]
        if how == "train":
            unbiased = channels.var(1).detach()
            self.stats[layer] = [(1 - m) * mean + m * own[0].detach(), (1 - m) * var + m * unbiased]
            mean, var = own
        shape = (1, -1) + (1,) * (x.dim() - 2)
        normal = (x - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt()
        return normal * layer.weight.view(shape) + layer.bias.view(shape)


class Rotta:
    def __init__(self, net, optimizer="adam", lr=1e-3, decay=0.999, momentum=0.05, size=64, every=64, lt=1.0, lu=1.0):
        self.student, self.teacher = Net(net, momentum), Net(copy.deepcopy(net), momentum)
        self.opt = make_optimizer(optimizer, norm_parameters(net), lr)
        self.decay, self.size, self.every, self.lt, self.lu = decay, size, every, lt, lu
        self.memory: list[list[dict]] = [[] for _ in range(CLASSES)]
        self.generator, self.seen, self.steps, self.refused = torch.Generator().manual_seed(0), 0, 0, 0

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            logits = self.teacher(x, "eval").detach()
            for image, label, u in zip(x, logits.argmax(1).tolist(), entropy(logits).tolist(), strict=True):
                self.add({"image": image, "u": u, "age": 0}, label)
                for each in itertools.chain(*self.memory):
                    each["age"] += 1
                self.seen += 1
                if self.seen % self.every == 0:
                    self.update()
            yield logits

    def score(self, item: dict) -> float:
        return self.lt / (1 + math.exp(-item["age"] / self.size)) + self.lu * item["u"] / math.log(CLASSES)

    def add(self, item: dict, label: int) -> None:
        counts = [len(each) for each in self.memory]
        if counts[label] < self.size / CLASSES:
            if sum(counts) < self.size:
                self.memory[label].append(item)
                return
            classes = [k for k in range(CLASSES) if counts[k] == max(counts)]
        else:
            classes = [label]
        worst = max((self.score(each), k, i) for k in classes for i, each in enumerate(self.memory[k]))
        if worst[0] > self.score(item):
            self.memory[worst[1]].pop(worst[2])
            self.memory[label].append(item)
        else:
            self.refused += 1

    def update(self) -> None:
        # In the order they came: the published memory goes class by class, and a sum does not depend on it.
        items = sorted(itertools.chain(*self.memory), key=lambda each: -each["age"])
        batch = torch.stack([each["image"] for each in items])
        with torch.no_grad():
            q = self.teacher(batch, "robust").softmax(1)
        w = torch.tensor([-i["age"] / self.size for i in items], dtype=torch.float64).sigmoid()
        logits = self.student(cotta_view(batch, self.generator), "robust")
        step(self.opt, (w * -(q * logits.log_softmax(1)).sum(1)).mean())
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.net.parameters(), self.student.net.parameters(), strict=True):
                mine.copy_(self.decay * mine + (1 - self.decay) * theirs)
        self.steps += 1


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        (
            {"lr": 0.02, "decay": 0.5, "bn_momentum": 0.3, "capacity": 12, "update_every": 10, "optimizer": "sgd"},
            {"lr": 0.02, "decay": 0.5, "momentum": 0.3, "size": 12, "every": 10, "optimizer": "sgd"},
        ),
        (
            {"capacity": 5, "update_every": 16, "age_weight": 0.2, "entropy_weight": 3.0, "decay": 0.9},
            {"size": 5, "every": 16, "lt": 0.2, "lu": 3.0, "decay": 0.9},
        ),
    ],
)
def test_rotta(norm, options, settings):
    net, start, stream = network(norm), network(norm), images(SIZES)
    reference = Rotta(net, **settings)
    adapted = offsupport.adapt(start, "rotta", collapse="off", **options)
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        for name, value in net.named_parameters():
            assert_close(dict(adapted.model.named_parameters())[name], value, f"{name} after batch {t}")
    assert reference.steps >= 4
    assert reference.refused > 0 or not options
    assert any(not torch.equal(p, q) for p, q in zip(net.parameters(), start.parameters(), strict=True))


class Note:
    def __init__(self, net, optimizer="adam", lr=1e-4, momentum=0.01, size=64, every=64):
        self.net, self.opt = Net(net, momentum), make_optimizer(optimizer, norm_parameters(net), lr)
        self.size, self.every, self.seen, self.steps = size, every, 0, 0
        self.memory: list[list[tuple[int, Tensor]]] = [[] for _ in range(CLASSES)]
        self.came, self.generator = [0] * CLASSES, torch.Generator().manual_seed(0)

    def draw(self, n: int) -> int:
        return int(torch.randint(n, (), generator=self.generator))

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            logits = self.net(x, "eval").detach()
            for image, label in zip(x, logits.argmax(1).tolist(), strict=True):
                self.came[label] += 1
                if self.makes_room(label):
                    self.memory[label].append((self.seen, image))
                self.seen += 1
                if self.seen % self.every == 0:
                    batch = torch.stack([each[1] for each in sorted(itertools.chain(*self.memory), key=lambda e: e[0])])
                    step(self.opt, entropy(self.net(batch, "train")).mean())
                    self.steps += 1
            yield logits

    def makes_room(self, label: int) -> bool:
        counts = [len(each) for each in self.memory]
        if sum(counts) < self.size:
            return True
        largest = [k for k in range(CLASSES) if counts[k] == max(counts)]
        if label not in largest:
            k = largest[self.draw(len(largest))]
        elif torch.rand((), generator=self.generator, dtype=torch.float64).item() <= counts[label] / self.came[label]:
            k = label
        else:
            return False
        self.memory[k].pop(self.draw(counts[k]))
        return True


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        (
            {"lr": 0.02, "bn_momentum": 0.2, "capacity": 12, "update_every": 10, "optimizer": "sgd"},
            {"lr": 0.02, "momentum": 0.2, "size": 12, "every": 10, "optimizer": "sgd"},
        ),
    ],
)
def test_note(norm, options, settings):
    net, start, stream = network(norm), network(norm), images(SIZES)
    reference = Note(net, **settings)
    adapted = offsupport.adapt(start, "note", collapse="off", **options)
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        for name, value in net.named_parameters():
            assert_close(dict(adapted.model.named_parameters())[name], value, f"{name} after batch {t}")
    assert reference.steps >= 4
    assert adapted.memory["came"].tolist() == reference.came


def test_the_memory_holds_copies_and_starts_anew_with_images_of_another_size():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    adapted = offsupport.adapt(net, "rotta", capacity=6, update_every=5)
    adapted(torch.rand(8, 3, 10, 10))
    kept = [adapted.memory[f"bank/{i}"] for i in range(6) if adapted.memory[f"bank/{i}"].numel()]
    assert kept
    assert all(image.untyped_storage().nbytes() == image.nbytes for image in kept)
    adapted(torch.rand(3, 3, 12, 12))
    sizes = {tuple(adapted.memory[f"bank/{i}"].shape) for i in range(6)}
    assert sizes == {(0,), (3, 12, 12)}
