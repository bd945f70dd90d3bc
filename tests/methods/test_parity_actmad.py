"""ActMAD against a plain loop over layers."""

from __future__ import annotations

import pytest
import torch
from parity_check import NORM, SIZES, assert_parity, batches, make_optimizer, moved, network, step
from torch import Tensor, nn

import offsupport
from offsupport.core.errors import InputError, ModelError

CLEAN = batches((30, 22), seed=3)


def outputs(net: nn.Sequential, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What norm layers give in evaluation mode, and the logits."""
    found = []
    for layer in net.eval():
        x = layer(x)
        if isinstance(layer, NORM):
            found.append(x)
    return found, x


def moments(z: Tensor, maps: str) -> tuple[Tensor, Tensor]:
    z = z.transpose(0, 1).flatten(1).T if maps == "channel" else z
    return z.mean(0), z.var(0)


def reference(net: nn.Sequential, stream: list[Tensor], maps: str, after: bool, lr: float):
    clean = [torch.cat(each).detach() for each in zip(*(outputs(net, x)[0] for x in CLEAN), strict=True)]
    home = [moments(z, maps) for z in clean]
    opt = make_optimizer("sgd", [p for name, p in net.named_parameters() if not name.startswith("head")], lr)
    for x in stream:
        found, logits = outputs(net, x)
        if len(x) >= 16:
            loss = 0.0
            for z, (mean, var) in zip(found, home, strict=True):
                mine = moments(z, maps)
                loss = loss + 0.5 * ((mine[0] - mean).abs().mean() + (mine[1] - var).abs().mean())
            step(opt, loss)
        yield (outputs(net, x)[1] if after else logits).detach()


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("maps", "score"), [("position", "after"), ("channel", "before")])
def test_actmad(norm, maps, score):
    net, start, stream = network(norm), network(norm), batches(SIZES)
    stats = offsupport.source_stats(start, CLEAN, "actmad")
    options = {"maps": maps, "score": score, "lr": 0.02, "collapse": "off", "input_range": None}
    adapted = offsupport.adapt(start, "actmad", source=stats, **options)
    assert_parity(adapted, net, reference(net, stream, maps, score == "after", 0.02), stream)
    assert "head" not in moved(net, start)
    assert {"conv0", "norm3"} <= moved(net, start)


def test_images_of_another_size_are_refused_with_a_remedy_and_taken_by_channels():
    net = network("batch")
    for maps in ("position", "channel"):
        stats = offsupport.source_stats(net, CLEAN, "actmad")
        adapted = offsupport.adapt(net, "actmad", source=stats, maps=maps, input_range=None)
        large = torch.nn.functional.interpolate(batches([20])[0], (10, 10))
        if maps == "channel":
            assert adapted(large).isfinite().all()
            continue
        with pytest.raises(InputError, match="maps='channel'"):
            adapted(large)


def test_a_network_without_norm_layers_is_refused_when_wrapping():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(ModelError, match="norm layers"):
        offsupport.source_stats(net, [torch.rand(4, 3, 8, 8)], "actmad")
