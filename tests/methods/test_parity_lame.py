"""LAME against its formulas written out, with all pairs of features."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from parity_check import SIZES, assert_close, batches, forward, network
from torch import Tensor

import offsupport


def likeness(z: Tensor, kind: str, k: int) -> Tensor:
    n = len(z)
    distance = (z[:, None] - z[None]).norm(dim=2)
    if kind == "rbf":
        width = distance.sort(1).values[:, min(k, n) - 1].mean()
        return (-distance.square() / (2 * width**2)).exp()
    if kind == "knn":
        rank = (distance + 9 * torch.eye(n)).argsort(1).argsort(1)
        return ((rank < k) & ~torch.eye(n, dtype=torch.bool)).double()
    return z @ z.T


def reference(net, x: Tensor, kind: str = "rbf", k: int = 5, weight: float = 1.0, rounds: int = 100) -> Tensor:
    z = forward(list(net)[:-1], x, "source").detach()
    p = net[-1](z).softmax(1).detach()
    if len(x) == 1:
        return net[-1](z).detach()
    unary = -(p + 1e-10).log()
    pairs, y, old = weight * likeness(z / z.norm(dim=1, keepdim=True), kind, k), (-unary).softmax(1), math.inf
    for i in range(rounds):
        pull = pairs @ y
        y = (-unary + pull).softmax(1)
        energy = (unary * y - pull * y + y * y.clamp(min=1e-300).log()).sum().item()
        if i > 1 and abs(energy - old) <= 1e-8 * abs(old):
            break
        old = energy
    return y.log()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"affinity": "knn", "neighbours": 3}, {"kind": "knn", "k": 3}),
        ({"affinity": "linear", "weight": 0.1}, {"kind": "linear", "weight": 0.1}),
        ({"rounds": 2, "neighbours": 2}, {"rounds": 2, "k": 2}),
    ],
)
def test_lame(options, settings):
    net = network("batch")
    adapted = offsupport.adapt(net, "lame", collapse="off", input_range=None, **options)
    for t, x in enumerate(batches(SIZES)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_close(adapted(x), reference(net, x, **settings), f"logits of batch {t}")


def test_copies_of_one_image_agree_and_stay_finite():
    net, x = network("batch"), batches([1])[0].repeat(8, 1, 1, 1)
    logits = offsupport.adapt(net, "lame", input_range=None)(x)
    assert logits.isfinite().all()
    assert (logits.argmax(1) == forward(net, x, "source").argmax(1)).all()
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))


def test_a_shuffled_stream_is_told_of_once_and_a_sorted_one_is_not():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(10, 10))
    with torch.no_grad():
        net[1].weight.copy_(10 * torch.eye(10))
        net[1].bias.zero_()
    adapted = offsupport.adapt(net, "lame", input_range=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted(torch.eye(10)[[3] * 20 + [4] * 12])
    mixed = torch.eye(10).repeat(4, 1)
    with pytest.warns(UserWarning, match="harms shuffled ones"):
        adapted(mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted(mixed)


def test_dense_predictions_are_refused():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 2, 1))
    with pytest.raises(offsupport.core.errors.ModelError, match="every position"):
        offsupport.adapt(net, "lame", head="1")(torch.rand(4, 3, 8, 8))
