"""Does ``diagnose_model`` rank shifts by how hard they turn out, and does its map show where the shift is?

The grid of Figure 3: a corruption limited to a square block (or to the whole image) at several severities. For each
of its cells the same images are diagnosed and classified. Reported are

- Spearman's correlation of the measured error with predicted hardness and with the mean regime, which counts from
  0 (on support) to 3 (dense far). The cells of a corruption show the same images changed alike, so the interval
  resamples corruptions, not cells;
- how many images fell into each regime, and which share of them was classified wrongly;
- for images corrupted in a block, in how many cells patches inside it are marked as off the support more often than
  outside, and by how much on average.

Run: ``python benchmarks/diagnose_model.py [--json] [--model digits-mae-joint] [--images 150] [--data DIR]``
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import offsupport
from offsupport.core.progress import progress
from offsupport.data import STANDARD, corrupt, load
from offsupport.diagnosis import ModelDiagnosis
from offsupport.diagnosis.network import REGIMES, KnownSource
from offsupport.studies.models import source_model
from offsupport.theory import rank_correlation

BLOCKS = (8, 16, None)
SEVERITIES = (1, 3, 5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default="digits-mae-joint")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--images", type=int, default=150)
    parser.add_argument("--source", type=int, default=400)
    parser.add_argument("--corruptions", default=",".join(STANDARD))
    parser.add_argument("--picture", type=Path, help="draw the diagnosis of four images with noise in a block, and end")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = source_model(given.model, Path(folder))
    if given.picture is not None:
        draw(model, given)
        return
    found = measure(model, given)
    print(json.dumps(found) if given.json else summary(found))


def measure(model: nn.Module, given: argparse.Namespace) -> dict[str, Any]:
    """Diagnose and classify every cell of the grid."""
    source, _ = sample(load(given.dataset, given.data, split="train"), given.source)
    x, y = sample(load(given.dataset, given.data), given.images)
    corruptions = given.corruptions.split(",")
    cells = []
    with progress("corruptions", len(corruptions)) as advance:
        for corruption in corruptions:
            cells += corruption_cells(model, source, (x, y), corruption)
            advance()
    return {"model": given.model, "images": given.images, "source": given.source, **totals(cells), "cells": cells}


def draw(model: nn.Module, given: argparse.Namespace) -> None:
    """Draw what is said of a few images with speckle noise in a block of 16 pixels."""
    source, _ = sample(load(given.dataset, given.data, split="train"), given.source)
    x, _ = sample(load(given.dataset, given.data), 4)
    pixels = (255 * x).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    noisy = torch.from_numpy(corrupt(pixels, "speckle_noise", severity=5, block=16)).permute(0, 3, 1, 2).float() / 255
    offsupport.diagnose_model(model, source, noisy).plot().savefig(given.picture, dpi=100)


def totals(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all cells together say."""
    errors, groups = ([each[name] for each in cells] for name in ("error", "corruption"))
    ranks = {
        name: rank_correlation([each[of] for each in cells], errors, groups=groups).to_dict()
        for name, of in (("rank_correlation", "hardness"), ("regime_rank_correlation", "mean_regime"))
    }
    blocks = [each for each in cells if each["block"] is not None and each["inside"] is not None]
    inside = [each["inside"] - each["outside"] for each in blocks]
    return {
        **ranks,
        "regimes": by_regime(cells),
        "off_inside_minus_outside": float(np.mean(inside)) if inside else None,
        "cells_with_more_off_inside": sum(difference > 0 for difference in inside),
        "cells_with_a_block": len(inside),
    }


def by_regime(cells: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each regime how many images were said to be in it, and the share of them that was wrong."""
    found = {}
    for name in REGIMES:
        images, wrong = (sum(each[what].get(name, 0) for each in cells) for what in ("regimes", "wrong"))
        found[name] = {"images": images, "error": wrong / images if images else None}
    return found


def corruption_cells(
    model: nn.Module, source: Tensor, clean: tuple[Tensor, Tensor], corruption: str
) -> list[dict[str, Any]]:
    """Return what is predicted and what is measured for every shift of one corruption, the source scored once."""
    x, y = clean
    pixels = (255 * x).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    shifts = [(block, severity) for block in BLOCKS for severity in SEVERITIES]
    changed = [corrupt(pixels, corruption, severity=severity, block=block) for block, severity in shifts]
    # Each shift by itself: images are judged in the company they come in.
    known, made = KnownSource(model, source), []
    for (block, severity), images in zip(shifts, changed, strict=True):
        shifted = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        with torch.no_grad():
            predicted = torch.cat([model(part).argmax(1) for part in shifted.split(64)])
        numbers = cell(known.judge(shifted), slice(None), shifted, x, predicted, y)
        made.append({"corruption": corruption, "block": block, "severity": severity} | numbers)
    return made


def cell(
    found: ModelDiagnosis, part: slice, shifted: Tensor, clean: Tensor, predicted: Tensor, y: Tensor
) -> dict[str, Any]:
    """Return the numbers of one shift, whose images are a part of what was diagnosed."""
    regimes, wrong = found.regime[part], (predicted[part] != y).tolist()
    inside, outside = where(found.off_patches[part], clean, shifted[part])
    return {
        "hardness": float(found.distance[part].mean()),
        "mean_regime": float(np.mean([REGIMES.index(kind) for kind in regimes])),
        "error": float(np.mean(wrong)),
        "regimes": dict(Counter(regimes)),
        "wrong": dict(Counter(kind for kind, missed in zip(regimes, wrong, strict=True) if missed)),
        "share": float(found.share[part].mean()),
        "inside": inside,
        "outside": outside,
    }


def where(off: Tensor, clean: Tensor, x: Tensor) -> tuple[float | None, float | None]:
    """Return the share of marked patches inside and outside of what was changed; None where everything was."""
    touched = (clean - x).abs().amax(1, keepdim=True) > 2 / 255
    patches = nn.functional.adaptive_max_pool2d(touched.float(), off.shape[1:])[:, 0] > 0
    if not patches.any() or patches.float().mean() > 0.8:
        return None, None
    return float(off[patches].float().mean()), float(off[~patches].float().mean())


def sample(dataset: Any, count: int) -> tuple[Tensor, Tensor]:
    """Return some images and their labels, drawn at random."""
    rows = np.sort(np.random.default_rng(0).permutation(len(dataset))[:count])
    return dataset.tensor(rows), torch.from_numpy(dataset.labels[rows])


def summary(found: dict[str, Any]) -> str:
    """Return the result in words."""
    lines = [
        f"{each['corruption']:>15} block {each['block'] or 'all':>3} severity {each['severity']}: "
        f"hardness {each['hardness']:.2f}, error {each['error']:.2f}, off {each['share']:.2f}, {each['regimes']}"
        for each in found["cells"]
    ]
    for what, name in (("hardness", "rank_correlation"), ("regime", "regime_rank_correlation")):
        rank = found[name]
        interval = f"{rank['low']:.2f} to {rank['high']:.2f} over {rank['groups']} corruptions"
        lines.append(f"rank correlation of {what} and error {rank['value']:.2f} ({interval}), {rank['n']} shifts")
    for name, each in found["regimes"].items():
        error = "" if each["error"] is None else f", error {each['error']:.2f}"
        lines.append(f"{name}: {each['images']} images{error}")
    if found["cells_with_a_block"]:
        count = f"{found['cells_with_more_off_inside']} of {found['cells_with_a_block']} cells"
        mean = f"{found['off_inside_minus_outside']:+.2f}"
        lines.append(f"patches are marked inside the block more often than outside in {count}, by {mean} on average")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
