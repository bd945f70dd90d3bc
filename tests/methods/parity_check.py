"""Small float64 networks, streams and comparisons for the parity tests; nothing here is shared with the library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

TOLERANCE = 1e-8
PRIOR, MIN_BATCH = 16, 16  # of batch norm: smaller batches blend, with the source counted as 16 samples
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d)
NORM = (*BATCH_NORM, nn.GroupNorm, nn.LayerNorm)


def network(norm: str, classes: int = 7, sharpness: float = 1.5) -> nn.Sequential:
    """A classifier with four norm layers whose affines and statistics are not the ones of initialisation."""
    torch.manual_seed(classes)
    norm2d = nn.BatchNorm2d if norm == "batch" else lambda c: nn.GroupNorm(2, c)
    norm1d = nn.BatchNorm1d if norm == "batch" else nn.LayerNorm
    net = nn.Sequential()
    for i, (inputs, outputs) in enumerate([(3, 6), (6, 8), (8, 8)]):
        net.add_module(f"conv{i}", nn.Conv2d(inputs, outputs, 3, stride=1 + i % 2, padding=1))
        net.add_module(f"norm{i}", norm2d(outputs))
        net.add_module(f"relu{i}", nn.ReLU())
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flatten", nn.Flatten())
    net.add_module("hidden", nn.Linear(8, 12))
    net.add_module("norm3", norm1d(12))
    net.add_module("relu3", nn.ReLU())
    net.add_module("head", nn.Linear(12, classes))
    return _as_trained(net, sharpness)


def dense_network(norm: str, classes: int = 5, sharpness: float = 1.5) -> nn.Sequential:
    """As :func:`network`, but with a prediction for every position."""
    torch.manual_seed(classes)
    net = nn.Sequential()
    for i, (inputs, outputs) in enumerate([(3, 6), (6, 8), (8, 8), (8, 6)]):
        net.add_module(f"conv{i}", nn.Conv2d(inputs, outputs, 3, padding=1))
        net.add_module(f"norm{i}", nn.BatchNorm2d(outputs) if norm == "batch" else nn.GroupNorm(2, outputs))
        net.add_module(f"relu{i}", nn.ReLU())
    net.add_module("head", nn.Conv2d(6, classes, 1))
    return _as_trained(net, sharpness)


@torch.no_grad()
def _as_trained(net: nn.Sequential, sharpness: float) -> nn.Sequential:
    """Affines and statistics off their initial values; logits that favour no class, with this standard deviation."""
    for layer in net:
        if isinstance(layer, NORM):
            layer.weight.uniform_(0.6, 1.4)
            layer.bias.normal_(0, 0.2)
        if isinstance(layer, BATCH_NORM):
            layer.running_mean.normal_(0, 0.2)
            layer.running_var.uniform_(0.3, 1.5)
    net, x = net.double().eval(), batches([64], seed=99)[0]
    logits = forward(net, x).transpose(0, 1).flatten(1)
    net.head.weight.mul_(sharpness / logits.std(1).mean())
    net.head.bias.sub_(forward(net, x).transpose(0, 1).flatten(1).mean(1))
    return net


def batches(sizes: Iterable[int], seed: int = 0, drift: float = 0.1) -> list[Tensor]:
    """Shifted images: every sample has its own colour and contrast, and brightness drifts over the stream."""
    generator = torch.Generator().manual_seed(seed)
    stream = []
    for t, size in enumerate(sizes):
        noise = torch.randn(size, 3, 8, 8, generator=generator, dtype=torch.float64)
        colour = torch.randn(size, 3, 1, 1, generator=generator, dtype=torch.float64)
        contrast = torch.rand(size, 1, 1, 1, generator=generator, dtype=torch.float64)
        stream.append(0.5 + 0.5 * contrast * noise + colour + drift * math.sin(t))
    return stream


SIZES = (24, 31, 16, 40, 3, 24, 17, 1, 32, 24, 20, 28)  # 10 batches of at least MIN_BATCH, and two below


def forward(net: Iterable[nn.Module], x: Tensor, statistics: str = "batch") -> Tensor:
    """The network layer by layer, with batch norm written out."""
    for layer in net:
        x = batch_norm(layer, x, statistics) if isinstance(layer, BATCH_NORM) else layer(x)
    return x


def batch_norm(layer: nn.Module, x: Tensor, statistics: str) -> Tensor:
    channels = x.transpose(0, 1).flatten(1)
    mean, var = channels.mean(1), channels.var(1, unbiased=False)
    if statistics == "source":
        mean, var = layer.running_mean, layer.running_var
    if statistics == "blend":
        n = len(x)
        mean = (n * mean + PRIOR * layer.running_mean) / (n + PRIOR)
        var = (n * var + PRIOR * layer.running_var) / (n + PRIOR)
    shape = (1, -1) + (1,) * (x.dim() - 2)
    normal = (x - mean.view(shape)) / (var.view(shape) + layer.eps).sqrt()
    return normal * layer.weight.view(shape) + layer.bias.view(shape)


def too_small(net: nn.Module, x: Tensor) -> bool:
    return len(x) < MIN_BATCH and any(isinstance(layer, BATCH_NORM) for layer in net)


def entropy(logits: Tensor) -> Tensor:
    """Of every sample, or of every position of every sample, in a vector."""
    p = logits.softmax(1)
    return -(p * logits.log_softmax(1)).sum(1).flatten()


def norm_parameters(net: nn.Module, skip: Iterable[str] = ()) -> list[nn.Parameter]:
    layers = [layer for name, layer in net.named_children() if isinstance(layer, NORM) and name not in skip]
    return [parameter for layer in layers for parameter in (layer.weight, layer.bias)]


def make_optimizer(
    name: str, parameters: list[nn.Parameter], lr: float, momentum: float = 0.9
) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(parameters, lr, betas=(momentum, 0.999), eps=1e-8, foreach=False)
    return torch.optim.SGD(parameters, lr, momentum=momentum, foreach=False)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def assert_close(actual: Tensor, expected: Tensor, what: str) -> None:
    assert actual.shape == expected.shape
    difference = (actual - expected).norm().item()
    assert difference <= TOLERANCE * expected.norm().item(), f"{what}: off by {difference:.2e}"


def assert_parity(adapted: nn.Module, net: nn.Module, reference: Iterator[Tensor], stream: list[Tensor]) -> None:
    """Logits, parameters and buffers agree after each batch."""
    for t, (x, expected) in enumerate(zip(stream, reference, strict=True)):
        assert_close(adapted(x), expected, f"logits of batch {t}")
        state = adapted.model.state_dict()
        assert list(state) == list(net.state_dict())
        for name, value in net.state_dict().items():
            assert_close(state[name].double(), value.double(), f"{name} after batch {t}")


def moved(net: nn.Module, start: nn.Module) -> set[str]:
    """Names of the layers of ``net`` with a parameter that differs from ``start``."""
    before = dict(start.named_parameters())
    return {name.split(".")[0] for name, value in net.named_parameters() if not torch.equal(value, before[name])}


def change(net: nn.Module, start: nn.Module) -> float:
    """How far the parameters of ``net`` are from ``start``, relative to their size."""
    after, before = (torch.cat([p.flatten() for p in model.parameters()]) for model in (net, start))
    return ((after - before).norm() / before.norm()).item()
