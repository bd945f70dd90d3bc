"""Does the shift score of ``diagnose_model`` call images off the support where the source model fails, and no others?

For clean test images and each of the fifteen corruptions at severities 2 and 5, with training images as source:

- the error of the source model;
- the share of images called off the support, as a set and each by itself; the goal is at least 90 % wherever the error
  at least doubles, and at most 5 % of clean images, those of a single class included;
- Spearman's correlation of the set's shift score with the rise in error over the fifteen corruptions, goal 0.8.

Nothing was chosen on these corruptions. ``public:FILE`` is a CIFAR-10 network of the public repository
akamaster/pytorch_resnet_cifar10, as safetensors.

Run: ``python benchmarks/shift_score.py --data DIR [--models NAME,NAME] [--images 100] [--json]``
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.stats import spearmanr
from torch import Tensor, nn

from offsupport.data import STANDARD, corrupt, load
from offsupport.diagnosis.network import KnownSource
from offsupport.nn import Normalized
from offsupport.nn.normalized import IMAGENET_MEAN, IMAGENET_STD
from offsupport.studies.models import source_model

MODELS = (
    "zoo:cifar10-resnet18x0.25-supervised",
    "zoo:cifar10-resnet18x0.25-joint",
    "zoo:cifar10-resnet18x0.25-gn",
    "zoo:cifar10-mae-tiny-finetune",
)
SEVERITIES = (2, 5)
GOALS = {"off where the error doubles": 0.9, "clean": 0.05, "rank": 0.8}


class Block(nn.Module):
    """A basic block whose shortcut has no weights."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.more, stride = (width - inputs) // 2, 1 if inputs == width else 2
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.more:
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more))
        return (out + x).relu()


class PublicResNet(nn.Module):
    """The ResNet for CIFAR-10 of He et al. (2016), section 4.2, with three stages of ``depth`` blocks."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, (inputs, width) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
            blocks = [Block(inputs if i == 0 else width, width) for i in range(depth)]
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        return self.linear(x.mean((2, 3)))


def network(name: str) -> nn.Module:
    """Return a model by name, ready to predict."""
    kind, _, path = name.partition(":")
    if kind == "public":
        weights = load_file(path)
        depth = 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("layer1."))
        model = PublicResNet(depth)
        model.load_state_dict(weights, strict=False)  # old files do not count batches
        return Normalized(model, IMAGENET_MEAN, IMAGENET_STD).eval()
    with tempfile.TemporaryDirectory() as folder:
        return source_model(name, Path(folder))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--source", type=int, default=400)
    parser.add_argument("--corruptions", default=",".join(STANDARD))
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(name, given) for name in given.models.split(",")]
    print(json.dumps({"models": found}, indent=1) if given.json else "\n\n".join(summary(each) for each in found))


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Judge clean images and every corruption of others by one model."""
    model, generator = network(name), np.random.default_rng(0)
    train, test = (load("cifar10", given.data, split=split) for split in ("train", "test"))
    source = train.tensor(np.sort(generator.permutation(len(train))[: given.source]))
    rows = generator.permutation(len(test))
    shown, held = np.sort(rows[: given.images]), np.sort(rows[given.images : 5 * given.images])
    known = KnownSource(model, source)
    images, labels = test.images(shown), test.labels[shown]
    cells = [cell(known, "clean", 0, images, labels)]
    for severity in SEVERITIES:
        cells += [
            cell(known, corruption, severity, corrupt(images, corruption, severity=severity), labels)
            for corruption in given.corruptions.split(",")
        ]
    one_class = [held[test.labels[held] == k] for k in (0, 3, 6)]
    clean = {
        "as a set of other images": off(known, test.images(held)),
        "one class alone": float(np.mean([off(known, test.images(rows)) for rows in one_class])),
    }
    shown_as = Path(name).stem if name.startswith("public:") else name
    about = {"model": shown_as, "images": given.images, "source": given.source, "goals": GOALS}
    return {**about, **totals(cells), "clean": clean, "cells": cells}


def cell(known: KnownSource, name: str, severity: int, images: Any, labels: Any) -> dict[str, Any]:
    """Return error and verdicts of one condition."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    found = known.judge(x)
    with torch.no_grad():
        predicted = torch.cat([known.model(part).argmax(1) for part in x.split(64)]).numpy()
    return {
        "corruption": name,
        "severity": severity,
        "error": float((predicted != labels).mean()),
        "off": float(np.mean([kind != "on support" for kind in found.regime])),
        "off_alone": float((found.shift_alone > 1).float().mean()),
        "set_shift": found.set_shift,
        "mean_distance": found.hardness,
    }


def off(known: KnownSource, images: Any) -> float:
    """Return the share of images that are called off the support."""
    found = known.judge(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)
    return float((found.shift > 1).float().mean())


def totals(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all conditions say together."""
    base = cells[0]["error"]
    hard = [each for each in cells[1:] if each["error"] >= 2 * base]
    return {
        "doubled": len(hard),
        "off_by_90_percent": sum(each["off"] >= 0.9 for each in hard),
        "off_alone_by_90_percent": sum(each["off_alone"] >= 0.9 for each in hard),
        "lowest_off": min((each["off"] for each in hard), default=None),
        "mean_off_alone": float(np.mean([each["off_alone"] for each in hard])) if hard else None,
        "rank": {
            str(severity): {
                name: float(spearmanr(*zip(*((e[name], e["error"]) for e in part), strict=True)).statistic)
                for name in ("set_shift", "mean_distance")
            }
            for severity in SEVERITIES
            if (part := [each for each in cells if each["severity"] == severity])
        },
    }


def summary(found: dict[str, Any]) -> str:
    """Return the result in words."""
    lines = [found["model"]]
    lines += [
        f"{each['corruption']:>18} {each['severity']}: error {each['error']:.2f}, off {each['off']:.2f} "
        f"(alone {each['off_alone']:.2f}), shift {each['set_shift']:.1f}, distance {each['mean_distance']:.2f}"
        for each in found["cells"]
    ]
    lines.append(
        f"error at least doubled: {found['doubled']} conditions; off for 90 % of the images in "
        f"{found['off_by_90_percent']}, each image alone in {found['off_alone_by_90_percent']}"
    )
    lines.append(f"clean images off: {found['clean']}; rank correlations with the error: {found['rank']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
