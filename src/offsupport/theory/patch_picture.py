"""The picture of a network's diagnosis: each image beside the map of its off-support patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from offsupport.theory.deep import ModelDiagnosis


def draw(found: ModelDiagnosis, images: int) -> Figure:
    """Draw the first ``images`` targets in the upper row, and below how unusual each patch is."""
    from matplotlib.figure import Figure

    count = min(images, len(found.regime))
    figure = Figure(figsize=(2.2 * count + 0.8, 5.0), layout="constrained")
    axes = figure.subplots(2, count, squeeze=False)
    for i in range(count):
        top, below = axes[0, i], axes[1, i]
        pixels = found.images[i].float().clamp(0, 1).permute(1, 2, 0).numpy()
        top.imshow(pixels.squeeze(), cmap="gray", interpolation="nearest")
        top.set_title(f"{found.regime[i]}\ndistance {float(found.distance[i]):.2f}", fontsize=9)
        shown = below.imshow(found.patch_quantile[i].numpy(), vmin=0, vmax=1, cmap="PuOr", interpolation="nearest")
        for row, column in found.off_patches[i].nonzero().tolist():
            # What is off lies at an end of the scale, where its colours are dark.
            below.plot(column, row, marker="x", color="white", markersize=5, markeredgewidth=1.5)
        below.set_title(f"{float(found.share[i]):.0%} of patches off", fontsize=9)
        for axis in (top, below):
            axis.set_axis_off()
    figure.colorbar(shown, ax=axes[1, :].tolist(), label="place among source patches", shrink=0.8)
    figure.suptitle(f"Off-support patches (crosses), by {found.measure}", fontsize=10)
    return figure
