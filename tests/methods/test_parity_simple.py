"""Source, batch-norm statistics and TENT against plain loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from parity_check import (
    SIZES,
    assert_close,
    assert_parity,
    batches,
    change,
    dense_network,
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

import offsupport

NETWORKS = {
    "bn": lambda: network("batch"),
    "gn": lambda: network("group"),
    "dense-bn": lambda: dense_network("batch"),
    "dense-gn": lambda: dense_network("group"),
}


def statistics_for(net: nn.Module, x: Tensor) -> str:
    return "blend" if too_small(net, x) else "batch"


def reference_tent(
    net: nn.Module, stream: list[Tensor], optimizer: str, lr: float, momentum: float
) -> Iterator[Tensor]:
    opt = make_optimizer(optimizer, norm_parameters(net), lr, momentum)
    for x in stream:
        logits = forward(net, x, statistics_for(net, x))
        if not too_small(net, x):
            step(opt, entropy(logits).mean())
        yield logits.detach()


@pytest.mark.parametrize("kind", NETWORKS)
def test_source_is_the_model_in_eval_mode(kind):
    net = NETWORKS[kind]()
    stream = batches(SIZES)
    reference = (forward(net, x, "source").detach() for x in stream)
    assert_parity(offsupport.adapt(net, "source", collapse="off", input_range=None), net, reference, stream)


@pytest.mark.parametrize("kind", ["bn", "dense-bn"])
def test_bn_uses_batch_statistics_and_blends_small_batches(kind):
    net = NETWORKS[kind]()
    stream = batches(SIZES)
    reference = (forward(net, x, statistics_for(net, x)).detach() for x in stream)
    assert_parity(offsupport.adapt(net, "bn", collapse="off", input_range=None), net, reference, stream)


def test_bn_blend_lies_between_source_and_batch_statistics():
    net = network("batch")
    x = batches([8])[0]
    adapted = offsupport.adapt(net, "bn", collapse="off", input_range=None)
    blend, batch, source = (forward(net, x, name).detach() for name in ("blend", "batch", "source"))
    assert_close(adapted(x), blend, "blend")
    assert (blend - batch).norm() > 0.01 * batch.norm()
    assert (blend - source).norm() > 0.01 * source.norm()
    assert_close(offsupport.adapt(net, "bn", min_batch=8, input_range=None)(x), batch, "min_batch")
    assert_close(offsupport.adapt(net, "bn", prior=0.0, input_range=None)(x), batch, "no prior")


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_tent(kind, optimizer):
    net, start = NETWORKS[kind](), NETWORKS[kind]()
    lr, stream = {"adam": 1e-2, "sgd": 5e-2}[optimizer], batches(SIZES)
    reference = reference_tent(net, stream, optimizer, lr, momentum=0.9)
    assert_parity(
        offsupport.adapt(start, "tent", lr=lr, optimizer=optimizer, collapse="off", input_range=None),
        net,
        reference,
        stream,
    )
    assert moved(net, start) == {"norm0", "norm1", "norm2", "norm3"}
    assert change(net, start) > 0.01


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_tent_momentum(optimizer):
    net, stream = network("batch"), batches(SIZES)
    adapted = offsupport.adapt(
        net, "tent", lr=1e-2, optimizer=optimizer, momentum=0.5, collapse="off", input_range=None
    )
    assert_parity(adapted, net, reference_tent(net, stream, optimizer, 1e-2, momentum=0.5), stream)


def test_tent_defaults_are_adam_at_one_thousandth():
    net, stream = network("batch", classes=10), batches(SIZES)
    adapted = offsupport.adapt(net, "tent", collapse="off", input_range=None)
    assert_parity(adapted, net, reference_tent(net, stream, "adam", 1e-3, momentum=0.9), stream)


def test_tent_lowers_the_entropy_of_a_repeated_batch():
    net = network("group")
    x = batches([32])[0]
    adapted = offsupport.adapt(net, "tent", lr=1e-2, collapse="off", input_range=None)
    first, *_, last = (entropy(adapted(x)).mean() for _ in range(10))
    assert last < first
