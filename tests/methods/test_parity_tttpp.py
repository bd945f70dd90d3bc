"""TTT++ against a plain loop: contrast of views, distances of moments with a queue, chance from source batches."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from following_reference import Running, covariance
from parity_check import BATCH_NORM, MIN_BATCH, SIZES, assert_close, batches, make_optimizer, network
from torch import Tensor, nn
from torch.nn import functional as F

import offsupport
from offsupport.augment import simclr_views
from offsupport.nn import WithProjection


def unit(stream):
    return [x.clamp(0, 1) for x in stream]


SOURCE = unit(batches((40, 40, 40, 30), seed=1, drift=0))


def projected(norm: str) -> WithProjection:
    backbone = network(norm, sharpness=3.0)
    for layer in backbone:
        if isinstance(layer, BATCH_NORM):
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
    with torch.no_grad():
        for x in SOURCE:
            backbone.train()(x)
    backbone.eval()
    torch.manual_seed(3)
    return WithProjection(backbone, nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 5)).double())


class Reference:
    """One pass with one step per batch; ``queued`` says for each step whether past features took part."""

    def __init__(self, net: WithProjection, queue: int = 1536, chance: str = "rows", **options):
        self.net, self.body, self.queue, self.chance, self.options = net, net.backbone, queue, chance, options
        encoder = [p for name, p in self.body.named_parameters() if not name.startswith("head.")]
        self.opt = make_optimizer("sgd", encoder, options.get("lr", 1e-3))
        self.running = Running(self.body)
        self.generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            parts = [self.running.forward(self.body[:-1], x, "running") for x in SOURCE]
            sets = {"ext": parts, "ssh": [net.projection(z) for z in parts]}
        self.moments = {name: (torch.cat(z).mean(0), covariance(torch.cat(z))) for name, z in sets.items()}
        self.by_chance = {name: chance_distances(z) for name, z in sets.items()}
        self.past: dict[str, list[Tensor]] = {"ext": [], "ssh": []}
        self.queued: list[bool] = []

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            if len(x) >= MIN_BATCH:
                self.opt.zero_grad()
                one, two = simclr_views(x, self.generator)
                views = self.running.forward(self.body[:-1], torch.cat([one, two]), "train")
                z = self.running.forward(self.body[:-1], x, "train")
                self.contrast(self.net.projection(views)).backward()
                scales = self.options.get("feature_scale", 0.05), self.options.get("projection_scale", 0.2)
                (scales[0] * self.distance("ext", z)).backward(retain_graph=True)
                (scales[1] * self.distance("ssh", self.net.projection(z))).backward()
                self.opt.step()
            yield self.running.score(self.body, x, self.options.get("score_stats", "batch"))

    def contrast(self, h: Tensor) -> Tensor:
        t, base = self.options.get("temperature", 0.5), self.options.get("base_temperature", 0.07)
        h, n = F.normalize(h, dim=1), len(h) // 2
        total = 0.0
        for i in range(2 * n):
            others = torch.cat([h[:i], h[i + 1 :]]) @ h[i] / t
            total = total + others.logsumexp(0) - h[i] @ h[(i + n) % (2 * n)] / t
        return total / (2 * n) * (1 if base is None else t / base)

    def distance(self, name: str, z: Tensor) -> Tensor:
        need = max(self.queue - len(z), 0)
        past = self.past[name]
        filled = len(past) >= need
        rows = torch.cat([*(row[None] for row in past[len(past) - need :]), z]) if filled and need else z
        if name == "ext":
            self.queued.append(len(rows) > len(z))
        past.extend(z.detach())
        mean, cov = self.moments[name]
        size = len(rows) if self.chance == "rows" else max(self.queue, len(z))
        c0, m0 = (value / size for value in self.by_chance[name])
        coral = (cov - covariance(rows)).square().sum() / (4 * len(mean) ** 2)
        gap = (mean - rows.mean(0)).square().mean()
        return coral / c0 + self.options.get("mean_weight", 0.5) * gap / m0


def chance_distances(parts: list[Tensor]) -> tuple[float, float]:
    """Mean distances of later batches of one size from the first, times that size."""
    first, rest = parts[0], [z for z in parts[1:] if len(z) == len(parts[0])]
    corals = [(covariance(first) - covariance(z)).square().sum() / (4 * z.shape[1] ** 2) for z in rest]
    gaps = [(first.mean(0) - z.mean(0)).square().mean() for z in rest]
    return tuple(float(sum(values)) / len(values) * len(first) for values in (corals, gaps))


OPTIONS = {
    "defaults": {},
    "queue": {"queue": 64, "chance": "queue", "lr": 1e-5},
    "rows": {"queue": 90, "feature_scale": 0.5, "lr": 1e-5},
    "no_queue": {"queue": 0, "mean_weight": 2.0, "lr": 1e-4},
    "unscaled": {"base_temperature": None, "temperature": 0.2, "projection_scale": 0.01, "score_stats": "running"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_tttpp(norm, options):
    net, start = projected(norm), projected(norm)
    stream = unit(batches(SIZES))
    reference = Reference(net, **options)
    stats = offsupport.source_stats(start, SOURCE, method="tttpp")
    adapted = offsupport.adapt(start, "tttpp", source=stats, collapse="off", **options)
    for t, (x, expected) in enumerate(zip(stream, reference.run(stream), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        for name, value in net.state_dict().items():
            assert_close(adapted.model.state_dict()[name].double(), value.double(), f"{name} after batch {t}")
    assert len(reference.queued) == 10
    assert any(reference.queued) == (0 < options.get("queue", 1536) <= 100)
    moved = {name for name, p in adapted.model.named_parameters() if not torch.equal(p, start.get_parameter(name))}
    assert any(name.startswith("backbone.conv0") for name in moved)
    assert not any(name.startswith(("projection", "backbone.head")) for name in moved)


def test_the_loss_by_finite_differences():
    net = projected("batch")
    stats = offsupport.source_stats(net, SOURCE, method="tttpp")
    adapted = offsupport.adapt(net, "tttpp", source=stats, queue=40, collapse="off")
    for x in unit(batches((24, 24))):
        adapted(x)
    start = adapted.snapshot()
    generator = torch.Generator().manual_seed(0)
    z, one, two = (torch.randn(n, d, dtype=torch.float64, generator=generator) for n, d in ((6, 12), (4, 5), (4, 5)))

    def loss(*seen):
        adapted.restore(start)
        return adapted.loss(*seen)

    assert torch.autograd.gradcheck(loss, [each.requires_grad_() for each in (z, one, two)])


def test_chance_falls_with_the_size_of_the_sets():
    """The distances by chance between sets of n are 1/n of those between sets of one, whatever n they come from."""
    generator = torch.Generator().manual_seed(0)
    net = WithProjection(nn.Sequential(nn.Flatten(), nn.Linear(48, 48), nn.Linear(48, 3)), nn.Linear(48, 5)).eval()
    images = torch.rand(6000, 3, 4, 4, generator=generator)
    small, large = (offsupport.source_stats(net, images.split(n), method="tttpp").tensors for n in (50, 400))
    for name in ("feature_coral", "feature_gap", "projection_coral", "projection_gap"):
        assert math.isclose(float(small[name]), float(large[name]), rel_tol=0.25), name
