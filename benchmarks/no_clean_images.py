"""`auto` without clean images, beside itself with them, `bn` and the model alone, on networks of two families.

    python benchmarks/no_clean_images.py --data DIR [--networks DIR] [--images 1000] [--out FILE]

CIFAR-10 test images in batches of 64, clean and under the four extra corruptions at severity 5, in random order and
sorted by label; where clean images are given, they are 500 others. The zoo's joint and supervised ResNets, and two
public networks where ``--networks`` has them. One row per network and order: errors in percent on clean images and on
average over the corruptions, and how far the means of clean images lie from the running statistics (the median over
layers, squared and in units of the guessed variance between images), which is what ``auto`` takes for no shift.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from estimate import NETWORKS
from norm_statistics import CLEAN, START, Streams, tell

import offsupport
from offsupport.core.progress import progress

SHIFTS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


def measured(streams: Streams, network: str, order: str) -> dict[str, float] | None:
    """Return the errors of each method; None without the network."""
    model = streams.model(network)
    if model is None:
        return None
    labels = streams.data.labels[START : START + streams.size]
    place = np.arange(streams.size) if order == "iid" else np.argsort(labels, kind="stable")
    clean = offsupport.source_stats(model, streams.data.tensor(np.arange(CLEAN)).split(100), method="auto")
    adapters = {
        "source": offsupport.adapt(model, "source"),
        "bn": offsupport.adapt(model, "bn"),
        "auto": offsupport.adapt(model),
        "auto, clean images": offsupport.adapt(model, source=clean),
    }
    row: dict[str, float] = {}
    for name, adapter in adapters.items():
        found = []
        for stream in ("clean", *SHIFTS):
            adapter.reset()
            batches = streams.images(stream)[place].split(64)
            said = torch.cat([adapter(batch).argmax(1) for batch in batches]).numpy()
            found.append(100 * float((said != labels[place]).mean()))
            if (name, stream) == ("auto", "clean"):
                row["distance"] = round(adapter.statistics_policy.distance(), 3)
        row |= {f"{name}: clean": round(found[0], 1), f"{name}: shifted": round(float(np.mean(found[1:])), 1)}
    return row


def main() -> None:
    """Run all, and print a row for each network and order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    streams, rows = Streams(given.data, given.networks, given.images), []
    warnings.simplefilter("ignore")  # of `bn` on sorted streams
    with progress("Networks", 2 * len(NETWORKS)) as advance:
        for network in NETWORKS:
            for order in ("iid", "sorted"):
                found = measured(streams, network, order)
                rows += [{"network": network, "order": order, **found}] if found else []
                advance()
    result = {"images": given.images, "streams": ["clean", *SHIFTS], "rows": rows}
    tell(result, rows, given)


if __name__ == "__main__":
    main()
