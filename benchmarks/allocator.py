"""What keeping freed memory saves: the same steps in two processes, with and without the workers' allocator settings.

    python benchmarks/allocator.py [--json]

Processor seconds per step, interleaved repetitions, the best of each side; one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from offsupport.core.processes import WORKER_VARIABLES

STEPS = ("tent", "tesla", "imsda")
SETTINGS = {name: value for name, value in WORKER_VARIABLES.items() if name.startswith("MALLOC")}


def adaptation(method: str, count: int) -> float:
    """Return the seconds of a batch of 128 images through a ResNet-18 of width 16."""
    import torch

    import offsupport
    from offsupport.nn import Normalized, resnet18

    model = Normalized(resnet18(num_classes=10, width=16), [0.5] * 3, [0.25] * 3)
    adapted = offsupport.adapt(model, method)
    x = torch.rand(128, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapted(x)
    start = time.process_time()
    for _ in range(count):
        adapted(x)
    return (time.process_time() - start) / count


def imsda(count: int) -> float:
    """Return the seconds of a training step of fifty runs of iMSDA."""
    from offsupport.latent.baselines.imsda import Imsda
    from offsupport.latent.process.draws import draw
    from offsupport.latent.process.process import Process

    draws = draw(Process(n_source=256 * count), range(50), [12.0])
    start = time.process_time()
    Imsda(epochs=1).fit(draws.x, draws.y, draws.x_tgt[:, 0])
    return (time.process_time() - start) / count


def measured(name: str, settings: dict[str, str], count: int) -> float:
    """Return the seconds per step in a process of its own."""
    env = {k: v for k, v in os.environ.items() if k not in SETTINGS} | {"OMP_NUM_THREADS": "1"} | settings
    command = [sys.executable, __file__, "--step", name, "--count", str(count)]
    return float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repetitions")
    parser.add_argument("--count", type=int, default=8, help="steps per repetition")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        count = options.count
        print(imsda(count) if options.step == "imsda" else adaptation(options.step, count))
        return
    result = {}
    for name in STEPS:
        pairs = [
            (measured(name, {}, options.count), measured(name, SETTINGS, options.count)) for _ in range(options.repeats)
        ]
        plain, kept = (min(side) for side in zip(*pairs, strict=True))
        result[name] = {"plain_seconds": plain, "kept_seconds": kept, "ratio": plain / kept}
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for name, found in result.items():
        plain, kept = found["plain_seconds"], found["kept_seconds"]
        print(f"{name:6s} {plain:.3f} s, with kept memory {kept:.3f} s: {found['ratio']:.2f} times")


if __name__ == "__main__":
    main()
