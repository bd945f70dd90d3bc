"""Methods that take steps on the statistics of the batch, and on those of minimal change.

    python benchmarks/norm_statistics.py --data DIR [--networks DIR] [--cache DIR] [--out results/norm_statistics.json]

CIFAR-10, ``--images`` test images per stream: clean and under the four extra corruptions at severity 5, in random order
and sorted by label, in batches of 64; some streams in batches of 16 as well, and half of them one by one. Each method
with ``statistics="batch"``, with ``"minimal"``, and with ``"minimal"`` and moments of 500 clean images that are in no
stream; `sar` also with other step sizes. The zoo's joint and supervised ResNets, and two public networks where
``--networks`` has them. Answers are kept in ``--cache``: what was interrupted goes on. ``--minutes`` of processor time
end a run early: the result then has the streams that were reached, those of two networks and two kinds first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from estimate import NETWORKS, network
from torch import Tensor, nn

import offsupport
from offsupport.core.files import write_text
from offsupport.core.progress import progress
from offsupport.data import corrupt, load

CLEAN, START = 500, 4000
"""Clean images that moments are taken of, and the first test image of all streams."""
BOTH, OTHERS = ("joint", "resnet20"), ("supervised", "resnet32")
FIRST, REST = ("speckle_noise", "clean"), ("saturate", "gaussian_blur", "spatter")
METHODS = ("tent", "eata", "shot", "sar")
WORDS = ("batch", "minimal", "minimal, source")
RATES = (1e-3, 1e-2, 3e-2, 1e-1)
"""Step sizes of `sar` that are compared."""


class Cell(NamedTuple):
    """One stream through one adapter."""

    network: str
    corruption: str
    order: str
    batch: int
    method: str
    statistics: str
    lr: float | None = None


def cells() -> list[Cell]:
    """Return all streams, those that say most first."""
    found = [Cell(name, "speckle_noise", "iid", 64, "sar", "batch", lr) for name in BOTH for lr in RATES]
    for networks, corruptions in ((BOTH, FIRST), (OTHERS, FIRST), (NETWORKS, REST)):
        streams = [(n, c, o, 64) for c in corruptions for n in networks for o in ("iid", "sorted")]
        small = [(n, c, "iid", batch) for batch in (16, 1) for c in corruptions[:1] for n in networks]
        found += [Cell(*stream, "tent", word) for stream in streams for word in WORDS]
        found += [Cell(*stream, method, word) for method in METHODS[1:] for stream in streams for word in WORDS]
        found += [Cell(*stream, "tent", word) for stream in small for word in WORDS]
    return found


class Streams:
    """Images, networks and what is known of clean images, each made once."""

    def __init__(self, data: Path, folder: Path | None, size: int) -> None:
        self.data, self.folder, self.size = load("cifar10", data, split="test"), folder, size
        self.models: dict[str, nn.Module | None] = {}
        self.moments: dict[str, Any] = {}
        self.pixels: dict[str, Tensor] = {}

    def model(self, name: str) -> nn.Module | None:
        """Return a network; None where it is not there."""
        if name not in self.models:
            self.models[name] = network(name, self.folder)
        return self.models[name]

    def images(self, corruption: str) -> Tensor:
        """Return the images of a corruption in the order of the data set."""
        if corruption not in self.pixels:
            found = self.data.images(np.arange(START, START + self.size))
            if corruption != "clean":
                found = corrupt(found, corruption, severity=5, seed=0)
            x = torch.from_numpy(np.ascontiguousarray(found)).permute(0, 3, 1, 2).float().div(255)
            self.pixels[corruption] = x.contiguous(memory_format=torch.channels_last)
        return self.pixels[corruption]

    def clean(self, name: str, model: nn.Module) -> Any:
        """Return moments of clean images, which serve all methods."""
        if name not in self.moments:
            x = self.data.tensor(np.arange(CLEAN)).contiguous(memory_format=torch.channels_last)
            self.moments[name] = offsupport.source_stats(model, x.split(100), "minimal")
        return self.moments[name]

    def run(self, cell: Cell) -> dict[str, Any] | None:
        """Return the error of one stream; None where the network is not there."""
        model = self.model(cell.network)
        if model is None:
            return None
        labels = self.data.labels[START : START + self.size]
        place = np.arange(self.size) if cell.order == "iid" else np.argsort(labels, kind="stable")
        place = place[: self.size // 2] if cell.batch == 1 else place
        word = cell.statistics.partition(",")[0]
        hyper: dict[str, Any] = {} if cell.lr is None else {"lr": cell.lr}
        if cell.method not in ("source", "minimal"):
            hyper["statistics"] = word
        if cell.statistics.endswith("source"):
            hyper["source"] = self.clean(cell.network, model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapter = offsupport.adapt(model, cell.method, **hyper)
            said = [adapter(batch).argmax(1) for batch in self.images(cell.corruption)[place].split(cell.batch)]
        wrong = torch.cat(said).numpy() != labels[place]
        return {**cell._asdict(), "n": len(place), "error": round(100 * float(wrong.mean()), 2)}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean errors by network family, method, batch size, order and kind of stream, for each of the statistics.

    Only streams that all of the statistics met are counted, so that the columns can be compared.
    """
    found: dict[tuple[Any, ...], dict[tuple[str, str], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["lr"] is None and row["method"] in METHODS:
            family = "public" if row["network"].startswith("resnet") else "zoo"
            kind = "clean" if row["corruption"] == "clean" else "shifted"
            where = found[family, row["method"], row["batch"], row["order"], kind]
            where[row["network"], row["corruption"]][row["statistics"]] = row["error"]
    lines = []
    for (family, method, batch, order, kind), streams in found.items():
        whole = [errors for errors in streams.values() if set(errors) == set(WORDS)]
        if whole:
            about = {"networks": family, "method": method, "size": batch, "order": order, "images": kind}
            means = {word: round(float(np.mean([errors[word] for errors in whole])), 1) for word in WORDS}
            lines.append({**about, "streams": len(whole), **means})
    return lines


def tell(result: dict[str, Any], lines: Sequence[dict[str, Any]], given: argparse.Namespace) -> None:
    """Write a result where ``--out`` says, and print it as JSON or line by line."""
    if given.out:
        write_text(given.out, json.dumps(result, indent=1) + "\n")
    if given.json:
        json.dump(result, sys.stdout, indent=1)
        return
    for line in lines:
        print(*(f"{key}={value}" for key, value in line.items()))


def main() -> None:
    """Compute what is missing, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "offsupport-norm-statistics")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.cache.mkdir(parents=True, exist_ok=True)
    streams, rows, wanted = Streams(given.data, given.networks, given.images), [], cells()
    with progress("Streams", len(wanted)) as advance:
        for cell in wanted:
            path = given.cache / f"{hashlib.sha256(repr((cell, given.images)).encode()).hexdigest()[:16]}.json"
            if not path.exists() and time.process_time() < 60 * given.minutes:
                write_text(path, json.dumps(streams.run(cell)))
            rows += [json.loads(path.read_text())] if path.exists() else []
            advance()
    rows = [row for row in rows if row]
    result = {"images": given.images, "streams": len(rows), "of": len(wanted), "summary": summary(rows), "rows": rows}
    tell(result, result["summary"], given)


if __name__ == "__main__":
    main()
