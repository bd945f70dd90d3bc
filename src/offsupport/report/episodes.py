"""The figure of an episode: what was seen, what was reconstructed before and after, what was believed on the way."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from offsupport.bench.episode_cell import PICTURES
from offsupport.bench.store import Record
from offsupport.report import figures
from offsupport.report.page import Figure, Section

TITLES = {"original": "the image", "masked": "what is seen", "before": "before", "after": "after"}
SHOWN = 4
"""Classes with a curve: the likeliest ones at any time, and the true one."""


def episode_section(record: Record) -> Section:
    """Return the section that shows one stored episode."""
    config, found = record.cell.config, record.deterministic
    first, last = (found["classes"][int(np.argmax(found["probabilities"][at]))] for at in (0, -1))
    words = (
        f"One image of {config['dataset']} ({config['corruption']}, severity {config['severity']}) under "
        f"{config['method']}: it shows {found['classes'][found['label']]}; the source predicts {first}, and after "
        f"{len(found['loss']) - 1} iterations the network predicts {last}. The loss under the mask shown "
        f"went from {found['loss'][0]:.3f} to {found['loss'][-1]:.3f}."
    )
    if found.get("rejected"):
        words += f" The episode was given up ({found['rejected']}), so the source weights predict."
    return Section(
        "An episode", words, figures=[Figure(draw_episode(found), "Masked, reconstructed, believed.", wide=True)]
    )


def draw_episode(found: Mapping[str, Any]) -> str:
    """Draw the four pictures above the probabilities over the iterations."""
    from matplotlib.ticker import MaxNLocator

    with figures.canvas(7.0, 4.6) as (figure, axes):
        axes.remove()
        grid = figure.add_gridspec(2, len(PICTURES), height_ratios=[1, 1.2])
        for i, name in enumerate(PICTURES):
            picture = figure.add_subplot(grid[0, i])
            picture.imshow(_image(found, name), interpolation="nearest")
            picture.set_title(TITLES[name])
            picture.set_axis_off()
        curves = figure.add_subplot(grid[1, :])
        p = np.array(found["probabilities"])
        for i, label in enumerate(_classes(p, found["label"])):
            true = " (true)" if label == found["label"] else ""
            curves.plot(p[:, label], label=f"{found['classes'][label]}{true}", markersize=4, **figures.style(i))
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        curves.set(xlabel="iteration", ylabel="probability", ylim=(-0.03, 1.03))
        curves.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figures.svg(figure)


def _classes(p: np.ndarray[Any, Any], label: int) -> list[int]:
    likely = np.argsort(-p.max(axis=0))[:SHOWN].tolist()
    return likely if label in likely else [*likely, label]


def _image(found: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    channels, height, width = found["size"]
    values = np.frombuffer(base64.b64decode(found["pictures"][name]), dtype=np.uint8)
    image = values.reshape(height, width, channels)
    return image.repeat(3, axis=2) if channels == 1 else image
