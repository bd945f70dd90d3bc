"""`auto` with other shares and step sizes of its bold prediction, and each of its two predictions alone.

    python benchmarks/auto_rule.py --data DIR [--networks DIR] [--images 512] [--out results/auto_rule.json]

CIFAR-10 test images under the four extra corruptions at severity 5, in random order: each corruption by itself, all of
them mixed image by image, and taking turns every 32 and every 256 images, in batches of 64; and each by itself at
severity 2 in batches of 16. 500 other clean images, with labels, for source statistics. The zoo's joint and supervised
ResNets, and two public networks where ``--networks`` has them. One row per network, step size and kind of stream:
errors in percent of `auto` as it is, of the calm prediction, of the bold one, and of their means in which the bold one
counts for a third, a half, two thirds and four fifths wherever it is asked, however plain the shift.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from estimate import NETWORKS
from norm_statistics import CLEAN, START, Streams, tell
from torch import Tensor, nn

import offsupport
from offsupport.core.progress import progress
from offsupport.data import corrupt
from offsupport.engine import SourceStats
from offsupport.methods import register_method
from offsupport.methods.auto import Auto, AutoConfig

SHIFTS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
RATES = (0.02, 0.04)
"""Step sizes; the first is the default."""
BATCH, MILD, SMALL = 64, 2, 16
"""Images per batch, the milder severity, and images per batch under that."""
SHARES = (1 / 3, 1 / 2, 2 / 3, 4 / 5)
TURNS = (32, 256)
"""After how many images one corruption follows another."""


class Stream(NamedTuple):
    """Images in their order, their labels, and how many come at a time."""

    images: Tensor
    labels: Tensor
    batch: int = BATCH


def made(streams: Streams) -> dict[str, list[Stream]]:
    """Return streams by kind; errors are means over those of a kind."""
    labels = torch.from_numpy(np.asarray(streams.data.labels[START : START + streams.size]))
    images = torch.stack([streams.images(name) for name in SHIFTS])
    every = labels.expand(len(SHIFTS), -1)
    order = torch.randperm(images.shape[0] * images.shape[1], generator=torch.Generator().manual_seed(0))
    found = {
        "one corruption": [Stream(each, labels) for each in images],
        "mixed": [Stream(images.flatten(0, 1)[order], every.flatten()[order])],
    }
    for turn in TURNS:
        stretches = images.unflatten(1, (-1, turn)).transpose(0, 1).flatten(0, 2)
        found[f"turns of {turn}"] = [Stream(stretches, every.unflatten(1, (-1, turn)).transpose(0, 1).flatten())]
    raw = streams.data.images(np.arange(START, START + streams.size))
    mild = [corrupt(raw, name, severity=MILD, seed=0) for name in SHIFTS]
    found["mild"] = [Stream(torch.from_numpy(each).permute(0, 3, 1, 2) / 255, labels, SMALL) for each in mild]
    return found


@register_method(dataclasses.replace(Auto.info, name="auto-heard"), AutoConfig)
class Heard(Auto):
    """`auto`, which keeps its two predictions of each batch; the bold one is the calm one where it was not asked."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.calm: list[Tensor] = []
        self.bold: list[Tensor] = []

    def serve(self, x: Tensor) -> Tensor:
        """Predict calmly, and keep it."""
        logits = super().serve(x)
        self.calm.append(logits.softmax(1))
        self.bold.append(self.calm[-1])
        return logits

    def _bold(self, x: Tensor, learns: bool) -> Tensor:
        logits = super()._bold(x, learns)
        self.bold[-1] = logits.softmax(1)
        return logits


def wrong(said: Tensor, labels: Tensor) -> float:
    """Return the share of predictions that are not the labels, in percent."""
    return 100 * float((said.argmax(1) != labels).double().mean())


def errors(model: nn.Module, stats: SourceStats, lr: float, stream: Stream) -> dict[str, float]:
    """Return the errors on a stream, of `auto` and of its parts."""
    adapter = offsupport.adapt(model, "auto-heard", source=stats, lr=lr)
    said = torch.cat([adapter(x) for x in stream.images.split(stream.batch)])
    calm, bold = torch.cat(adapter.calm), torch.cat(adapter.bold)
    found = {"auto": said, "calm": calm, "bold": bold}
    found |= {f"bold counts {share:.2f}": calm.lerp(bold, share) for share in SHARES}
    return {name: wrong(each, stream.labels) for name, each in found.items()}


def main() -> None:
    """Run all, and print a row for each network, step size and kind of stream."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", type=Path)
    parser.add_argument("--images", type=int, default=512, help="a multiple of 256")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    streams, rows = Streams(given.data, given.networks, given.images), []
    kinds = made(streams)
    with progress("Networks", len(NETWORKS) * len(RATES)) as advance:
        for network in NETWORKS:
            model = streams.model(network)
            if model is None:
                continue
            clean = streams.data.tensor(np.arange(CLEAN)).split(100)
            labels = torch.from_numpy(np.asarray(streams.data.labels[:CLEAN]))
            stats = offsupport.source_stats(model, clean, method="auto-heard", labels=labels)
            for lr in RATES:
                for kind, each in kinds.items():
                    found = [errors(model, stats, lr, stream) for stream in each]
                    mean = {name: round(float(np.mean([own[name] for own in found])), 1) for name in found[0]}
                    rows.append({"network": network, "lr": lr, "streams": kind, **mean})
                advance()
    result = {"images": given.images, "corruptions": list(SHIFTS), "rows": rows}
    tell(result, rows, given)


if __name__ == "__main__":
    main()
