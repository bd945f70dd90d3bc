"""What a method holds in memory at most while it adapts to a batch, beside model and data.

Each method of ``benchmarks/overhead.py`` adapts to two batches in a process of its own, forked once the model, the
data and torch are in place: its peak resident memory less what was resident at the fork is what the method took.

Run: ``python benchmarks/memory.py [--json] [--width 16] [--batch 128]``
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import warnings
from collections.abc import Callable
from typing import Any

import torch
from overhead import CASES, make, network
from torch import Tensor


def peak_bytes(call: Callable[[], object]) -> int:
    """Return how far a call raises the resident memory of a fresh child process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(write, str(1024 * grown).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit("A method failed in its process; run it without this benchmark to see why.")
    with os.fdopen(read) as pipe:
        return int(pipe.read())


def measure(width: int, batch: int) -> list[dict[str, Any]]:
    """Return one row per method."""
    torch.manual_seed(0)
    data = [torch.rand(batch, 3, 32, 32) for _ in range(2)]
    model = network(width, data[0])
    rows = []
    for case in CASES:
        batches: list[Tensor] = [x[: case.images] for x in data]

        def adapt_to_two(case: Any = case, batches: list[Tensor] = batches) -> None:
            adapted = make(case, model, data)
            for x in batches:
                adapted(x)

        rows.append({"method": case.name, "megabytes": peak_bytes(adapt_to_two) / 1e6, "images": len(batches[0])})
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage of the ResNet-18")
    parser.add_argument("--batch", type=int, default=128, help="images per batch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a fork keeps no other threads
    warnings.simplefilter("ignore")
    rows = measure(arguments.width, arguments.batch)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(f"{row['method']:<22}{row['images']:>6} images{row['megabytes']:>10.0f} MB")


if __name__ == "__main__":
    main()
