"""CoTTA, PeTTA, NEO and the loss of COME against plain loops."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from parity_check import (
    SIZES,
    assert_close,
    assert_parity,
    batches,
    entropy,
    forward,
    make_optimizer,
    network,
    norm_parameters,
    step,
    too_small,
)
from tesla_reference import images
from test_parity_rotta import Net, Rotta
from torch import Tensor

import offsupport
from offsupport.augment import cotta_view, shuffled_patches
from offsupport.core.errors import ModelError
from offsupport.functional import uncertainty

CLASSES = 7


def cross_entropy(p: Tensor, log_q: Tensor) -> Tensor:
    return -(p * log_q).sum(1)


class Cotta:
    def __init__(
        self, net, *, lr=1e-3, optimizer="adam", decay=0.999, views=32, sure=0.9, restore=0.01, symmetric=False
    ):
        self.net, self.teacher, self.source = net, copy.deepcopy(net), copy.deepcopy(net)
        self.opt = make_optimizer(optimizer, list(net.parameters()), lr)
        self.decay, self.views, self.sure, self.restore, self.symmetric = decay, views, sure, restore, symmetric
        self.generator, self.asked = torch.Generator().manual_seed(0), []

    def run(self, stream):
        for x in stream:
            if too_small(self.net, x):
                yield forward(self.teacher, x, "blend").detach()
                continue
            self.asked.append(forward(self.source, x).softmax(1).max(1).values.mean().item() < self.sure)
            if self.asked[-1]:
                views = [forward(self.teacher, cotta_view(x, self.generator)) for _ in range(self.views)]
                q = torch.stack(views).mean(0).detach()
            else:
                q = forward(self.teacher, x).detach()
            logits = forward(self.net, x)
            loss = cross_entropy(q.softmax(1), logits.log_softmax(1))
            if self.symmetric:
                loss = 0.5 * loss + 0.5 * cross_entropy(logits.softmax(1), q.log_softmax(1))
            step(self.opt, loss.mean())
            self.follow()
            yield q

    @torch.no_grad()
    def follow(self):
        trios = zip(self.teacher.parameters(), self.net.parameters(), self.source.parameters(), strict=True)
        trios = list(trios)
        for teacher, student, _ in trios:
            teacher.copy_(self.decay * teacher + (1 - self.decay) * student)
        for _, student, source in trios:
            chosen = torch.rand(student.shape, generator=self.generator) < self.restore
            student[chosen] = source[chosen]


@pytest.mark.parametrize(
    ("norm", "options", "settings"),
    [
        ("batch", {"views": 3, "lr": 0.05, "optimizer": "sgd", "decay": 0.9, "sure": 0.46}, {}),
        ("group", {"views": 2, "sure": 2.0, "restore": 0.3, "decay": 0.5}, {}),
        ("batch", {"sure": 0.0, "optimizer": "sgd", "lr": 0.05, "loss": "symmetric"}, {"symmetric": True}),
    ],
)
def test_cotta(norm, options, settings):
    net, start, stream = network(norm), network(norm), images(SIZES)
    kept = {name: value for name, value in options.items() if name != "loss"}
    reference = Cotta(net, **kept, **settings)
    adapted = offsupport.adapt(start, "cotta", collapse="off", **options)
    assert_parity(adapted, net, reference.run(stream), stream)
    assert all(reference.asked) == (options["sure"] == 2.0)
    assert any(reference.asked) == (options["sure"] > 0)


class Petta(Rotta):
    def __init__(self, net, stats, *, pull=10.0, anchor=1.0, rate=0.05, symmetric=True, **options):
        self.origin, self.source = Net(copy.deepcopy(net), 0.0), [p.detach().clone() for p in norm_parameters(net)]
        super().__init__(net, **options)
        self.stats, self.pull, self.anchor, self.rate, self.symmetric = stats, pull, anchor, rate, symmetric
        self.means, self.drifts = stats["class_mean"].clone(), []

    def update(self):
        items = sorted((each for group in self.memory for each in group), key=lambda each: -each["age"])
        batch = torch.stack([each["image"] for each in items])
        with torch.no_grad():
            z = batch
            for layer in list(self.teacher.net)[:-1]:
                z = self.teacher.normalised(layer, z, "robust") if layer in self.teacher.stats else layer(z)
            q = self.teacher.net[-1](z)
            drift = self.drift(z, q.argmax(1))
            self.drifts.append(drift)
            for mine, theirs in zip(self.origin.stats, self.teacher.stats, strict=True):
                self.origin.stats[mine] = self.teacher.stats[theirs]
            anchor = self.origin(batch, "eval").softmax(1)
        logits = self.student(cotta_view(batch, self.generator), "robust")
        log_p = logits.log_softmax(1)
        loss = cross_entropy(q.softmax(1), log_p)
        if self.symmetric:
            loss = 0.5 * loss + 0.5 * cross_entropy(logits.softmax(1), q.log_softmax(1))
        loss = loss.mean() + self.anchor * cross_entropy(anchor, log_p).mean()
        pairs = list(zip(norm_parameters(self.student.net), self.source, strict=True))
        likeness = sum((a * b).sum() / (a.norm() * b.norm()) for a, b in pairs) / len(pairs)
        step(self.opt, loss - self.pull * drift * likeness)
        rate = (1 - self.decay) * (1 - drift)
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.net.parameters(), self.student.net.parameters(), strict=True):
                mine.copy_((1 - rate) * mine + rate * theirs)
        self.steps += 1

    def drift(self, z: Tensor, labels: Tensor) -> float:
        gaps = []
        for k in sorted(set(labels.tolist())):
            self.means[k] = (1 - self.rate) * self.means[k] + self.rate * z[labels == k].mean(0)
            if self.stats["class_count"][k] >= 2:
                gaps.append((self.means[k] - self.stats["class_mean"][k]) ** 2 / (self.stats["class_cov"][k] + 1e-6))
        return 1 - math.exp(-torch.stack(gaps).mean().item()) if gaps else 0.0


@pytest.mark.parametrize(
    ("norm", "options", "settings"),
    [
        ("batch", {"update_every": 32, "lr": 0.01}, {"every": 32, "lr": 0.01}),
        (
            "group",
            {"update_every": 20, "capacity": 14, "decay": 0.5, "mean_rate": 0.4, "pull": 2.0, "loss": "cross_entropy"},
            {"every": 20, "size": 14, "decay": 0.5, "rate": 0.4, "pull": 2.0, "symmetric": False},
        ),
    ],
)
def test_petta(norm, options, settings):
    net, start, stream = network(norm), network(norm), images(SIZES)
    stats = offsupport.source_stats(start, images((40, 40), seed=5), "petta")
    reference = Petta(net, stats.tensors, **settings)
    adapted = offsupport.adapt(start, "petta", source=stats, collapse="off", **options)
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        for name, value in net.named_parameters():
            assert_close(dict(adapted.model.named_parameters())[name], value, f"{name} after batch {t}")
    assert reference.steps >= 8
    assert all(0 < drift < 1 for drift in reference.drifts)


def reference_neo(net, stream, home, *, prior=16.0, rate=None):
    mean, count = home.clone(), 0
    for x in stream:
        z = forward(list(net)[:-1], x, "source").detach()
        if rate is None:
            mean = ((prior + count) * mean + z.sum(0)) / (prior + count + len(x))
            count += len(x)
        else:
            mean = (1 - rate) * mean + rate * z.mean(0)
        yield net[-1](z - mean + home).detach()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("options", [{}, {"prior": 0.0}, {"mean": "recent", "rate": 0.3}])
def test_neo(known, options):
    net, stream = network("batch"), batches(SIZES)
    clean = batches((30, 20), seed=4)
    stats = offsupport.source_stats(net, clean, "neo", input_range=None) if known else None
    home = torch.cat([forward(list(net)[:-1], x, "source") for x in clean]).mean(0).detach()
    settings = {"rate": options["rate"]} if "rate" in options else options
    adapted = offsupport.adapt(net, "neo", source=stats, collapse="off", input_range=None, **options)
    reference = reference_neo(net, stream, home if known else 0 * home, **settings)
    assert_parity(adapted, net, reference, stream)


def test_neo_without_a_prior_knows_nothing_of_a_first_single_image():
    net, (x,) = network("batch"), batches([1])
    logits = offsupport.adapt(net, "neo", prior=0.0, input_range=None)(x)
    assert_close(logits, net.head.bias.detach()[None], "bias alone")
    assert not torch.allclose(offsupport.adapt(net, "neo", input_range=None)(x), logits)


def test_neo_needs_a_linear_classifier():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8), torch.nn.Flatten())
    with pytest.raises(ModelError, match="linear classifier"):
        offsupport.adapt(net, "neo", head="0")


def come(logits: Tensor) -> Tensor:
    """The opinion of the paper, written out."""
    classes, length = logits.shape[1], logits.norm(dim=1, keepdim=True)
    x = logits * length.detach() / length
    total = x.exp().sum(1, keepdim=True) + classes
    opinion = torch.cat([x.exp() / total, classes / total], 1)
    return -(opinion * opinion.log()).sum(1)


def test_come_is_the_entropy_of_an_opinion():
    logits = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    torch.testing.assert_close(uncertainty(logits, "come"), come(logits), rtol=1e-10, atol=1e-10)
    (gradient,) = torch.autograd.grad(uncertainty(logits, "come").sum(), logits)
    (expected,) = torch.autograd.grad(come(logits).sum(), logits)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)
    # Nothing pulls at the length of the logits.
    assert float((gradient * logits.detach()).sum(1).abs().max()) < 1e-12
    assert uncertainty(1000 * logits, "come").isfinite().all()
    assert uncertainty(torch.zeros(2, 6), "come").exp().allclose(torch.tensor(2 * 6**0.5))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_tent_with_the_loss_of_come(norm):
    net, start, stream = network(norm), network(norm), batches(SIZES)

    def reference():
        opt = make_optimizer("adam", norm_parameters(net), 1e-2)
        for x in stream:
            small = too_small(net, x)
            logits = forward(net, x, "blend" if small else "batch")
            if not small:
                step(opt, come(logits).mean())
            yield logits.detach()

    adapted = offsupport.adapt(start, "tent", loss="come", lr=1e-2, collapse="off", input_range=None)
    assert_parity(adapted, net, reference(), stream)


@pytest.mark.filterwarnings("ignore:eata without source statistics is ETA")
@pytest.mark.parametrize("method", ["eata", "rdumb", "sar", "deyo", "note"])
def test_other_entropy_methods_take_the_loss_of_come(method):
    (x,) = batches([32])
    net = network("group", sharpness=6.0)
    options = {"lr": 1e-2, "input_range": None, "optimizer": "sgd", "momentum": 0.0}
    options |= {"capacity": 32, "update_every": 32} if method == "note" else {"margin": 2.0}
    options |= {"rho": 0.0, "reset_below": 0.0, "exclude_last": 0.0} if method == "sar" else {}
    options |= {"drop": -1.0, "weight_margin": 2.0, "exclude_last": 0.0} if method == "deyo" else {}
    adapted = offsupport.adapt(net, method, loss="come", **options)
    h = come(forward(net, x))
    weight = 1.0 if method in ("sar", "note") else (2.0 * math.log(CLASSES) - h.detach()).exp()
    if method == "deyo":
        weight = weight + label_drop(net, x).exp()
    gradient = torch.autograd.grad((weight * h).mean(), norm_parameters(net))
    adapted(x)
    for after, before, g in zip(norm_parameters(adapted.model), norm_parameters(net), gradient, strict=True):
        assert_close(after, before - 1e-2 * g, "a step")
    assert not torch.equal(come(forward(net, x)), entropy(forward(net, x)))


@torch.no_grad()
def label_drop(net, x):
    """By how much the probability of each label falls when the patches of its image are shuffled."""
    p, after = (forward(net, y).softmax(1) for y in (x, shuffled_patches(x, 4, torch.Generator().manual_seed(0))))
    return torch.stack([p[i, k] - after[i, k] for i, k in enumerate(p.argmax(1).tolist())])
