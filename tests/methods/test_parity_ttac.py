"""TTAC against loops over classes with torch.distributions, and its source statistics against torch.cov."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from following_reference import Running, covariance
from parity_check import MIN_BATCH, SIZES, assert_close, assert_parity, batches, change, make_optimizer, moved, network
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import offsupport
from offsupport.methods import SourceStats

SOURCE = batches((60, 50, 70), seed=1, drift=0)


class Reference:
    """The published loop without a queue; ``aligned`` counts the classes in the loss, batch by batch."""

    def __init__(self, net: nn.Sequential, classes: int = 7, **options):
        self.net, self.classes, self.options = net, classes, options
        encoder = [p for name, p in net.named_parameters() if not name.startswith("head.")]
        self.opt = make_optimizer("sgd", encoder, options.get("lr", 1e-2))
        self.running = Running(net, options.get("bn_momentum", 0.1))
        with torch.no_grad():
            z = torch.cat([self.running.forward(net[:-1], x, "running") for x in SOURCE])
            labels = net.head(z).argmax(1)
        self.mean, self.cov = z.mean(0), covariance(z)
        self.class_z = {k: z[labels == k] for k in range(classes) if (labels == k).sum() > 1}
        self.ridge = self.cov.max() * options.get("ridge", 1 / 30) * torch.eye(z.shape[1], dtype=z.dtype)
        self.known = {k: (rows.mean(0), self.formed(covariance(rows))) for k, rows in self.class_z.items()}
        self.now = dict(self.known)
        self.seen = dict.fromkeys(range(classes), float(options.get("class_prior", 0)))
        self.all_mean, self.all_cov, self.all_seen = torch.zeros_like(self.mean), torch.zeros_like(self.cov), 0.0
        self.aligned: list[int] = []
        self.sure: list[int] = []

    def formed(self, cov: Tensor) -> Tensor:
        return torch.diag(cov.diagonal()) if self.options.get("class_cov") == "diagonal" else cov

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            if len(x) >= MIN_BATCH:
                z = self.running.forward(self.net[:-1], x, "train")
                self.opt.zero_grad()
                (self.options.get("scale", 0.05) * (self.class_loss(z) + self.global_loss(z))).backward()
                self.opt.step()
            yield self.running.score(self.net, x, self.options.get("score_stats", "batch"))

    def moved_on(self, z: Tensor, mean: Tensor, cov: Tensor, seen: float, length: int) -> tuple[Tensor, Tensor]:
        a = 1 / min(seen, max(length, len(z)))
        gaps = [row - mean for row in z]
        delta = a * sum(gaps)
        outer = sum(torch.outer(gap, gap) for gap in gaps)
        return mean + delta, cov + a * (outer - len(z) * cov) - torch.outer(delta, delta)

    def divergence(self, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (MultivariateNormal(mean, cov + self.ridge) for mean, cov in (source, target))
        return kl_divergence(a, b) + kl_divergence(b, a)

    def global_loss(self, z: Tensor) -> Tensor:
        self.all_seen += len(z)
        length = self.options.get("global_length", 1280)
        target = self.moved_on(z, self.all_mean, self.all_cov, self.all_seen, length)
        self.all_mean, self.all_cov = (each.detach() for each in target)
        return self.divergence((self.mean, self.cov), target)

    def class_loss(self, z: Tensor) -> Tensor:
        p, labels = self.net.head(z).detach().softmax(1).max(1)
        sure = p > self.options.get("confidence", 0.9)
        self.sure.append(int(sure.sum()))
        total, terms = torch.zeros((), dtype=z.dtype), 0
        for k in range(self.classes):
            rows = z[sure & (labels == k)]
            if not len(rows):
                continue
            self.seen[k] += len(rows)
            if k not in self.known:
                continue
            target = self.moved_on(rows, *self.now[k], self.seen[k], self.options.get("class_length", 128))
            target = (target[0], self.formed(target[1]))
            self.now[k] = tuple(each.detach() for each in target)
            if self.seen[k] >= self.options.get("class_min", 16):
                total, terms = total + self.divergence(self.known[k], target), terms + 1
        self.aligned.append(terms)
        return total if self.options.get("class_terms") == "sum" else total / self.classes


def adapted_to(net: nn.Module, **options):
    stats = offsupport.source_stats(net, SOURCE, method="ttac")
    return offsupport.adapt(net, "ttac", source=stats, collapse="off", input_range=None, **options)


OPTIONS = {
    "defaults": {},
    "sums": {"class_terms": "sum", "class_prior": 64, "class_length": 64, "lr": 3e-3},
    "diagonal": {"class_cov": "diagonal", "class_min": 4, "lr": 1e-3},
    "short": {"global_length": 50, "class_length": 6, "class_min": 1, "confidence": 0.6, "ridge": 0.1, "lr": 1e-3},
    "strong": {"scale": 0.5, "bn_momentum": 0.4, "lr": 1e-3, "score_stats": "running"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_ttac(norm, options):
    net, start = network(norm, sharpness=6.0), network(norm, sharpness=6.0)
    stream = batches(SIZES)
    reference = Reference(net, **options)
    assert_parity(adapted_to(start, **options), net, reference.run(stream), stream)
    assert len(reference.aligned) == 10
    assert any(0 < sure < size for sure, size in zip(reference.sure, [s for s in SIZES if s >= 16], strict=True))
    assert any(reference.aligned)
    assert "head" not in moved(net, start)
    assert change(net, start) > 1e-4


def test_source_moments_are_those_of_the_features_by_predicted_class():
    net = network("batch", sharpness=6.0)
    stats = offsupport.source_stats(net, SOURCE, method="ttac")
    with torch.no_grad():
        z = net[:-1](torch.cat(SOURCE))
        labels = net.head(z).argmax(1)
    found = stats.tensors
    assert_close(found["feature_mean"], z.mean(0), "mean")
    assert_close(found["feature_cov"], torch.cov(z.T), "covariance")
    assert found["class_cov"].shape == (7, 12, 12)
    assert found["class_count"].tolist() == torch.bincount(labels, minlength=7).tolist()
    for k in labels.unique().tolist():
        rows = z[labels == k]
        assert_close(found["class_mean"][k], rows.mean(0), f"mean of {k}")
        if len(rows) > 1:
            assert_close(found["class_cov"][k], torch.cov(rows.T), f"covariance of {k}")


def test_a_class_that_no_source_image_had_is_never_aligned():
    net = network("batch", sharpness=6.0)
    with torch.no_grad():
        net.head.bias[3] = -1e3
    stats = offsupport.source_stats(net, SOURCE, method="ttac")
    assert stats.tensors["class_count"][3] == 0
    outcomes = []
    for shift in (0.0, 5.0):
        tensors = stats.tensors | {"class_mean": stats.tensors["class_mean"].clone()}
        tensors["class_mean"][3] += shift
        changed = SourceStats(stats.method, stats.model_sha256, stats.samples, tensors)
        adapted = offsupport.adapt(
            net, "ttac", source=changed, class_min=1, confidence=0.0, collapse="off", input_range=None
        )
        with torch.no_grad():
            adapted.model.head.bias[3] = 1e3  # now everything is predicted to be of that class
        outcomes.append(torch.cat([adapted(x) for x in batches((24, 24, 24))]))
    assert torch.equal(*outcomes)


def test_the_gradient_goes_through_the_batch_alone():
    net = network("batch", sharpness=6.0)
    adapted = adapted_to(net, class_min=1, confidence=0.3)
    for x in batches(SIZES[:3]):
        adapted(x)
    assert not any(adapted.memory[name].requires_grad for name in adapted.memory)
    z = torch.randn(20, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    start = adapted.snapshot()

    def loss(z):
        adapted.restore(start)
        return adapted.loss(z, net.head(z))

    assert torch.autograd.gradcheck(loss, z)
