"""How long the report of a run of 1,000 cells takes, and what of it is reading, counting and drawing.

``python benchmarks/report_speed.py [--json] [--images N]``. The results are made up (seeded) in a real run folder: 22
methods on 15 corruptions with 3 seeds, each of N images. The goal is 10 s. ``ratio`` is the time of the whole over that
of reading the results alone, within one run; ``cpu_seconds`` is what the whole took of one core, on a busy machine less
than the clock says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parent.parent / "tests" / "report"))
METHODS = 22


def measure(images: int) -> dict[str, float | int]:
    """Make the run and time its parts."""
    from run_maker import make_run

    from offsupport.bench.runs import status
    from offsupport.data import STANDARD
    from offsupport.report.run_page import write_report

    with TemporaryDirectory() as name:
        methods = ["source", *(f"method-{i}+sc" for i in range(1, METHODS))]
        folder = make_run(Path(name), images, method=methods, corruption=STANDARD, seed=range(3))
        started = time.perf_counter()
        cells = len(status(folder).done)
        read = time.perf_counter()
        worked = time.process_time()
        path, _ = write_report(folder)
        whole, worked = time.perf_counter() - read, time.process_time() - worked
        size = path.stat().st_size
    reading = read - started
    return {
        "cells": cells,
        "images": images,
        "read_seconds": round(reading, 2),
        "report_seconds": round(whole, 2),
        "cpu_seconds": round(worked, 2),
        "ratio": round(whole / reading, 2),
        "page_bytes": size,
    }


def main() -> None:
    """Print the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000, help="Images of each stream.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    options = parser.parse_args()
    found = measure(options.images)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(
            "{cells} cells of {images:,} images: {report_seconds} s, of which reading {read_seconds} s".format(**found)
        )


if __name__ == "__main__":
    main()
