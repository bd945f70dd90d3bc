"""How fast the corruptions are, beside plain per-image loops of the same mathematics and bare random draws.

Run ``python benchmarks/corruptions.py [--json] [--side 224] [--only defocus_blur]``. Batches and loops take turns in
one process on one thread; seconds are processor time, and the best of several rounds counts. The loops are those the
tests compare the pixels with.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "data"))
from corruption_loops import LOOPS, synthetic_images

from offsupport.core.progress import progress
from offsupport.data.corruptions import ALL, STANDARD, corrupt
from offsupport.data.corruptions.registry import parameters
from offsupport.data.corruptions.seeding import Streams

AT_LEAST_FIVE = ("glass_blur", "motion_blur", "zoom_blur", "snow", "elastic_transform")
NOISES = ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")
SEVERITY = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--images", type=int, default=512, help="images per batched measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts")
    parser.add_argument("--side", type=int, default=32, help="pixels of a side")
    parser.add_argument(
        "--only", default="", help="these beside their loops and nothing else, with commas between them"
    )
    options = parser.parse_args()
    images = synthetic_images(options.images, options.side)
    if options.only:
        rows = [beside_loop(name, images, options.rounds) for name in options.only.split(",")]
        result = {"side": options.side, "severity": SEVERITY, "loops": rows}
        print(json.dumps(result, indent=1) if options.json else as_text(result))
        return
    with progress("corruptions", len(ALL) + len(NOISES) + len(STANDARD)) as advance:
        loops = [_advance(advance, beside_loop(name, images, options.rounds)) for name in ALL]
        noise = [_advance(advance, beside_draws(name, images, options.rounds)) for name in NOISES]
        seconds = {name: _advance(advance, all_severities(name, images)) for name in STANDARD}
    result = {
        "side": images.shape[1],
        "severity": SEVERITY,
        "loops": loops,
        "noise": noise,
        "cifar10_c_seconds": {**seconds, "total": sum(seconds.values())},
    }
    print(json.dumps(result, indent=1) if options.json else as_text(result))


def beside_loop(name: str, images: np.ndarray, rounds: int) -> dict[str, Any]:
    """Time a corruption and its plain loop in turn."""
    few = images[: max(1, len(images) // 16)]
    constants = parameters(name, images.shape[1], SEVERITY)

    def loop() -> None:
        LOOPS[name](few, Streams(name, SEVERITY, 0, index=np.arange(len(few))), *constants)

    sides: dict[str, Callable[[], object]] = {"batched": lambda: corrupt(images, name, SEVERITY)}
    if name in LOOPS:
        sides["loop"] = loop
    seconds = best(sides, rounds)
    row = {"corruption": name, "images_per_second": len(images) / seconds["batched"], "seconds": seconds["batched"]}
    if name in LOOPS:
        rate = len(few) / seconds["loop"]
        row |= {"loop_images_per_second": rate, "loop_seconds": seconds["loop"], "loop_images": len(few)}
        row["times_faster"] = row["images_per_second"] / rate
    return row


Draw = Callable[[np.random.Generator], object]


def bare_draws(name: str, images: np.ndarray) -> tuple[Draw, Draw]:
    """Return the random numbers of a noise in bare calls for the whole batch: as published, and as drawn here.

    The published ones are in double precision, and impulse noise takes two per value (is it changed, and to what). The
    corruptions draw single precision, and impulse noise one per value, besides starting a stream for each image.
    """
    shape, (constant, *_) = images.shape, parameters(name, images.shape[1], SEVERITY)
    if name == "shot_noise":
        mean = images / 255 * constant
        return (lambda g: g.poisson(mean),) * 2
    if name == "impulse_noise":
        return lambda g: (g.random(shape), g.random(shape)), lambda g: g.random(shape, np.float32)
    return lambda g: g.normal(scale=constant, size=shape), lambda g: g.standard_normal(shape, np.float32)


def beside_draws(name: str, images: np.ndarray, rounds: int) -> dict[str, Any]:
    """Time a noise and the bare draws of its random numbers in turn, from the same kind of generator."""
    generator = np.random.Generator(np.random.SFC64(0))
    published, own = bare_draws(name, images)
    sides: dict[str, Callable[[], object]] = {
        "seconds": lambda: corrupt(images, name, SEVERITY),
        "published_draws_seconds": lambda: published(generator),
        "own_draws_seconds": lambda: own(generator),
    }
    row: dict[str, Any] = {"corruption": name, **best(sides, 2 * rounds)}
    row["ratio"] = row["seconds"] / row["published_draws_seconds"]
    row["ratio_to_own_draws"] = row["seconds"] / row["own_draws_seconds"]
    return row


def all_severities(name: str, images: np.ndarray) -> float:
    """Return the seconds one thread takes for 10,000 images at each of the five severities."""
    total = sum(best({"all": lambda s=severity: corrupt(images, name, s)}, 2)["all"] for severity in range(1, 6))
    return total / len(images) * 10_000


def best(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run the sides in turn; return the shortest time of each."""
    seconds = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for side, run in sides.items():
            started = time.process_time()
            run()
            seconds[side] = min(seconds[side], time.process_time() - started)
    return seconds


def as_text(result: dict[str, Any]) -> str:
    """Return the result as tables."""
    lines = [f"{'corruption':18} {'images/s':>10} {'loop':>10} {'faster':>8}"]
    for row in result["loops"]:
        loop = f"{row['loop_images_per_second']:10.0f} {row['times_faster']:7.1f}x" if "loop_seconds" in row else ""
        wanted = "  (at least 5x)" if row["corruption"] in AT_LEAST_FIVE else ""
        lines.append(f"{row['corruption']:18} {row['images_per_second']:10.0f} {loop}{wanted}")
    if "noise" not in result:
        return "\n".join(lines)
    lines.append("")
    lines.append(f"{'noise':18} {'seconds':>10} {'draws':>10} {'ratio':>8} {'own draws':>10} {'ratio':>8}")
    for row in result["noise"]:
        bare = f"{row['published_draws_seconds']:10.4f} {row['ratio']:8.2f}"
        own = f"{row['own_draws_seconds']:10.4f} {row['ratio_to_own_draws']:8.2f}"
        lines.append(f"{row['corruption']:18} {row['seconds']:10.4f} {bare} {own}")
    total = result["cifar10_c_seconds"]["total"]
    lines.append(f"\n15 corruptions x 5 severities x 10,000 images: {total:.0f} s of one thread")
    return "\n".join(lines)


def _advance(advance: Callable[..., None], result: Any) -> Any:
    advance()
    return result


if __name__ == "__main__":
    main()
