"""Dense outputs, outputs that are objects, and models in other types."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import offsupport
from offsupport.core.errors import ModelError
from offsupport.engine.config import MethodConfig
from offsupport.testing import NETWORKS
from offsupport.testing.case import run, same_bits, stream


def segmenter():
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)),
    )
    with torch.no_grad():
        net[-1].weight.mul_(6)
    return net.eval()


@pytest.mark.parametrize("method", ["source", "bn", "tent", "sar"])
@pytest.mark.parametrize("size", [1, 20])
def test_dense_logits_adapt(method, size):
    adapted = offsupport.adapt(segmenter(), method, **({} if method in ("source", "bn") else {"lr": 0.01}))
    x = torch.rand(size, 3, 8, 8)
    first = adapted(x)
    assert first.shape == (size, 4, 8, 8)
    assert first.isfinite().all()
    moved = not same_bits(first, adapted(x))
    assert moved == (method in ("tent", "sar") and size >= 16)


def test_tent_on_dense_logits_counts_every_position():
    net = segmenter()
    adapted = offsupport.adapt(net, "tent", optimizer="sgd", momentum=0.0, lr=0.5)
    x = torch.rand(20, 3, 8, 8)
    adapted(x)
    z = net[0](x)
    gamma, beta = (net[1].weight.detach().clone().requires_grad_(), net[1].bias.detach().clone().requires_grad_())
    z = nn.functional.batch_norm(z, None, None, gamma, beta, training=True)
    z = nn.functional.batch_norm(net[3](z.relu()), None, None, net[4].weight, net[4].bias, training=True)
    p = net[6](z.relu()).softmax(1)
    entropy = -(p * p.log()).sum(1)
    (gradient,) = torch.autograd.grad(entropy.mean(), [gamma])
    assert torch.allclose(adapted.model[1].weight, net[1].weight - 0.5 * gradient, atol=1e-6)


def test_bad_samples_in_dense_streams():
    adapted, clean = (offsupport.adapt(segmenter(), "tent") for _ in range(2))
    x = torch.rand(20, 3, 8, 8)
    bad = x.clone()
    bad[4] = math.nan
    out = adapted(bad)
    keep = torch.arange(20) != 4
    assert same_bits(out[keep], clean(x[keep]))
    assert not out[4].any()


@dataclasses.dataclass
class Output:
    logits: Tensor


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = NETWORKS["batch_norm"]()

    def forward(self, x):
        return Output(self.inner(x))


@pytest.mark.parametrize("method", ["source", "bn", "tent", "shot", "sar"])
def test_models_that_return_objects(method):
    plain = offsupport.adapt(NETWORKS["batch_norm"](), method)
    adapted = offsupport.adapt(Wrapped(), method, logits=lambda out: out.logits)
    batches = [*stream(2), *stream(1, size=3), torch.full((2, 3, 8, 8), math.nan), torch.empty(0, 3, 8, 8)]
    for a, b in zip(run(plain, batches), run(adapted, batches), strict=True):
        assert same_bits(a, b)


def test_models_that_return_objects_and_do_not_say_so():
    with pytest.raises(ModelError, match="Output") as error:
        offsupport.adapt(Wrapped(), "tent")(stream(1)[0])
    assert "logits=" in error.value.remedy


def test_source_statistics_of_models_that_return_objects():
    stats = offsupport.source_stats(Wrapped(), stream(2), "eata", logits=lambda out: out.logits)
    assert stats.samples == 48
    assert set(stats.tensors) == {"inner.1.weight", "inner.1.bias", "inner.4.weight", "inner.4.bias"}


@pytest.mark.parametrize("method", ["tent", "shot", "sar"])
def test_conversion_takes_all_state_along(method):
    model = NETWORKS["batch_norm"]()
    adapted = offsupport.adapt(model, method, window=32)
    run(adapted, stream(3))
    adapted.double()
    x = [batch.double() for batch in stream(3, seed=1)]
    bad = x[0].clone()
    bad[0] = math.nan
    assert run(adapted, [*x, bad])[0].dtype == torch.float64
    adapted.reset()
    for name, parameter in adapted.model.named_parameters():
        assert torch.equal(parameter.float(), model.get_parameter(name))
    fresh = offsupport.adapt(NETWORKS["batch_norm"]().double(), method, window=32)
    for a, b in zip(run(adapted, x), run(fresh, x), strict=True):
        assert same_bits(a, b)


def test_summary_says_what_adapts():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent")
    text = adapted.summary()
    assert "32 values adapted in 4 tensors" in text
    assert "2 batch-norm layers use batch statistics" in text
    assert "below 16" in text
    assert isinstance(adapted.config, MethodConfig)


def test_shot_with_pseudo_labels_counts_every_position():
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    x = torch.rand(16, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    adapted = offsupport.adapt(model, "shot", head="3", pseudo_weight=0.3)
    assert adapted(x).shape == (16, 4, 5, 5)
    assert adapted.passes["backward"] == 1
