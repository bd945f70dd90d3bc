"""What the runner of grids costs beside the cells, and how long people wait for it.

``workers``: the same grid of one-thread cells that only compute, with one worker and with two; the ratio says how much
faster two are. It means something only where two cores are idle. ``overhead``: a grid of cells that do nothing, on one
worker that is up; the seconds per cell, as a share of a cell of five seconds. ``status`` and ``resume``: a run of many
cells, all done, asked for its status and run again, each from the shell to the answer. ``report``: the report of a run
of adaptation results.

Run: ``python benchmarks/bench_overhead.py [--json] [--cells 10000] [--report 1000] [--work 10]``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from offsupport.bench import KINDS, Cell, Kind, Outcome, Place, Store, run_cells
from offsupport.bench.runs import run_grid, status
from offsupport.bench.store import result_file
from offsupport.results.correctness import pack
from offsupport.studies import AdaptConfig

CELL_SECONDS = 5.0
"""The length of a cell that the overhead is related to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpinConfig:
    """A cell that computes for so many rounds."""

    number: int
    rounds: int = 0
    threads: int = 1


def run_spin(config: SpinConfig, place: Place) -> Outcome:
    """Keep one core busy."""
    started = time.process_time()
    total = sum(i * i % 7 for i in range(config.rounds))
    return Outcome({"total": total}, {}, {"seconds": time.process_time() - started})


KINDS.register("spin")(Kind(SpinConfig, run_spin))


def spin_cells(count: int, rounds: int = 0) -> list[Cell]:
    """Return cells of this file's kind."""
    return [Cell("spin", {"number": i, "rounds": rounds, "threads": 1}) for i in range(count)]


def seconds_of(cells: list[Cell], workers: int) -> float:
    """Return the time a grid takes in a fresh folder, the start of the workers included."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        summary = run_cells(cells, Place(Path(folder)), workers)
        assert summary.complete
        return time.perf_counter() - started


def workers(work: float) -> dict[str, float]:
    """Compare two workers with one, on four cells of ``work`` seconds each."""
    started = time.perf_counter()
    run_spin(SpinConfig(number=0, rounds=2_000_000), Place(Path()))
    rounds = int(2_000_000 * work / (time.perf_counter() - started))
    one, two = (seconds_of(spin_cells(4, rounds), count) for count in (1, 2))
    return {"ratio": one / two, "seconds_one": one, "seconds_two": two}


def overhead(cells: int = 200) -> dict[str, float]:
    """Measure what a cell costs the runner: many empty cells against one, so that starting a worker falls out."""
    many, few = seconds_of(spin_cells(cells + 1), 1), seconds_of(spin_cells(1), 1)
    each = (many - few) / cells
    return {"ratio": each / CELL_SECONDS, "seconds_per_cell": each, "seconds_many": many, "seconds_one": few}


def adapt_cells(count: int) -> list[Cell]:
    """Return the cells of a grid of five methods."""
    methods = ("source", "bn", "tent", "shot", "eata")
    configs = (
        AdaptConfig(dataset="digits-c", method=method, corruption=name, seed=seed)
        for seed in range(1 + count // 10)
        for name in ("fog", "frost")
        for method in methods
    )
    return [config.cell() for config, _ in zip(configs, range(count), strict=False)]


def filled(folder: Path, count: int) -> list[Cell]:
    """Write a run of so many results of the size that real ones have."""
    draws = np.random.default_rng(0)
    store, cells = Store(folder), adapt_cells(count)
    (folder / "cells").mkdir(parents=True)
    for cell in cells:
        right = draws.random(599) < 0.7
        error = float(1 - right.mean())
        images = {"error": error, "ci95": [error, error], "n": 599, "images": pack(np.arange(599), right)}
        measured: dict[str, Any] = {
            "error": error, "ci95": [error, error], "n": 599, "per_class": {str(i): error for i in range(10)},
            "domains": {f"{cell.config['corruption']}/5": images}, "trace": draws.random(5).tolist(),
            "passes": {"forward": 5, "backward": 5}, "events": {}, "warnings": [],
        }  # fmt: skip
        provenance = {"weights_sha256": "0" * 64, "data_sha256": "0" * 64, "order_sha256": "0" * 64, "images": 599}
        outcome = Outcome(measured, provenance, {"seconds": 1.0, "peak_bytes": 1})
        store.path(cell.key).write_bytes(result_file(cell, outcome))  # without waiting for the disk each time
    store.add_to_grid(cells, {"verb": "bench"})
    return cells


def answers(count: int) -> dict[str, dict[str, float]]:
    """Measure status and resume of a run with so many results."""
    with tempfile.TemporaryDirectory() as name:
        cells = filled(Path(name), count)
        command = [sys.executable, "-m", "offsupport", "bench", "status", name, "--json"]
        shell = timed(lambda: subprocess.run(command, check=True, capture_output=True))
        inside = timed(lambda: status(name).counts())
        resumed = timed(lambda: run_grid(cells, Place(Path(name)), {"verb": "bench"}))
    return {
        "status": {"ratio": shell / 2.0, "seconds": shell, "seconds_inside": inside, "cells": count},
        "resume": {"ratio": resumed / 2.0, "seconds": resumed, "cells": count},
    }


def report(count: int) -> dict[str, float]:
    """Measure the report of a run with so many results."""
    from offsupport.report.run_page import write_report

    with tempfile.TemporaryDirectory() as name:
        filled(Path(name), count)
        seconds = timed(lambda: write_report(name))
    return {"ratio": seconds / 10.0, "seconds": seconds, "cells": count}


def timed(call: Any) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--report", type=int, default=1_000)
    parser.add_argument("--work", type=float, default=10.0, help="seconds of a cell in the comparison of workers")
    given = parser.parse_args()
    found = {"workers": workers(given.work), "overhead": overhead(), **answers(given.cells)}
    found["report"] = report(given.report)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for name, numbers in found.items():
        print(f"{name:>9}: " + ", ".join(f"{key} {value:.4g}" for key, value in numbers.items()))


if __name__ == "__main__":
    main()
