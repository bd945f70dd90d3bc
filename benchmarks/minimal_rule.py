"""`minimal` with its hyper-parameter ``standardise`` at several values, beside `bn`, on networks of two families.

    python benchmarks/minimal_rule.py --data DIR [--networks DIR] [--images 500] [--out results/minimal_rule.json]
    python benchmarks/minimal_rule.py --attempts --data DIR --networks DIR --out results/minimal_attempts.json

CIFAR-10 test images, clean, under the four extra corruptions at severity 5, and with three quarters and more of their
contrast lost, in random order and sorted by label, in batches of 64; 500 other clean images for source statistics. The
zoo's joint and supervised ResNets, and two public networks where ``--networks`` has them. One row per network and
order: the mean error over the six streams, in percent, and that of the clean one. ``--attempts`` tries bolder rules on
one network of either family instead, and also on streams of 4 images that each begin anew.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from estimate import NETWORKS
from norm_statistics import BOTH, START, Streams, tell

import offsupport
from offsupport.core.progress import progress
from offsupport.methods import Adapter

STREAMS = ("clean", "speckle_noise", "gaussian_blur", "spatter", "saturate", "faded")
RULES: dict[str, dict[str, Any]] = {"source": {}, "bn": {}} | {f"{s:g}": {"standardise": s} for s in (0.0, 0.25, 0.5)}
ATTEMPTS: dict[str, dict[str, Any]] = {
    "source": {},
    "bn": {},
    "minimal": {},
    "amount=1": {"amount": 1.0},
    "amount=1, standardise=1": {"amount": 1.0, "standardise": 1.0},
    "amount=1, standardise=1, trust=0.5": {"amount": 1.0, "standardise": 1.0, "trust": 0.5},
    "doubt=1, prior=4": {"doubt": 1.0, "prior": 4.0},
    "doubt=1, prior=4, wary=0": {"doubt": 1.0, "prior": 4.0, "wary": 0.0},
}
"""Rules that go farther, or sooner."""
ORDERS = ("iid", "sorted")
SHORT = "streams of 4"
CONTRAST, LIGHT = 0.15, 168 / 255
"""What is left of the contrast of faded images, and their grey."""


def errors(streams: Streams, network: str, order: str, rules: dict[str, dict[str, Any]]) -> dict[str, float] | None:
    """Return the mean error of each rule over the streams, and on clean images; None without the network."""
    model = streams.model(network)
    if model is None:
        return None
    labels = streams.data.labels[START : START + streams.size]
    place = np.argsort(labels, kind="stable") if order == "sorted" else np.arange(streams.size)
    row = {}
    for name, hyper in rules.items():
        method = name if name in ("source", "bn") else "minimal"
        known = {} if method != "minimal" else {"source": streams.clean(network, model)}
        found = []
        for stream in STREAMS:
            x = streams.images("clean" if stream == "faded" else stream)[place]
            x = (x - 128 / 255) * CONTRAST + LIGHT if stream == "faded" else x
            adapter = offsupport.adapt(model, method, **known, **hyper)
            found.append(100 * float((answers(adapter, x, short=order == SHORT) != labels[place]).mean()))
        row |= {name: round(float(np.mean(found)), 1), f"{name}, clean": round(found[0], 1)}
    return row


def answers(adapter: Adapter, x: torch.Tensor, short: bool) -> npt.NDArray[np.int64]:
    """Return what an adapter says of a stream, or of many streams of four images."""
    said = []
    for batch in x.split(4 if short else 64):
        if short:
            adapter.reset()
        said.append(adapter(batch).argmax(1))
    labels: npt.NDArray[np.int64] = torch.cat(said).numpy()
    return labels


def main() -> None:
    """Run all, and print a row for each network and order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--attempts", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    streams, rows = Streams(given.data, given.networks, given.images), []
    warnings.simplefilter("ignore")  # of `bn` on sorted streams
    rules, networks, orders = RULES, NETWORKS, ORDERS
    if given.attempts:
        rules, networks, orders = ATTEMPTS, BOTH, (*ORDERS, SHORT)
    with progress("Networks", len(orders) * len(networks)) as advance:
        for network in networks:
            for order in orders:
                found = errors(streams, network, order, rules)
                rows += [{"network": network, "order": order, **found}] if found else []
                advance()
    result = {"images": given.images, "streams": list(STREAMS), "rows": rows}
    tell(result, rows, given)


if __name__ == "__main__":
    main()
