"""Does ``diagnose_model`` rank shifts by how hard they turn out, and does its map show where the shift is?

The grid of Figure 3: a corruption limited to a square block (or to the whole image) at several severities. For each
of its cells the same images are diagnosed and classified; reported are Spearman's correlation between predicted
hardness and measured error with its interval over cells, and for block-corrupted images how much more often patches
inside the block are marked as off the support than outside it.

Run: ``python benchmarks/diagnose_model.py [--json] [--model digits-mae-joint] [--images 40] [--data DIR]``
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import offsupport
from offsupport.bench.models import load_model
from offsupport.core.progress import progress
from offsupport.data import STANDARD, corrupt, load
from offsupport.theory import ModelDiagnosis, rank_correlation

BLOCKS = (8, 16, None)
SEVERITIES = (1, 3, 5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default="digits-mae-joint")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--source", type=int, default=200)
    parser.add_argument("--corruptions", default=",".join(STANDARD))
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(given.model, Path(folder))
    found = measure(model, given)
    print(json.dumps(found) if given.json else summary(found))


def measure(model: nn.Module, given: argparse.Namespace) -> dict[str, Any]:
    """Diagnose and classify every cell of the grid."""
    source, _ = sample(load(given.dataset, given.data, split="train"), given.source)
    x, y = sample(load(given.dataset, given.data), given.images)
    pixels = (255 * x).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    corruptions = given.corruptions.split(",")
    cells = []
    with progress("shifts", len(corruptions) * len(BLOCKS) * len(SEVERITIES)) as advance:
        for corruption in corruptions:
            for block in BLOCKS:
                for severity in SEVERITIES:
                    changed = corrupt(pixels, corruption, severity=severity, block=block)
                    shifted = torch.from_numpy(changed).permute(0, 3, 1, 2).float() / 255
                    cells.append({"corruption": corruption, "block": block, "severity": severity})
                    cells[-1] |= cell(model, source, x, shifted, y)
                    advance()
    scores, errors = ([each[name] for each in cells] for name in ("hardness", "error"))
    inside = [each["inside"] - each["outside"] for each in cells if each["inside"] is not None]
    return {
        "model": given.model,
        "images": given.images,
        "rank_correlation": rank_correlation(scores, errors).to_dict(),
        "off_inside_minus_outside": float(np.mean(inside)),
        "cells": cells,
    }


def cell(model: nn.Module, source: Tensor, clean: Tensor, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Return what is predicted and what is measured for one shift."""
    found = offsupport.diagnose_model(model, source, x)
    with torch.no_grad():
        error = float((model(x).argmax(1) != y).float().mean())
    inside, outside = where(found, clean, x)
    kinds = {name: found.regime.count(name) for name in dict.fromkeys(found.regime)}
    shares = {"share": float(found.share.mean()), "inside": inside, "outside": outside}
    return {"hardness": found.hardness, "error": error, "regimes": kinds, **shares}


def where(found: ModelDiagnosis, clean: Tensor, x: Tensor) -> tuple[float | None, float | None]:
    """Return the share of marked patches inside and outside of what was changed; None where everything was."""
    touched = (clean - x).abs().amax(1, keepdim=True) > 2 / 255
    patches = nn.functional.adaptive_max_pool2d(touched.float(), found.off_patches.shape[1:])[:, 0] > 0
    if not patches.any() or patches.float().mean() > 0.8:
        return None, None
    off = found.off_patches.float()
    return float(off[patches].mean()), float(off[~patches].mean())


def sample(dataset: Any, count: int) -> tuple[Tensor, Tensor]:
    """Return some images and their labels, drawn at random."""
    rows = np.sort(np.random.default_rng(0).permutation(len(dataset))[:count])
    return dataset.tensor(rows), torch.from_numpy(dataset.labels[rows])


def summary(found: dict[str, Any]) -> str:
    """Return the result in words."""
    rank = found["rank_correlation"]
    lines = [
        f"{each['corruption']:>15} block {each['block'] or 'all':>3} severity {each['severity']}: "
        f"hardness {each['hardness']:.2f}, error {each['error']:.2f}, off {each['share']:.2f}, {each['regimes']}"
        for each in found["cells"]
    ]
    lines.append(f"rank correlation {rank['value']:.2f} ({rank['low']:.2f} to {rank['high']:.2f}), {rank['n']} shifts")
    lines.append(f"patches marked inside the block minus outside: {found['off_inside_minus_outside']:+.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
