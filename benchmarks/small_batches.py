"""How small a batch can stand alone: error of pure and of blended batch statistics by batch size.

    python benchmarks/small_batches.py [--json]

Digits, clean and under the four extra corruptions (the ones choices are made on), severity 5, seed 0. This is where the
defaults ``min_batch=16`` and ``prior=16`` come from.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

import offsupport
from offsupport.core.progress import progress
from offsupport.data import EXTRA, stream
from offsupport.training import digits_model

SIZES = (1, 2, 4, 8, 16, 32, 64)
SIDES: dict[str, tuple[str, dict[str, float]]] = {
    "source": ("source", {}),
    "pure": ("bn", {"min_batch": 1}),
    "blend, prior 4": ("bn", {"min_batch": 1000, "prior": 4.0}),
    "blend, prior 16": ("bn", {"min_batch": 1000, "prior": 16.0}),
    "blend, prior 64": ("bn", {"min_batch": 1000, "prior": 64.0}),
}


def measure() -> list[dict[str, object]]:
    """Return the error in percent for every set, batch size and side."""
    torch.set_num_threads(1)
    model = digits_model()
    rows: list[dict[str, object]] = []
    with progress("Small batches", (1 + len(EXTRA)) * len(SIZES)) as advance:
        for corruption in (None, *EXTRA):
            for size in SIZES:
                batches = stream("digits-c" if corruption else "digits", corruption=corruption, batch_size=size)
                errors = {
                    side: round(100 * offsupport.evaluate(offsupport.adapt(model, method, **hyper), batches).error, 2)
                    for side, (method, hyper) in SIDES.items()
                }
                rows.append({"data": corruption or "clean", "batch": size, **errors})
                advance()
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = measure()
    if as_json:
        json.dump(rows, sys.stdout, indent=1)
        return
    print(*(f"{name:>16}" for name in rows[0]))
    for row in rows:
        print(*(f"{value!s:>16}" for value in row.values()))


if __name__ == "__main__":
    main()
