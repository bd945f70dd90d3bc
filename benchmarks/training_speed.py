"""What one step of training costs: memory layout, side of the images, and the share of making the views.

Run ``python benchmarks/training_speed.py [--json]``. The sides take turns in one process on one thread; seconds are
processor time, and the best of several rounds counts. The network is ResNet-18 of width 16 at batch 128.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from offsupport.core.progress import progress
from offsupport.training.loop import make_view, resized
from offsupport.training.objectives import make_objective
from offsupport.training.recipe import make_recipe
from offsupport.training.run import fresh_network

BATCH = 128
EPOCH = 45_000
SIDES = (16, 24, 32)
VIEWS = ("shift-flip", "crop-flip", "simclr")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=8, help="rounds, of which the best counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    images = torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    timed: dict[str, Callable[[], object]] = {}
    for side in SIDES:
        for last in (True, False):
            timed[f"step {side} {'channels last' if last else 'contiguous'}"] = step(resized(images, side), last)
    for views in VIEWS:
        timed[f"view {views}"] = view(images, views)
    seconds = best(timed, options.rounds)
    print(json.dumps(report(seconds), indent=1) if options.json else as_text(report(seconds)))


def step(x: torch.Tensor, channels_last: bool) -> Callable[[], object]:
    """Return one training step on a batch: forward, backward, SGD."""
    recipe = make_recipe({**_SETTINGS, "channels_last": channels_last}, "benchmark")
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    objective = make_objective("supervised", fresh_network(recipe, 10), {}).to(memory_format=layout)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    x, labels = x.contiguous(memory_format=layout), torch.arange(len(x)) % 10

    def run() -> None:
        optimizer.zero_grad()
        objective([x], labels).value.backward()
        optimizer.step()

    return run


def view(x: torch.Tensor, views: str) -> Callable[[], object]:
    """Return the making of one view of a batch."""
    make, generator = make_view(make_recipe({**_SETTINGS, "views": views}, "benchmark")), torch.Generator()
    return lambda: make(x, generator)


_SETTINGS: dict[str, Any] = {
    "about": "benchmark",
    "dataset": "cifar10",
    "network": "resnet18x0.25",
    "epochs": 1,
    "batch_size": BATCH,
    "lr": 0.1,
}


def best(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run the sides in turn; return the shortest time of each, after one turn to warm up."""
    seconds = dict.fromkeys(sides, float("inf"))
    with progress("training speed", rounds + 1) as advance:
        for i in range(rounds + 1):
            for side, run in sides.items():
                started = time.process_time()
                run()
                if i:
                    seconds[side] = min(seconds[side], time.process_time() - started)
            advance()
    return seconds


def report(seconds: dict[str, float]) -> dict[str, Any]:
    """Return the ratios with the seconds behind them."""
    full = seconds["step 32 channels last"]
    return {
        "network": "resnet18x0.25",
        "batch": BATCH,
        "steps": [
            {
                "side": side,
                "channels_last_seconds": seconds[f"step {side} channels last"],
                "contiguous_seconds": seconds[f"step {side} contiguous"],
                "contiguous_to_channels_last": seconds[f"step {side} contiguous"]
                / seconds[f"step {side} channels last"],
                "to_full_side": seconds[f"step {side} channels last"] / full,
                "epoch_seconds": seconds[f"step {side} channels last"] / BATCH * EPOCH,
            }
            for side in SIDES
        ],
        "views": [
            {"views": views, "seconds": seconds[f"view {views}"], "to_step": seconds[f"view {views}"] / full}
            for views in VIEWS
        ],
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the result as tables."""
    lines = [
        f"{'side':>4} {'channels last':>14} {'contiguous':>11} {'ratio':>6} {'to 32 px':>9} {'epoch of 45,000':>16}"
    ]
    for row in result["steps"]:
        seconds = f"{row['channels_last_seconds']:13.3f}s {row['contiguous_seconds']:10.3f}s"
        ratios = f"{row['contiguous_to_channels_last']:6.2f} {row['to_full_side']:9.2f}"
        lines.append(f"{row['side']:4} {seconds} {ratios} {row['epoch_seconds']:15.0f}s")
    lines += [f"{row['views']:11} {row['seconds']:.4f}s, {row['to_step']:.1%} of a step" for row in result["views"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
