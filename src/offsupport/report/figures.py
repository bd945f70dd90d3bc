"""Drawings as SVG strings: colours that colour-blind readers can tell apart, ink in the colour of the page's text."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#1f83c4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d46")
"""Okabe and Ito's colours without black and yellow, which vanish on dark and on white; a lighter blue, and a brown."""
MARKERS = "osD^vPX"
Interval = tuple[float, float, float]
"""A value, its lower and its upper bound."""

_WIDTH = 5.3
"""Inches at which an 11 point letter is still readable on a phone."""
_LINE = 0.23
"""Inches of a line of the legend; two of them have room without asking."""
_INK = "#010203"
"""Drawn in this colour, shown in the page's text colour."""
_DROPPED = (r"<metadata>.*?</metadata>", r'(?<=<g) id="[^"]*"', r' (width|height)="[\d.]+pt"')
"""Who made it and when; names that two figures on a page would share; the fixed size."""
_STYLE: Any = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.alpha": 0.15,
    "grid.color": _INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "offsupport",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def style(i: int) -> dict[str, Any]:
    """Return colour and marker of series ``i``; the pair repeats only after 49 of them."""
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[(i + i // len(PALETTE)) % len(MARKERS)]}


@contextmanager
def canvas(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure and its axes in the style of the report; turn it into text with :func:`svg` inside the block."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots()


def svg(figure: Figure) -> str:
    """Return ``figure`` as an ``<svg>`` element that scales with the page and takes its text colour."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    for pattern in _DROPPED:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return text


def intervals(series: Mapping[str, Mapping[str, Interval]], label: str = "error (%)") -> str:
    """Draw a value with its interval for every series in every group: groups downwards, values to the right.

    Args:
        series: Per series (a method) and group (a corruption): value, low, high.
        label: What the values are.
    """
    groups = list(dict.fromkeys(group for values in series.values() for group in values))
    step = 0.8 / max(len(series), 1)
    height = 1.1 + max(0.34, 0.13 * len(series) + 0.1) * max(len(groups), 1)
    with canvas(_WIDTH, height) as (figure, axes):
        for i, (name, values) in enumerate(series.items()):
            found = [(groups.index(group), *interval) for group, interval in values.items()]
            at, value, low, high = np.array(found, dtype=float).reshape(-1, 4).T
            bars = np.stack([value - low, high - value]).clip(min=0.0)
            axes.errorbar(
                value,
                at + (i + 0.5) * step - 0.4,
                xerr=bars,
                linestyle="none",
                clip_on=False,
                markersize=5.5,
                label=_short(name),
                **style(i),
            )
        for i in range(1, len(groups)):
            axes.axhline(i - 0.5, color=_INK, alpha=0.12, linewidth=0.8)
        axes.set_yticks(range(len(groups)), [_short(group) for group in groups])
        axes.set_ylim(max(len(groups), 1) - 0.5, -0.5)
        axes.set_xlim(left=min([0.0, *(low for values in series.values() for _, low, _ in values.values())]))
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_xlabel(label)
        _legend(figure, axes)
        return svg(figure)


def traces(
    series: Mapping[str, Sequence[float]], label: str = "error so far (%)", x_label: str = "batches seen"
) -> str:
    """Draw curves over the stream, one per series.

    Args:
        series: One value per batch.
        label: What the values are.
        x_label: What is counted to the right.
    """
    from matplotlib.ticker import MaxNLocator

    with canvas(_WIDTH, 3.3) as (figure, axes):
        for i, (name, values) in enumerate(series.items()):
            x = np.arange(1, len(values) + 1)
            axes.plot(
                x,
                values,
                label=_short(name),
                markevery=max(1, len(values) // 8),
                markersize=5,
                linewidth=1.6,
                **style(i),
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        # Not from zero: what differs between methods is small beside what they share.
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
        axes.grid(axis="y")
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        _legend(figure, axes)
        return svg(figure)


def curves(
    series: Mapping[str, Mapping[float, Interval]],
    label: str,
    x_label: str,
    marks: Mapping[str, float] | None = None,
    ticks: Mapping[float, str] | None = None,
) -> str:
    """Draw values with their intervals against a number, one curve per series.

    Args:
        series: Per series and position: value, low, high.
        label: What the values are.
        x_label: What the positions are.
        marks: Positions to draw a line at, by what they are.
        ticks: What is written at which position, where it is not the number itself.
    """
    with canvas(_WIDTH, 3.6) as (figure, axes):
        for i, (name, points) in enumerate(series.items()):
            x = sorted(points)
            value, low, high = np.array([points[at] for at in x], dtype=float).T
            axes.plot(x, value, label=_short(name), markersize=5, linewidth=1.6, **style(i))
            axes.fill_between(x, low, high, color=style(i)["color"], alpha=0.12, linewidth=0)
        for (name, at), dashes in zip((marks or {}).items(), itertools.cycle((":", "--", "-."))):
            axes.axvline(at, color=_INK, alpha=0.5, linestyle=dashes, label=name)
        if ticks is not None:
            axes.set_xticks(list(ticks), list(ticks.values()))
        axes.grid(axis="y")
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        _legend(figure, axes)
        return svg(figure)


def histogram(series: Mapping[str, Sequence[float]], x_label: str, bins: int = 40) -> str:
    """Draw how values are spread, as shares, one outline per series.

    Args:
        series: The values.
        x_label: What they are.
        bins: Into how many parts of equal width the range of all values is cut.
    """
    edges = np.histogram_bin_edges(np.concatenate([np.asarray(values) for values in series.values()]), bins)
    with canvas(_WIDTH, 3.3) as (figure, axes):
        for i, (name, values) in enumerate(series.items()):
            shares = 100 * np.histogram(values, edges)[0] / len(values)
            axes.stairs(shares, edges, label=_short(name), linewidth=1.6, color=style(i)["color"])
        axes.grid(axis="y")
        axes.set_xlabel(x_label)
        axes.set_ylabel("share (%)")
        _legend(figure, axes)
        return svg(figure)


def running_mean(values: Sequence[float]) -> list[float]:
    """Return the mean of the first 1, 2, 3, ... values.

    Example:
        >>> running_mean([0.0, 1.0, 0.5])
        [0.0, 0.5, 0.5]
    """
    return [float(v) for v in np.cumsum(values) / np.arange(1, len(values) + 1)]


def _short(name: str, longest: int = 30) -> str:
    """A name too long to leave room for the drawing loses the hash of its model's weights, and then its middle."""
    name = name if len(name) <= longest else re.sub(r"@[0-9a-f]{12}\b", "", name)
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half + 1 :]}"


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the names above the axes, in reading order (matplotlib fills columns first), and make room for them."""
    handles, names = axes.get_legend_handles_labels()
    if names:
        columns = min(len(names), max(1, 52 // (max(map(len, names)) + 5)))
        order = [i for column in range(columns) for i in range(column, len(names), columns)]
        lines = -(-len(names) // columns)
        figure.set_figheight(figure.get_figheight() + _LINE * max(0, lines - 2))
        figure.legend(
            [handles[i] for i in order],
            [names[i] for i in order],
            loc="outside upper left",
            ncols=columns,
            columnspacing=1.2,
            handletextpad=0.4,
        )
