"""Run folders without running anything: results as cells would have stored them, in a real store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offsupport.bench.cell import Cell, Outcome
from offsupport.bench.store import Store
from offsupport.core.seeds import derive_seed
from offsupport.results.correctness import pack
from offsupport.studies.adaptation import LEAK
from offsupport.studies.grids import expand


def adapt_outcome(cell: Cell, images: int, batches: int = 20) -> Outcome:
    """What a stream with a seeded share of errors would have left behind."""
    config = cell.config
    rng = np.random.default_rng(derive_seed("run_maker", cell.key))
    share = 0.05 * config["severity"] + 0.1 * rng.random() + (0.1 if config["method"] == "source" else 0.0)
    correct = rng.random(images) > share
    found = {"error": 1 - correct.mean(), "n": images, "images": pack(np.arange(images), correct)}
    trace = [float(1 - part.mean()) for part in np.array_split(correct, batches)]
    layers = [f"layer{i}.conv" for i in range(1, 9)]
    constrained = {
        "zero_gates": 0.25,
        "mean_effective_rank": 2.0,
        "updates": {
            name: {"change": 0.01, "effective_rank": 1 + 2 * rng.random(), "rank": 4, "zeros": 0.25} for name in layers
        },
        "gates": {name: rng.normal(size=4).round(5).tolist() for name in layers},
    }
    measured: dict[str, Any] = {
        "error": found["error"],
        "n": images,
        "domains": {f"{config['corruption']}/{config['severity']}": found},
        "trace": trace,
        "passes": {"forward": batches, "backward": 0 if config["method"] == "source" else batches},
        "events": {"collapse": 0},
        "warnings": [LEAK.format(method=config["method"])] if config["source_split"] == "test" else [],
        **({"findings": constrained} if config["method"].endswith("+sc") else {}),
    }
    hashes = {f"{name}_sha256": f"{i}" * 64 for i, name in enumerate(("weights", "data", "order"))}
    return Outcome(measured, {**hashes, "images": images}, {"seconds": 1.0 + rng.random(), "peak_bytes": 1 << 28})


def make_run(folder: Path, images: int = 300, request: dict[str, Any] | None = None, **axes: Any) -> Path:
    """Write a run folder with one result for every combination; the axes are fields of an adaptation cell."""
    cells = expand(axes, dataset="digits-c")
    store = Store(folder)
    store.add_to_grid(cells, request or {"verb": "bench"})
    for cell in cells:
        store.write(cell, adapt_outcome(cell, images))
    return folder
