"""How fast the corruptions are at 32 px, beside plain per-image loops of the same mathematics and bare random draws.

Run ``python benchmarks/corruptions.py [--json]``. The sides take turns in one process on one thread, and the best of
several rounds counts. The loops are those the tests compare the pixels with.
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
from offsupport.data.corruptions.parameters import parameters
from offsupport.data.corruptions.seeding import Streams

AT_LEAST_FIVE = ("glass_blur", "motion_blur", "zoom_blur", "snow", "elastic_transform")
SEVERITY = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--images", type=int, default=512, help="images per batched measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts")
    options = parser.parse_args()
    images = synthetic_images(options.images)
    with progress("corruptions", len(ALL) + len(STANDARD) + 4) as advance:
        loops = [_advance(advance, beside_loop(name, images, options.rounds)) for name in ALL]
        noise = [_advance(advance, beside_draws(name, images, options.rounds)) for name in bare_draws(images)]
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


def bare_draws(images: np.ndarray) -> dict[str, Callable[[np.random.Generator], object]]:
    """Return the random numbers each noise is defined by, in bare calls for the whole batch.

    Impulse noise is defined by two draws per value (is it changed, and to what); the corruption makes do with one.
    """
    mean = images / 255 * parameters("shot_noise", images.shape[1], SEVERITY)[0]
    normal: Callable[[np.random.Generator], object] = lambda g: g.standard_normal(images.shape, np.float32)  # noqa: E731
    return {
        "gaussian_noise": normal,
        "shot_noise": lambda g: g.poisson(mean),
        "impulse_noise": lambda g: (g.random(images.shape, np.float32), g.random(images.shape, np.float32)),
        "speckle_noise": normal,
    }


def beside_draws(name: str, images: np.ndarray, rounds: int) -> dict[str, Any]:
    """Time a noise and the bare draws of its random numbers in turn, from the same kind of generator."""
    generator = np.random.Generator(np.random.SFC64(0))
    draw = bare_draws(images)[name]
    sides = {"noise": lambda: corrupt(images, name, SEVERITY), "draws": lambda: draw(generator)}
    seconds = best(sides, 2 * rounds)
    ratio = seconds["noise"] / seconds["draws"]
    return {"corruption": name, "seconds": seconds["noise"], "draws_seconds": seconds["draws"], "ratio": ratio}


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
    lines.append("")
    for row in result["noise"]:
        took = f"{row['seconds']:.4f} s, its draws {row['draws_seconds']:.4f} s"
        lines.append(f"{row['corruption']:18} {row['ratio']:.2f} times its random draws ({took})")
    total = result["cifar10_c_seconds"]["total"]
    lines.append(f"\n15 corruptions x 5 severities x 10,000 images: {total:.0f} s of one thread")
    return "\n".join(lines)


def _advance(advance: Callable[..., None], result: Any) -> Any:
    advance()
    return result


if __name__ == "__main__":
    main()
