"""T3A against lists of supports that are sorted anew for every batch."""

from __future__ import annotations

import pytest
import torch
from parity_check import SIZES, assert_close, batches, entropy, forward, network
from torch import Tensor, nn

import offsupport
from offsupport.core.errors import ModelError


def reference(net: nn.Sequential, stream: list[Tensor], keep: int):
    head = net[-1]
    supports = {k: [(entropy(head(w[None]))[0].item(), w.detach())] for k, w in enumerate(head.weight)}
    for x in stream:
        z = forward(list(net)[:-1], x, "source").detach()
        logits = head(z).detach()
        for row, h, label in zip(z, entropy(logits).tolist(), logits.argmax(1).tolist(), strict=True):
            supports[label].append((h, row))
        supports = {k: sorted(each, key=lambda pair: pair[0])[:keep] for k, each in supports.items()}
        centroids = [sum(row / row.norm() for _, row in each) for each in supports.values()]
        yield torch.stack([z @ (c / c.norm()) for c in centroids], 1)


@pytest.mark.parametrize("keep", [1, 20])
def test_t3a(keep):
    net, stream = network("batch"), batches(SIZES)
    adapted = offsupport.adapt(net, "t3a", supports=keep, collapse="off", input_range=None)
    for t, (x, expected) in enumerate(zip(stream, reference(net, stream, keep), strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")


def test_a_thousand_classes_and_one_image():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 1000))
    adapted = offsupport.adapt(net, "t3a", input_range=None)
    x = torch.rand(1, 12)
    logits = adapted(x)
    assert logits.shape == (1, 1000)
    label = int(net(x).argmax())
    assert len(adapted.memory[f"supports/{label}"]) == 2
    assert sum(adapted.memory[f"supports/{k}"].numel() > 0 for k in range(1000)) == 1


def test_a_classifier_that_is_not_linear_is_refused_when_wrapping():
    net = nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten())
    with pytest.raises(ModelError, match="linear classifier"):
        offsupport.adapt(net, "t3a", head="0")
