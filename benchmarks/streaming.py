"""What a stream of single images, or of small batches, costs beside the plain model.

Methods and the plain model (under ``torch.no_grad()``) take turns in one process, image by image, in an order that
rotates, so that other load on the machine falls on all of them alike. ``ratio`` is that of the median seconds of a
call, ``ratio_cpu`` the same in processor time, which other load disturbs least, ``ratio_mean`` that of the mean
processor time, calls with a step included, ``ratio_max`` the most that a call took over the plain median.

    python benchmarks/streaming.py [--json] [--network small|large] [--calls 320] [--large MODEL] [--threads 1]

Networks: ``small`` is a ResNet-18 of width 16 from the zoo at 32 x 32, ``large`` a ResNet-18 at 224 x 224 with random
weights, or what ``--large`` names as ``load_model`` takes it. Images are random: what they show changes no cost.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import offsupport
from offsupport.core.progress import progress
from offsupport.nn import resnet18
from offsupport.nn.inspect import best_layout
from offsupport.nn.loading import load_model

SMALL = "zoo:cifar10-resnet18x0.25-supervised"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "bn": ("bn", {}),
    "minimal": ("minimal", {}),
    "bn, window=64": ("bn", {"window": 64}),
    "tent, window=64": ("tent", {"window": 64}),
    "auto": ("auto", {}),
}
WARM_UP = 70
"""Calls that are not timed: windows fill, and what is young is looked at more often."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """One block of rows: a network and the size of its batches."""

    network: str
    side: int
    batch: int
    calls: int


@torch.no_grad()
def large_network() -> nn.Module:
    """Return a ResNet-18 for photographs with random weights and the statistics of random images."""
    torch.manual_seed(0)
    model = resnet18(1000, stem="imagenet")
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    model.train()(torch.rand(4, 3, 224, 224))
    model.to(memory_format=best_layout(model))  # type: ignore[call-overload]
    return model.eval()


@torch.no_grad()
def plain(model: nn.Module, x: Tensor) -> Tensor:
    """Run the model as it is."""
    logits: Tensor = model(x)
    return logits


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one call, on the wall clock and on the processor."""

    wall: float
    cpu: float


def timed(call: Callable[[], object]) -> Timing:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def measure(model: nn.Module, stream: Stream) -> list[dict[str, Any]]:
    """Return one row per method."""
    images = torch.rand(64, 3, stream.side, stream.side, generator=torch.Generator().manual_seed(1))
    known = set(offsupport.list_methods())
    sides: dict[str, Callable[[Tensor], object]] = {"plain": functools.partial(plain, model)}
    for name, (method, options) in METHODS.items():
        if method in known:
            sides[name] = offsupport.adapt(model, method, **options)
    names, times = list(sides), {name: list[Timing]() for name in sides}
    warm_up = WARM_UP // stream.batch + 2
    with progress(f"{stream.network}, batches of {stream.batch}", stream.calls + warm_up) as advance:
        for call in range(stream.calls + warm_up):
            first = call * stream.batch % (len(images) - stream.batch + 1)
            x, turn = images[first : first + stream.batch], call % len(names)
            for name in (*names[turn:], *names[:turn]):
                took = timed(functools.partial(sides[name], x))
                if call >= warm_up:
                    times[name].append(took)
            advance()
    return [row(stream, name, times[name], times["plain"]) for name in names]


def row(stream: Stream, name: str, ours: list[Timing], bare: list[Timing]) -> dict[str, Any]:
    """Summarise the calls of one side."""
    wall, bare_wall = (statistics.median(each.wall for each in side) for side in (ours, bare))
    cpu, bare_cpu = (statistics.median(each.cpu for each in side) for side in (ours, bare))
    mean, bare_mean = (statistics.fmean(each.cpu for each in side) for side in (ours, bare))
    longest = max(each.cpu for each in ours)
    return {
        **dataclasses.asdict(stream),
        "method": name,
        "seconds": wall,
        "plain_seconds": bare_wall,
        "ratio": wall / bare_wall,
        "cpu_seconds": cpu,
        "plain_cpu_seconds": bare_cpu,
        "ratio_cpu": cpu / bare_cpu,
        "mean_cpu_seconds": mean,
        "ratio_mean": mean / bare_mean,
        "max_cpu_seconds": longest,
        "ratio_max": longest / bare_cpu,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--network", choices=("small", "large"), help="one of the two networks alone")
    parser.add_argument("--calls", type=int, default=320, help="timed calls of every side, fewer where each is long")
    parser.add_argument("--large", help="the large network, as load_model takes it")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # random images look alike, and a random network predicts one class
    rows: list[dict[str, Any]] = []
    if arguments.network != "large":
        small, calls = load_model(SMALL), arguments.calls
        rows += measure(small, Stream("small", 32, 1, calls)) + measure(small, Stream("small", 32, 16, calls // 4))
    if arguments.network != "small":
        large, calls = load_model(arguments.large) if arguments.large else large_network(), arguments.calls // 4
        rows += measure(large, Stream("large", 224, 1, calls)) + measure(large, Stream("large", 224, 16, calls // 8))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'network':<9}{'batch':>5}  {'method':<18}{'seconds':>9}{'ratio':>8}{'cpu':>8}{'mean':>8}{'most':>8}")
    for r in rows:
        print(
            f"{r['network']:<9}{r['batch']:>5}  {r['method']:<18}{r['cpu_seconds']:>9.4f}{r['ratio']:>8.2f}"
            f"{r['ratio_cpu']:>8.2f}{r['ratio_mean']:>8.2f}{r['ratio_max']:>8.2f}"
        )


if __name__ == "__main__":
    main()
