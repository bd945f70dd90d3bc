"""How right estimates without labels are, and whether alarms fire when they should.

    python benchmarks/estimate.py --data DIR [--networks DIR] [--cache DIR] [--out results/estimate.json] [--json]

CIFAR-10, 500 test images per stream in batches of 64; clean and fifteen corruptions at severities 5 and 2, in random
order, sorted by label and in bursts; five methods on the zoo's supervised and joint ResNets, and on two public
networks where ``--networks`` has them. The calibration is made of test images 0 to 499, streams are of images 2000 to
2499; with ``--tuning`` streams are of images 4000 to 4499 under the four extra corruptions, on which constants were
chosen. One calibration, by ``bn``, serves all methods. Answers are kept in ``--cache``, so that what was interrupted
goes on, and what is there is not computed again; with ``--cached`` nothing is computed but what estimates need.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import offsupport
from offsupport.core.files import write_text
from offsupport.core.progress import progress
from offsupport.data import EXTRA, STANDARD, corrupt, load
from offsupport.data.dataset import Dataset
from offsupport.data.order import permutation
from offsupport.data.spec import Order
from offsupport.engine import SourceStats
from offsupport.monitor import Alarms, Calibration, Window, estimate, shift_score
from offsupport.monitor.shift import fold, seen_by_layers
from offsupport.nn.norm import capture_means
from offsupport.nn.normalized import IMAGENET_MEAN, IMAGENET_STD

IMAGES, BATCH, CALIBRATION = 500, 64, 500
METHODS = ("source", "bn", "tent", "shot", "eata")
ORDERS: tuple[Order, ...] = ("iid", "sorted", "dirichlet")
PUBLIC = {"resnet20": 3, "resnet32": 5}
NETWORKS = ("supervised", "joint", *PUBLIC)


class Condition(NamedTuple):
    """Images of a stream."""

    corruption: str
    severity: int
    first: int


TEST = [
    Condition("clean", 0, 2000),
    *(Condition(name, severity, 2000) for severity in (5, 2) for name in STANDARD),
]
TUNING = [Condition("clean", 0, 4000), *(Condition(name, severity, 4000) for severity in (5, 3, 1) for name in EXTRA)]


class Block(nn.Module):
    """A basic block whose shortcut has no weights."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.same = width_in == width

    def forward(self, x: Tensor) -> Tensor:
        """Add what the two convolutions find to the input, every second pixel of it where the width changes."""
        found = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        quarter = len(self.bn2.weight) // 4
        x = x if self.same else nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, quarter, quarter))
        return (x + found).relu()


class PublicResNet(nn.Module):
    """The ResNet of the public CIFAR-10 weights."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for place, (before, width) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            first = Block(before, width, 1 if before == width else 2)
            self.add_module(f"layer{place}", nn.Sequential(first, *(Block(width, width, 1) for _ in range(blocks - 1))))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.bn1(self.conv1(x)).relu()
        for place in (1, 2, 3):
            x = self.get_submodule(f"layer{place}")(x)
        return self.linear(x.mean((2, 3)))


def network(name: str, folder: Path | None) -> nn.Module | None:
    """Return a network by name; None where it is not there."""
    if name not in PUBLIC:
        model = offsupport.load_model(f"zoo:cifar10-resnet18x0.25-{name}")
    else:
        path = None if folder is None else folder / f"{name}-cifar10.safetensors"
        if path is None or not path.is_file():
            return None
        plain = PublicResNet(PUBLIC[name])
        plain.load_state_dict(load_file(path), strict=False)
        model = offsupport.nn.Normalized(plain, IMAGENET_MEAN, IMAGENET_STD)
    return model.eval().to(memory_format=torch.channels_last)


class Answers:
    """Logits by network, condition, order and method, computed once and kept as files."""

    def __init__(self, data: Dataset, cache: Path, folder: Path | None, only_kept: bool) -> None:
        self.data, self.cache, self.folder, self.only_kept = data, cache, folder, only_kept
        self.models: dict[str, nn.Module | None] = {}
        self.known: dict[str, Calibration | None] = {}

    def model(self, name: str) -> nn.Module | None:
        """Return a network, loaded once."""
        if name not in self.models:
            self.models[name] = network(name, self.folder)
        return self.models[name]

    def images(self, condition: Condition) -> Tensor:
        """Return the images of a condition."""
        rows = np.arange(condition.first, condition.first + IMAGES)
        pixels = self.data.images(rows)
        if condition.severity:
            path = self.cache / f"px_{condition.corruption}_{condition.severity}_{condition.first}.npy"
            if not path.exists():
                made = corrupt(pixels, condition.corruption, severity=condition.severity, seed=0)
                with path.open("wb") as file:
                    np.save(file, made)
            pixels = np.load(path)
        x = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float().div(255)
        return x.contiguous(memory_format=torch.channels_last)

    def order(self, condition: Condition, order: Order) -> np.ndarray[Any, Any]:
        """Return the order of the images."""
        labels = self.labels(condition)
        if order == "dirichlet":
            return permutation(labels, order, np.random.default_rng(0))
        return np.arange(IMAGES) if order == "iid" else np.argsort(labels, kind="stable")

    def labels(self, condition: Condition) -> np.ndarray[Any, Any]:
        """Return the labels in the order of the data set."""
        return self.data.labels[condition.first : condition.first + IMAGES]

    def source(self, name: str, condition: Condition) -> dict[str, Any] | None:
        """Return logits of the source model and what its layers see."""
        path = self.cache / f"{name}_{'_'.join(map(str, condition))}_source.npz"
        if not path.exists():
            model = self.model(name)
            if model is None or self.only_kept:
                return None
            logits, means = [], []
            with torch.no_grad():
                for batch in self.images(condition).split(BATCH):
                    with capture_means(model) as seen:
                        logits.append(model(batch))
                    values, widths = seen_by_layers(seen, logits[-1])
                    means.append(values.numpy().astype(np.float16))
            keep(path, logits=torch.cat(logits).numpy(), means=np.concatenate(means), widths=widths)
        with np.load(path) as found:
            return dict(found)

    def adapted(self, name: str, condition: Condition, order: Order, method: str) -> np.ndarray[Any, Any] | None:
        """Return logits of a method, in the order of the stream."""
        path = self.cache / f"{name}_{'_'.join(map(str, condition))}_{order}_{method}.npz"
        if not path.exists():
            model = self.model(name)
            if model is None or self.only_kept:
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adapter = offsupport.adapt(model, method)
                x = self.images(condition)[self.order(condition, order)]
                logits = torch.cat([adapter(batch) for batch in x.split(BATCH)]).numpy()
            keep(path, logits=logits)
        with np.load(path) as found:
            logits_found: np.ndarray[Any, Any] = found["logits"]
            return logits_found

    def calibration(self, name: str) -> Calibration | None:
        """Return what is known of a network from clean images, read once."""
        if name not in self.known:
            self.known[name] = self._calibration(name)
        return self.known[name]

    def _calibration(self, name: str) -> Calibration | None:
        path = self.cache / f"{name}_calibration.safetensors"
        if not path.exists():
            model = self.model(name)
            if model is None:
                return None
            rows = np.arange(CALIBRATION)
            x = self.data.tensor(rows).contiguous(memory_format=torch.channels_last)
            offsupport.source_stats(model, x.split(100), "bn", labels=self.data.labels[:CALIBRATION]).save(path)
        return Calibration.of(SourceStats.load(path).calibration, "bn")


def keep(path: Path, **arrays: Any) -> None:
    """Write arrays under another name, then rename: an interrupted run leaves no half file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
        np.savez(file, **arrays)
    Path(file.name).rename(path)


def fired(logits: Tensor, x: Tensor) -> list[str]:
    """Return the alarms of a stream."""
    alarms, state, told = Alarms(), Alarms.initial(), set()
    for batch, images in zip(logits.split(BATCH), x.split(BATCH), strict=True):
        state, now = alarms.observe(state, batch, images)
        told |= set(now)
    return sorted(told)


def row(answers: Answers, name: str, condition: Condition, order: Order, method: str) -> dict[str, Any] | None:
    """Return truth and estimate of one stream; None where answers are missing."""
    known, found = answers.calibration(name), answers.source(name, condition)
    if known is None or found is None or known.clean is None:
        return None
    place = answers.order(condition, order)
    source, labels = found["logits"][place].astype(float), answers.labels(condition)[place]
    adapted = source if method == "source" else answers.adapted(name, condition, order, method)
    if adapted is None:
        return None
    seen = torch.from_numpy(found["means"][place].astype(np.float32))
    state = torch.empty(0)
    for values, logits in zip(seen.split(BATCH), torch.from_numpy(source).split(BATCH), strict=True):
        state = fold(state, known.clean.difference(values, logits))
    said = estimate(Window(source, adapted.astype(float), IMAGES, shift_score(state, known.clean)), known)
    truth = [float((logits.argmax(1) == labels).mean()) for logits in (source, adapted)]
    spans = {
        f"{what}_{key}": getattr(getattr(said, what), key)
        for what in ("source", "adapted", "benefit")
        for key in ("value", "low", "high")
    }
    about = {"network": name, "corruption": condition.corruption, "severity": condition.severity, "order": order}
    rest = {"agreement": said.agreement, "shift": said.shift, "seen_order": said.order, "verdict": said.verdict}
    alarms = {
        "alarms": fired(torch.from_numpy(adapted), answers.images(condition)[place]) if method != "source" else []
    }
    return {**about, "method": method, "source": truth[0], "adapted": truth[1], **spans, **rest, **alarms}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return errors of the estimates in points, coverage, and how often verdicts and alarms are right."""
    errors = {what: np.array([abs(r[what] - r[f"{what}_value"]) for r in rows]) for what in ("source", "adapted")}
    inside = {what: [r[f"{what}_low"] <= r[what] <= r[f"{what}_high"] for r in rows] for what in errors}
    gain = np.array([r["adapted"] - r["source"] for r in rows])
    harms = np.array([r["verdict"] == "harms" for r in rows])
    helps = np.array([r["verdict"] == "helps" for r in rows])
    order = np.array(["order" in r["alarms"] for r in rows if r["method"] != "source"])
    other = np.array([bool({"collapse", "disagreement"} & set(r["alarms"])) for r in rows if r["method"] != "source"])
    worse, better = gain < -0.03, gain > 0.03
    return {
        "streams": len(rows),
        **{f"{what}_error": round(100 * float(found.mean()), 2) for what, found in errors.items()},
        **{f"{what}_covered": round(float(np.mean(found)), 3) for what, found in inside.items()},
        "worse": int(worse.sum()),
        "harms_said_where_worse": share(harms[worse]),
        "harms_said_elsewhere": share(harms[~worse]),
        "better": int(better.sum()),
        "helps_said_where_better": share(helps[better]),
        "helps_said_where_worse": share(helps[gain < 0]),
        "order_alarms": share(order),
        "other_alarms": share(other),
    }


def share(flags: np.ndarray[Any, Any]) -> float | None:
    """Return the share of flags, None of none."""
    return round(float(flags.mean()), 3) if len(flags) else None


def groups(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of all streams by order, and by order and network or method."""
    found: dict[str, Any] = {}
    for order in ORDERS:
        mine = [r for r in rows if r["order"] == order]
        for what in ("network", "method"):
            for name in dict.fromkeys(r[what] for r in mine):
                found[f"{order}, {name}"] = summary([r for r in mine if r[what] == name])
        if mine:
            found[order] = summary(mine)
    return found


def main() -> None:
    """Compute what is missing, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "offsupport-estimate")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.cache.mkdir(parents=True, exist_ok=True)
    answers = Answers(load("cifar10", given.data, split="test"), given.cache, given.networks, given.cached)
    conditions = TUNING if given.tuning else TEST
    cells = [(n, c, o, m) for n in NETWORKS for m in given.methods.split(",") for c in conditions for o in ORDERS]
    rows = []
    with progress("Estimates", len(cells)) as advance:
        for cell in cells:
            rows += [found] if (found := row(answers, *cell)) else []
            advance()
    result = {"summary": groups(rows), "rows": rows}
    if given.out:
        write_text(given.out, json.dumps(result, indent=1) + "\n")
    if given.json:
        json.dump(result, sys.stdout, indent=1)
        return
    for name, found in result["summary"].items():
        print(f"{name:>18}", *(f"{key}={value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
