"""SHOT against a plain loop: information maximisation, centroid pseudo-labels, scoring before and after the step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from parity_check import (
    MIN_BATCH,
    SIZES,
    assert_parity,
    batches,
    change,
    entropy,
    forward,
    make_optimizer,
    moved,
    network,
    step,
)
from torch import Tensor, nn
from torch.nn import functional as F

import offsupport

LR = {"adam": 3e-3, "sgd": 3e-2}


class Reference:
    """The published loss, one step per batch; ``labels`` keeps the pseudo-labels next to the predicted classes."""

    def __init__(
        self, net: nn.Sequential, optimizer: str, lr: float, pseudo_weight: float = 0.0, score: str = "before"
    ):
        self.net, self.pseudo_weight, self.score = net, pseudo_weight, score
        features = [p for name, p in net.named_parameters() if not name.startswith("head.")]
        self.opt = make_optimizer(optimizer, features, lr)
        self.labels: list[tuple[Tensor, Tensor]] = []

    def run(self, stream: list[Tensor]) -> Iterator[Tensor]:
        for x in stream:
            if len(x) < MIN_BATCH:  # the marginal needs a batch, whatever the norm layers
                yield forward(self.net, x, "blend").detach()
                continue
            features = forward(self.net[:-1], x)
            logits = self.net.head(features)
            step(self.opt, self.loss(features, logits))
            yield (forward(self.net, x) if self.score == "after" else logits).detach()

    def loss(self, features: Tensor, logits: Tensor) -> Tensor:
        p_bar = logits.softmax(1).mean(0)
        loss = entropy(logits).mean() + (p_bar * p_bar.log()).sum()
        if self.pseudo_weight:
            labels = pseudo_labels(features.detach(), logits.detach())
            self.labels.append((labels, logits.argmax(1)))
            loss = loss + self.pseudo_weight * F.cross_entropy(logits, labels)
        return loss


def pseudo_labels(features: Tensor, logits: Tensor) -> Tensor:
    z = F.normalize(torch.cat([features, torch.ones(len(features), 1)], 1), dim=1)
    weights = logits.softmax(1)  # (N, K)
    candidates = sorted(set(logits.argmax(1).tolist()))  # classes nobody is predicted to be in are dropped
    for _ in range(2):  # soft centroids, then one round of hard ones
        labels = []
        centroids = {k: (weights[:, k, None] * z).sum(0) / weights[:, k].sum().clamp_min(1e-30) for k in candidates}
        for row in z:
            nearness = [F.cosine_similarity(row, centroids[k], dim=0).item() for k in candidates]
            labels.append(candidates[nearness.index(max(nearness))])
        weights = F.one_hot(torch.tensor(labels), logits.shape[1]).double()
    return torch.tensor(labels)


@pytest.mark.parametrize("score", ["before", "after"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_information_maximisation(norm, optimizer, score):
    net, start = network(norm), network(norm)
    stream = batches(SIZES)
    adapted = offsupport.adapt(
        start, "shot", lr=LR[optimizer], optimizer=optimizer, score=score, collapse="off", input_range=None
    )
    assert_parity(adapted, net, Reference(net, optimizer, LR[optimizer], score=score).run(stream), stream)
    assert moved(net, start) >= {"conv0", "conv1", "conv2", "hidden", "norm0", "norm1", "norm2", "norm3"}
    assert "head" not in moved(adapted.model, start)
    assert change(net, start) > 0.01


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_pseudo_labels(norm, optimizer):
    net, start = network(norm), network(norm)
    stream = batches(SIZES, drift=0.4)
    adapted = offsupport.adapt(
        start,
        "shot",
        lr=LR[optimizer],
        optimizer=optimizer,
        pseudo_weight=0.3,
        score="after",
        collapse="off",
        input_range=None,
    )
    reference = Reference(net, optimizer, LR[optimizer], pseudo_weight=0.3, score="after")
    assert_parity(adapted, net, reference.run(stream), stream)
    assert len(reference.labels) >= 10
    assert any(not torch.equal(labels, predicted) for labels, predicted in reference.labels)
    assert any(len(predicted.unique()) < 7 for _, predicted in reference.labels)  # some class had to be dropped


def test_defaults_are_sgd_without_pseudo_labels_scored_before():
    net, stream = network("batch", classes=10), batches(SIZES)
    adapted = offsupport.adapt(net, "shot", collapse="off", input_range=None)
    assert_parity(adapted, net, Reference(net, "sgd", 1e-3).run(stream), stream)
