"""A stream that changes and gets sorted: error along it, and what the label-free estimate says beside the truth.

    python benchmarks/changing_stream.py --data DATA [--json]

CIFAR-10 test images, severity 5, batches of 64, the supervised network of the zoo, seed 0. Clean, then fog, then
gaussian noise, then clean images sorted by label, then contrast. Calibrated by 500 training images that were held out.
Writes results/changing_stream.json, the pictures of docs/auto.md and that of the README.
"""

from __future__ import annotations

import argparse
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import offsupport
from offsupport.core.files import write_bytes, write_json, write_text
from offsupport.core.progress import progress
from offsupport.data import corrupt, load
from offsupport.methods.auto import WATCHED
from offsupport.report import figures
from offsupport.training.run import held_out_rows

ROOT = Path(__file__).parents[1]
MODEL = "zoo:cifar10-resnet18x0.25-supervised"
STAGES = ("clean", "fog", "gaussian_noise", "clean, sorted", "contrast")
SHORT = {"clean": "clean", "fog": "fog", "gaussian_noise": "noise", "clean, sorted": "sorted", "contrast": "contrast"}
METHODS = ("source", "bn", "tent", "auto")
SAMPLES = 4
"""Images of each stage above the curve of the README: the first ones in it."""
IMAGES, BATCH, SMOOTH, SEED = 768, 64, 256, 0


def tensor(images: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return images as the model takes them."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255


def stages(data: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return images and labels of each stage; no image comes twice."""
    test = load("cifar10", data, split="test")
    order = np.random.default_rng(SEED).permutation(len(test.labels))[: IMAGES * len(STAGES)]
    found = []
    for stage, rows in zip(STAGES, np.split(order, len(STAGES)), strict=True):
        rows = rows[np.argsort(test.labels[rows], kind="stable")] if "sorted" in stage else rows
        images = test.images(rows)
        images = images if stage.startswith("clean") else corrupt(images, stage, severity=5, seed=SEED)
        found.append((tensor(images), torch.from_numpy(test.labels[rows])))
    return found


def calibration(data: Path, model: torch.nn.Module) -> offsupport.SourceStats:
    """Return what 500 held-out training images tell."""
    training = load("cifar10", data, split="train")
    rows = np.random.default_rng(SEED).permutation(held_out_rows(training, 5000))[:500]
    batches = tensor(training.images(rows)).split(100)
    return offsupport.source_stats(model, batches, "auto", labels=torch.from_numpy(training.labels[rows]))


def measure(data: Path) -> dict[str, Any]:
    """Return the errors of each method image by image, and what ``auto`` estimated along the stream."""
    torch.set_num_threads(1)
    model, stream = offsupport.load_model(MODEL).eval(), stages(data)
    stats = calibration(data, model)
    wrong: dict[str, list[bool]] = {method: [] for method in METHODS}
    estimates: list[dict[str, Any]] = []
    with progress("Streams", len(METHODS) * len(stream)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for method in METHODS:
            adapted = offsupport.adapt(model, method, **({"source": stats} if method == "auto" else {}))
            for x, y in stream:
                for batch, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
                    wrong[method] += (adapted(batch).argmax(1) != labels).tolist()
                    if method == "auto":
                        estimates.append(said(adapted.estimate(), len(wrong[method])))
                advance()
    return {"stages": STAGES, "images": IMAGES, "batch": BATCH, "errors": by_stage(wrong), "wrong": wrong} | {
        "estimates": estimates
    }


def said(estimate: offsupport.monitor.Estimate, images: int) -> dict[str, Any]:
    """Return an estimate as plain values."""
    intervals = {"source": estimate.source, "adapted": estimate.adapted}
    values = {name: None if each is None else [each.value, each.low, each.high] for name, each in intervals.items()}
    return {"images": images, "n": estimate.n, "shift": estimate.shift, "verdict": estimate.verdict, **values}


def by_stage(wrong: dict[str, list[bool]]) -> dict[str, dict[str, float]]:
    """Return the error of each method in each stage, in percent."""
    return {
        method: {
            stage: round(100 * float(np.mean(part)), 1)
            for stage, part in zip(STAGES, np.split(np.array(each), len(STAGES)), strict=True)
        }
        for method, each in wrong.items()
    }


def smoothed(each: list[bool], images: int) -> float:
    """Return the error over the last images before a place, in percent."""
    return 100 * float(np.mean(each[max(0, images - SMOOTH) : images]))


def pictures(found: dict[str, Any]) -> dict[str, str]:
    """Return the drawings: errors along the stream, and accuracy beside its estimate."""
    places = range(BATCH, len(found["wrong"]["source"]) + 1, BATCH)
    starts = {float(i * IMAGES): SHORT[stage] for i, stage in enumerate(STAGES)}
    errors = {
        method: {float(at): (smoothed(each, at),) * 3 for at in places} for method, each in found["wrong"].items()
    }
    # An estimate is about the last 512 images that were watched: one batch of four.
    beside: dict[str, dict[float, tuple[float, float, float]]] = {"truth": {}, "estimate": {}}
    for each in found["estimates"]:
        at = each["images"]
        if each["adapted"] is not None:
            beside["estimate"][float(at)] = tuple(100 * value for value in each["adapted"])
            last = found["wrong"]["auto"][max(0, at - WATCHED * 512) : at]
            beside["truth"][float(at)] = (100 - 100 * float(np.mean(last)),) * 3
    return {
        "auto": figures.curves(
            errors, f"error of the last {SMOOTH} images (percent)", "what comes from here on", ticks=starts
        ),
        "auto_estimate": figures.curves(beside, "accuracy of auto (percent)", "what comes from here on", ticks=starts),
    }


def overview(found: dict[str, Any], stream: list[tuple[torch.Tensor, torch.Tensor]], path: Path) -> None:
    """Draw the picture of the README: images of each stage above the error of the model alone and adapted."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    places = np.arange(BATCH, len(found["wrong"]["source"]) + 1, BATCH)
    figure, (top, axes) = plt.subplots(2, 1, figsize=(9, 3.9), height_ratios=(0.82, 5.3), sharex=True, dpi=130)
    for i, (stage, (x, _)) in enumerate(zip(STAGES, stream, strict=True)):
        side = IMAGES / SAMPLES
        for j in range(SAMPLES):
            left = i * IMAGES + j * side
            top.imshow(x[j].permute(1, 2, 0).numpy(), extent=(left + 6, left + side - 6, 0, 1), aspect="auto")
        top.text((i + 0.5) * IMAGES, 1.15, SHORT[stage], ha="center", fontsize=11)
        axes.axvline(i * IMAGES, color="#cccccc", linewidth=0.8, zorder=0)
    top.set(xlim=(0, IMAGES * len(STAGES)), ylim=(0, 1))
    top.axis("off")
    drawn = (("source", "the model alone", "#d55e00"), ("auto", "offsupport.adapt(model)", "#0072b2"))
    for method, name, colour in drawn:
        curve = [smoothed(found["wrong"][method], int(at)) for at in places]
        axes.plot(places, curve, color=colour, linewidth=2.2, label=name)
    axes.set(ylim=(0, 100), xlabel="images seen", ylabel=f"error of the last {SMOOTH} (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 1.0))
    figure.tight_layout(h_pad=0.2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "offsupport"})
    write_bytes(path, buffer.getvalue())


def main() -> None:
    """Run the streams, store what was found, draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    arguments = parser.parse_args()
    found = measure(arguments.data)
    write_json(ROOT / "results" / "changing_stream.json", {name: found[name] for name in found if name != "wrong"})
    overview(found, stages(arguments.data), ROOT / "docs" / "pictures" / "stream.png")
    for name, svg in pictures(found).items():
        write_text(ROOT / "docs" / "pictures" / f"{name}.svg", svg.replace("currentColor", "#808080") + "\n")
    print(json.dumps(found) if arguments.json else json.dumps(found["errors"], indent=1))


if __name__ == "__main__":
    main()
