"""What keeping the channels last saves: the same network and the same passes in both memory layouts, side by side.

    python benchmarks/layout.py [--json] [--width 16] [--batch 128] [--rounds 8]

ResNet-18 (CIFAR stem), one thread; both layouts take turns, and the fastest call of each counts. ``ratio`` is the time
with channels first over the time with channels last.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import offsupport
from offsupport.core.progress import progress
from offsupport.nn import resnet18

METHODS = ("bn", "tent", "tent+sc", "tesla")


def passes(model: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    training = copy.deepcopy(model).train()

    def back() -> None:
        training.zero_grad()
        training(x).square().mean().backward()

    adapted = {name: offsupport.adapt(copy.deepcopy(model), name) for name in METHODS}
    wrapped = {name: (lambda method=method: method(x)) for name, method in adapted.items()}
    return {"forward": lambda: model(x), "forward and backward": back, **wrapped}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first = resnet18(num_classes=10, width=args.width).eval()
    last = copy.deepcopy(first).to(memory_format=torch.channels_last)
    x = torch.rand(args.batch, 3, 32, 32)
    sides = {"first": passes(first, x), "last": passes(last, x)}
    best = {side: dict.fromkeys(calls, float("inf")) for side, calls in sides.items()}
    with progress("Layouts", args.rounds) as advance:
        for _ in range(args.rounds):
            for name in sides["first"]:
                for side, calls in sides.items():
                    start = time.perf_counter()
                    calls[name]()
                    best[side][name] = min(best[side][name], time.perf_counter() - start)
            advance(1, "")
    found = {
        name: {
            "first_seconds": best["first"][name],
            "last_seconds": best["last"][name],
            "ratio": best["first"][name] / best["last"][name],
        }
        for name in sides["first"]
    }
    if args.json:
        json.dump(
            {"width": args.width, "batch": args.batch, "rounds": args.rounds, "passes": found}, sys.stdout, indent=1
        )
        sys.stdout.write("\n")
        return
    for name, row in found.items():
        sys.stdout.write(f"{name:22s}{row['first_seconds']:.3f} s  {row['last_seconds']:.3f} s  {row['ratio']:.2f}x\n")


if __name__ == "__main__":
    main()
