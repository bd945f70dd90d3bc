"""What the whole of Table 2 costs at paper scale, in GPU hours, estimated from the operations of real passes.

Each method adapts to a few batches of random images on a small network of the published kind while torch counts the
floating-point operations of every convolution and product, backward passes included. Their number per image, over that
of one plain prediction, is the method's ratio. Ratio x operations of the published ResNet-50 x images / throughput
gives the time. Left out: reading data, augmentations, source statistics, and optimisers.

Run: ``python benchmarks/paper_cost.py [--json] [--tflops 30] [--network resnet50x0.25]``
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import offsupport
from offsupport.data import STANDARD
from offsupport.methods import METHODS as REGISTERED
from offsupport.nn import WithProjection, build_network
from offsupport.nn.projected import projection_head
from offsupport.studies.paper.table2 import METHODS, SCORED_AFTER, SEEDS
from offsupport.studies.published import SETTINGS

NETWORKS = {
    "cifar10-c": ("resnet50", 10, 32, 10_000),
    "cifar100-c": ("resnet50", 100, 32, 10_000),
    "imagenet-c": ("resnet50-imagenet", 1000, 224, 50_000),
}
"""Network, classes, side of the images and images per corruption of each data set."""
BATCHES, BATCH = 2, 16
CHOOSE_ALL: dict[str, dict[str, Any]] = {"eata": {"margin": 2.0, "redundancy": 2.0}, "sar": {"margin": 2.0}}
"""Methods that leave out unsure images cost the most when they leave out none."""


def operations(call: Any) -> int:
    """Return the floating-point operations of a call."""
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def plain_gigaflops(network: str, classes: int, side: int) -> float:
    """Return the operations of one prediction, counted without computing anything."""
    model = build_network(network, classes, "imagenet").eval().to("meta")
    with torch.no_grad():
        return operations(lambda: model(torch.empty(1, 3, side, side, device="meta"))) / 1e9


def ratios(network: str) -> dict[str, float]:
    """Return for each method its operations per image over those of one prediction; the first batch does not count."""
    torch.manual_seed(0)
    model = build_network(network, 10, "cifar10")
    features = next(layer for layer in reversed(list(model.modules())) if isinstance(layer, nn.Linear)).in_features
    model = WithProjection(model, projection_head(features, 128)).eval()
    batches = [torch.rand(BATCH, 3, 32, 32) for _ in range(BATCHES)]
    with torch.no_grad():
        plain = operations(lambda: model(batches[0]))
    return {method: _operations_of(method, model, batches) / plain for method in METHODS}


def _operations_of(method: str, model: nn.Module, batches: list[Tensor]) -> float:
    stats = None
    if REGISTERED[method].info.source != "none":
        stats = offsupport.source_stats(model, batches, method=method)
    adapted = offsupport.adapt(model, method, preset="cifar10", source=stats, **CHOOSE_ALL.get(method, {}))
    adapted(batches[0])
    return operations(lambda: [adapted(x) for x in batches[1:]]) / (len(batches) - 1)


def estimate(network: str, tflops: float) -> list[dict[str, Any]]:
    """Return a line per data set and method: ratio, images in all, and hours."""
    found, lines = ratios(network), []
    for dataset in SETTINGS:
        name, classes, side, images = NETWORKS[dataset]
        plain = plain_gigaflops(name, classes, side)
        for method in (m for m in METHODS if m != "tttpp" or dataset != "imagenet-c"):
            also_running = method.removesuffix("+sc") in SCORED_AFTER
            count = images * len(STANDARD) * (SEEDS.get(method, 1) + also_running)
            line = {"dataset": dataset, "method": method, "ratio": found[method], "plain_gigaflops": plain}
            seconds = count * plain * found[method] / (1000 * tflops)
            lines.append({**line, "images": count, "gpu_hours": seconds / 3600})
    return lines


def main() -> None:
    """Estimate and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--tflops", type=float, default=30.0, help="what a GPU sustains, in 1e12 operations a second")
    parser.add_argument("--network", default="resnet50x0.25", help="network that the ratios are measured on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = estimate(arguments.network, arguments.tflops)
    totals = {d: sum(line["gpu_hours"] for line in lines if line["dataset"] == d) for d in SETTINGS}
    assumed = {"tflops": arguments.tflops, "ratios_from": arguments.network, "batch": BATCH, "seeds": SEEDS}
    if arguments.json:
        print(json.dumps({"assumed": assumed, "lines": lines, "hours": totals, "all": sum(totals.values())}, indent=1))
        return
    for line in lines:
        words = f"{line['dataset']:<12}{line['method']:<12}{line['ratio']:>7.1f} x {line['plain_gigaflops']:.1f} GFLOP"
        print(f"{words} x {line['images']:>9,} images{line['gpu_hours']:>8.2f} h")
    print(f"At {arguments.tflops:g} TFLOP/s: {sum(totals.values()):.1f} GPU hours in all; {totals}")


if __name__ == "__main__":
    main()
