"""What the block map of ``diagnose_model`` says of the images of Figure 3: does it tell a few pixels from all of them?

The images are the first of the figure's own streams: impulse noise on a square of 8, 16, 24 or all 32 pixels at three
of its severities. For each combination: which share of the patches inside and outside of the square is marked as off
the support, what regime the images are said to be in, and the error of TENT in the stored figure.

Run: ``python benchmarks/fig3_map.py --data DIR [--images 100] [--out results/fig3_map.json] [--picture FILE]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from diagnose_model import sample, where
from torch import Tensor

from offsupport.data import load, stream
from offsupport.data.streams import Batch
from offsupport.diagnosis import ModelDiagnosis
from offsupport.diagnosis.network import REGIMES, KnownSource
from offsupport.studies.models import source_model
from offsupport.studies.paper.fig3 import BLOCKS, IMAGES, SUPERVISED

ROOT = Path(__file__).parents[1]
SEVERITIES = (1, 5, 10)
SOURCE = 400


def main() -> None:
    """Diagnose, and write or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "fig3_map.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "fig3-map.png")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = source_model(SUPERVISED, Path(folder)).eval()
    source, _ = sample(load("cifar10", given.data, split="train"), SOURCE)
    known, found, lines = KnownSource(model, source), {}, []
    for block, severity in itertools.product(BLOCKS, SEVERITIES):
        batch = first_batch(given.data, block, severity, given.images)
        found[block, severity] = known.judge(batch.x)
        twins = load("cifar10", given.data).tensor(batch.index.numpy())
        lines.append(line(block, severity, found[block, severity], twins))
    given.out.write_text(json.dumps({"model": SUPERVISED, "images": given.images, "lines": lines}, indent=1) + "\n")
    draw([found[block, SEVERITIES[-1]] for block in BLOCKS], given.picture)


def first_batch(data: Path, block: int, severity: int, count: int) -> Batch:
    """Return the first images of a stream of the figure."""
    noise: dict[str, Any] = {"corruption": "impulse_noise", "severity": severity, "block": block}
    return next(iter(stream("cifar10-c", data, limit=IMAGES, batch_size=count, **noise)))


def line(block: int, severity: int, found: ModelDiagnosis, clean: Tensor) -> dict[str, Any]:
    """Return what is said of one combination, beside the stored error of TENT."""
    inside, outside = where(found.off_patches, clean, found.images)
    return {
        "side": block,
        "severity": severity,
        "patches off, %": percent(float(found.share.mean())),
        "inside the square, %": percent(inside),
        "outside, %": percent(outside),
        "shift score": f"{found.set_shift:.1f}",
        "regimes": ", ".join(f"{found.regime.count(name)} {name}" for name in REGIMES if name in found.regime),
        "error of `tent`, %": stored_error(block, severity),
    }


def percent(share: float | None) -> str | None:
    """Return a share in words; nothing where there is none."""
    return None if share is None else f"{100 * share:.0f}"


def stored_error(block: int, severity: int) -> str:
    """Return the error of TENT in the stored figure."""
    rows = json.loads((ROOT / "results" / "fig3" / "fig3.json").read_text())["rows"]
    column = f"block-{block}/severity-{severity}"
    return next(f"{row['value']:.1f}" for row in rows if (row["method"], row["column"]) == ("tent", column))


def draw(found: list[ModelDiagnosis], path: Path) -> None:
    """Draw the first image for every side of the square, and below it its map."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots(2, len(found))
    for column, (block, each) in enumerate(zip(BLOCKS, found, strict=True)):
        axes[0, column].imshow(each.images[0].permute(1, 2, 0))
        axes[0, column].set_title(f"{block} x {block} pixels", fontsize=9)
        axes[1, column].imshow(each.patch_quantile[0], cmap="magma", vmin=0, vmax=1)
        axes[1, column].set_title(f"{float(each.share[0]):.0%} off the support", fontsize=9)
    for axis in axes.flat:
        axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
