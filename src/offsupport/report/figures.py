"""Drawings as SVG strings: colours that colour-blind readers can tell apart, ink in the colour of the page's text."""

from __future__ import annotations

import base64
import io
import itertools
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from offsupport.bench.store import Record
from offsupport.report.page import Figure as Drawing
from offsupport.report.page import Section, Table
from offsupport.results.rows import Row
from offsupport.studies.episodes import PICTURES
from offsupport.studies.errors import estimate, parts_of
from offsupport.studies.models import unpinned
from offsupport.studies.ours.regret import (
    BLOCK,
    Found,
    Key,
    Pairs,
    against_best,
    against_source,
    by_condition,
    error_of,
    methods_of,
)
from offsupport.studies.synthetic import SUPPORT_RADIUS, median_radii, radii_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PALETTE = ("#1f83c4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d46")
"""Okabe and Ito's colours without black and yellow, which vanish on dark and on white; a lighter blue, and a brown."""
MARKERS = "osD^vPX"
L = TypeVar("L")
Interval = tuple[float, float, float]
"""A value, its lower and its upper bound."""

WIDTH = 5.3
"""Inches at which an 11 point letter is still readable on a phone."""
_ABREAST = 48
"""Letters that stand side by side below axes of that width."""
_LINE = 0.23
"""Inches of a line of the legend; two of them have room without asking."""
_INK = "#010203"
"""Drawn in this colour, shown in the page's text colour."""
_DARK = f"{_INK}|#111111|#555555"
"""So are the dark greys of drawings that are made for white paper, too."""
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


def in_style(draw: Callable[[Axes], Any]) -> str:
    """Return what ``draw`` puts on axes, in the style of the report: for drawings that other rooms know how to make."""
    with canvas(WIDTH, 4.6) as (figure, axes):
        draw(axes)
        return svg(figure)


def shape(drawing: str) -> float:
    """Return the height of a drawing over its width."""
    width, height = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', drawing).groups()  # type: ignore[union-attr]
    return float(height) / float(width)


def svg(figure: Figure) -> str:
    """Return ``figure`` as an ``<svg>`` element that scales with the page and takes its text colour."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = re.sub(_DARK, "currentColor", text[text.index("<svg") :])
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
    with canvas(WIDTH, height) as (figure, axes):
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

    with canvas(WIDTH, 3.3) as (figure, axes):
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
    with canvas(WIDTH, 3.6) as (figure, axes):
        for i, (name, points) in enumerate(series.items()):
            x = sorted(points)
            value, low, high = np.array([points[at] for at in x], dtype=float).T
            axes.plot(x, value, label=_short(name), markersize=5, linewidth=1.6, **style(i))
            axes.fill_between(x, low, high, color=style(i)["color"], alpha=0.12, linewidth=0)
        for (name, at), dashes in zip((marks or {}).items(), itertools.cycle((":", "--", "-."))):
            axes.axvline(at, color=_INK, alpha=0.5, linestyle=dashes, label=name)
        if ticks is not None:
            # Words that would run into each other side by side stand at a slant.
            slant: dict[str, Any] = {"rotation": 30, "ha": "right"}
            wide = sum(len(name) + 2 for name in ticks.values()) > _ABREAST
            axes.set_xticks(list(ticks), list(ticks.values()), **(slant if wide else {}))
        axes.grid(axis="y")
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        _legend(figure, axes)
        return svg(figure)


def heat_map(table: Mapping[str, Mapping[str, float]], label: str, full: float = 10.0) -> str:
    """Draw numbers on coloured fields: lines downwards, columns to the right; orange is above zero, blue below.

    Args:
        table: Per line and column a number.
        label: What the numbers are.
        full: The size from which on a field has its full colour.
    """
    columns = list(dict.fromkeys(column for line in table.values() for column in line))
    with canvas(WIDTH, 0.8 + 0.24 * max(len(table), 1)) as (figure, axes):
        for y, line in enumerate(table.values()):
            for x, column in enumerate(columns):
                if column in line:
                    value = line[column]
                    depth = min(1.0, abs(value) / full) ** 0.5
                    colour = PALETTE[1] if value > 0 else PALETTE[0]
                    axes.fill_between([x, x + 1], y - 0.5, y + 0.5, color=colour, alpha=0.75 * depth, linewidth=0)
                    axes.text(x + 0.5, y, f"{value:.1f}", ha="center", va="center", fontsize=8.5)
        axes.set_xticks([x + 0.5 for x in range(len(columns))], [_short(name, 12) for name in columns], fontsize=8.5)
        axes.set_yticks(range(len(table)), [_short(name, 34) for name in table], fontsize=8.5)
        axes.set_ylim(len(table) - 0.5, -0.5)
        axes.set_xlim(0, max(len(columns), 1))
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.spines[:].set_visible(False)
        axes.set_xlabel(label)
        return svg(figure)


def histogram(series: Mapping[str, Sequence[float]], x_label: str, bins: int = 40) -> str:
    """Draw how values are spread, as shares, one outline per series.

    Args:
        series: The values.
        x_label: What they are.
        bins: Into how many parts of equal width the range of all values is cut.
    """
    edges = np.histogram_bin_edges(np.concatenate([np.asarray(values) for values in series.values()]), bins)
    with canvas(WIDTH, 3.3) as (figure, axes):
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


# Curves for columns that are points on an axis: distances, severities, numbers of images.


SHOWN_CURVES = 6
"""Corruptions with curves of their own; of more, the average tells more."""


@dataclass(frozen=True)
class Axis:
    """Columns that are points on one axis.

    Args:
        pattern: What such a column is called: a group and a position.
        label: What the positions are.
        caption: What a drawing of one group shows.
        by_group: Whether groups are the lines of one drawing per method; else methods are the lines of one per group.
    """

    pattern: re.Pattern[str]
    label: str
    caption: str
    by_group: bool = False


DISTANCE = Axis(
    re.compile(r"((?:dense|sparse)[^/]*)-([\d.]+)"), "distance of s from the origin", "{} shifts with 95 % intervals."
)
SEVERITY = Axis(re.compile(r"([^/]+/[^/]+)/(\d+)"), "severity", "{} by severity, with 95 % intervals.")
AXES = (
    DISTANCE,
    Axis(re.compile(r"(inside)-([\d.]+)"), "share of the certified radius", "Inside the radius of Theorem 1."),
    Axis(re.compile(r"([^/]+)/severity-(\d+)"), "severity", "{} by severity, one line per size of the shift.", True),
    SEVERITY,
    Axis(re.compile(r"([^/]+)/n-(\d+|all)"), "target images", "{}: what a handful of target images is enough for."),
)


def on_axes(rows: Sequence[Row]) -> bool:
    """Say whether all columns but averages are points on an axis."""
    columns = {row.column for row in rows if not row.column.endswith("/avg")}
    return bool(columns) and all(_placed(column) for column in columns)


def curve_figures(rows: Sequence[Row], records: Sequence[Record]) -> list[Drawing]:
    """Return the drawings, one per group of columns or per method."""
    drawings: dict[tuple[str, Axis], dict[str, dict[str, Interval]]] = {}
    for row in rows:
        if (found := _placed(row.column)) is not None:
            axis, group, at = found
            title, line = (row.method, group) if axis.by_group else (group, row.method)
            points = drawings.setdefault((title, axis), {}).setdefault(line, {})
            points[at] = row.value, row.low, row.high
    several = [key for key in drawings if key[1] is SEVERITY]
    average = _mean_severity(records) if len(several) > 1 else []
    kept = {key: lines for key, lines in drawings.items() if key not in several or len(several) <= SHOWN_CURVES}
    radii = median_radii(records)
    label = f"{rows[0].metric} ({rows[0].unit})"
    return average + [
        _drawn_curves(title, axis, part, label, radii, rows_shown)
        for (title, axis), lines in kept.items()
        for rows_shown, part in few_at_a_time(lines).items()
    ]


def few_at_a_time(lines: Mapping[str, L]) -> dict[str, dict[str, L]]:
    """Return lines in groups that a drawing has colours for, by words that say which rows a group has."""
    names, size = list(lines), len(PALETTE)
    if len(names) <= size:
        return {"": dict(lines)}
    groups = [names[first : first + size] for first in range(0, len(names), size)]
    return {f" ({_span(group)})": {name: lines[name] for name in group} for group in groups}


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _placed(column: str) -> tuple[Axis, str, str] | None:
    for axis in AXES:
        if found := axis.pattern.fullmatch(column):
            return axis, found.group(1), found.group(2)
    return None


def _drawn_curves(
    title: str,
    axis: Axis,
    lines: Mapping[str, Mapping[str, Interval]],
    label: str,
    radii: Mapping[str, Mapping[str, float]],
    rows_shown: str,
) -> Drawing:
    own = radii.get(title, {}) if axis is DISTANCE else {}
    marks = _marks(title, own) if axis is DISTANCE else None
    caption = axis.caption.format(f"{title}{rows_shown}")
    return Drawing(_curves(lines, label, axis.label, marks), caption + _about(own))


def _curves(
    lines: Mapping[str, Mapping[str, Interval]],
    label: str,
    x_label: str,
    marks: Mapping[str, float] | None = None,
) -> str:
    """Draw to scale; counts of images, which grow by factors and end with "all", one step each."""
    names = sorted({at for points in lines.values() for at in points}, key=_position)
    if x_label == "target images":
        places = {name: float(i) for i, name in enumerate(names)}
        ticks = {float(i): name for i, name in enumerate(names)}
    else:
        places, ticks = {name: float(name) for name in names}, None
    series = {line: {places[at]: interval for at, interval in points.items()} for line, points in lines.items()}
    return curves(series, label, x_label, marks, ticks)


def _position(at: str) -> float:
    return float("inf") if at == "all" else float(at)


def _mean_severity(records: Sequence[Record]) -> list[Drawing]:
    """The error at each severity, averaged over corruptions: what no single column says."""
    found: dict[str, dict[str, list[Any]]] = {}
    for part in parts_of(records):
        if "/" in part.domain:
            found.setdefault(part.method, {}).setdefault(part.domain.rpartition("/")[2], []).append(part)
    lines = {}
    for method, by_severity in found.items():
        estimates = {severity: estimate(parts) for severity, parts in by_severity.items()}
        lines[method] = {s: (100 * e.value, 100 * e.low, 100 * e.high) for s, e in estimates.items()}
    if not lines:
        return []
    return [
        Drawing(
            _curves(part, "error (percent)", "severity"),
            f"The average over corruptions by severity{rows_shown}, with 95 % intervals.",
        )
        for rows_shown, part in few_at_a_time(lines).items()
    ]


def _marks(group: str, radii: Mapping[str, float]) -> dict[str, float]:
    """Where the support ends and, beyond it, how far Theorem 1 reaches in the most generous way to compute it."""
    changed = re.search(r"radius=([\d.]+)", group)
    edge = float(changed.group(1)) if changed else SUPPORT_RADIUS
    reach = {"Theorem 1 radius": edge + max(radii.values())} if radii else {}
    return {"edge of the support": edge, **reach}


def _about(radii: Mapping[str, float]) -> str:
    if not radii:
        return ""
    ways = ", ".join(f"{value:.2f} {way}" for way, value in radii.items())
    return (
        f" Theorem 1 allows a distance from the support of {ways}: medians over runs, granting that C is the target's "
        "c and the mean of the other class; the largest is drawn. As c is continuous, the guarantee ends at the edge."
    )


# Regret and harm: what every method costs in every condition.


SHOWN_METHODS = 7
"""Columns of a map; of more methods, those with the least regret."""


def regret_sections(records: Sequence[Record]) -> list[Section]:
    """Return maps of harm and regret by condition and method, and the error of changing streams along the way."""
    found = by_condition(records)
    if not found:
        return []
    mean = {method: statistics.fmean(_regrets(found, method).values()) for method in methods_of(found)}
    shown = sorted(mean, key=mean.__getitem__)[:SHOWN_METHODS]
    only = f" The {len(shown)} of {len(mean)} methods with the least mean regret." if len(mean) > len(shown) else ""
    drawings = []
    for network in dict.fromkeys(name for name, _ in found):
        own = {key: value for key, value in found.items() if key[0] == network}
        for what, of, told in (
            ("harm", _harms, "error less that of the source model; orange is worse than doing nothing"),
            ("regret", _regrets, "error less that of the best method there"),
        ):
            values = {method: of(own, method) for method in shown if (what, method) != ("harm", "source")}
            lines = {key[1]: {m: each[key] for m, each in values.items() if key in each} for key in own}
            caption = f"{what.capitalize()} on {network}: {told}, in percentage points.{only}"
            drawings.append(Drawing(heat_map(lines, f"{what} (percentage points)"), caption))
    words = "Each line is a condition: what the images are, their order, and how many come at a time."
    return [Section("Condition by condition", words, figures=[*drawings, *_changing(records, shown)])]


def _regrets(found: Found, method: str) -> dict[Key, float]:
    return _points_of(against_best(found, method))


def _harms(found: Found, method: str) -> dict[Key, float]:
    return _points_of(against_source(found, method))


def _points_of(pairs: Pairs) -> dict[Key, float]:
    return {key: 100 * (error_of(ours) - error_of(theirs)) for key, (ours, theirs) in pairs.items()}


def _changing(records: Sequence[Record], shown: Sequence[str]) -> list[Drawing]:
    """Draw the error along each stream that changes once or twice, one line per method, on the first network."""
    streams: dict[str, dict[str, list[float]]] = {}
    first = next(record.cell.config["model"] for record in records if record.cell.kind == "regret")
    for record in (record for record in records if record.cell.kind == "regret"):
        config = record.cell.config
        once = 1 < len(config["stages"]) < 5 and not config["mixed"] and not config["episode"] and config["cycles"] == 1
        if once and config["seed"] == 0 and config["model"] == first and config["method"] in shown:
            line = [100 * value for value in record.deterministic["trace"]]
            streams.setdefault(config["condition"], {})[config["method"]] = line
    model = unpinned(first)
    return [
        Drawing(traces(lines, "error (%)", f"blocks of {BLOCK} images seen"), f"Along the stream: {name}, on {model}.")
        for name, lines in streams.items()
    ]


# Along the stream: how the error of each method develops from batch to batch.


STREAM_LINES = len(PALETTE)
"""More lines in one drawing have no colours of their own."""
DRAWINGS = 3
Traces = dict[str, list[list[float]]]


def stream_figures(records: Sequence[Record]) -> list[Drawing]:
    """Return a drawing for each data set and length of stream, those with most results first.

    Episodes are left out: nothing is carried from one to the next that could develop.
    """
    carried = [record for record in records if record.cell.config.get("protocol") != "episodic"]
    found: dict[tuple[str, int], Traces] = {}
    for (method, dataset), traces in _traces(carried).items():
        for trace in traces:
            if len(trace) > 1:
                found.setdefault((dataset, len(trace)), {}).setdefault(method, []).append(trace)
    most = sorted(found, key=lambda key: -sum(map(len, found[key].values())))[:DRAWINGS]
    return [_drawn_traces(dataset, found[dataset, length], several=len(most) > 1) for dataset, length in most]


def _traces(records: Sequence[Record]) -> dict[tuple[str, str], list[list[float]]]:
    """Traces by method, as the tables name it, and data set; a stream of several domains has one trace."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for part in parts_of(records):
        if len(part.shards) == 1:
            trace = part.record.deterministic["trace"]
            found.setdefault((part.method, part.dataset), {})[part.record.key] = trace
    return {names: list(traces.values()) for names, traces in found.items()}


def _drawn_traces(dataset: str, found: Traces, several: bool) -> Drawing:
    means = {method: [sum(batch) / len(batch) for batch in zip(*own, strict=True)] for method, own in found.items()}
    series = {method: [100 * value for value in running_mean(mean)] for method, mean in means.items()}
    best = sorted(series, key=lambda method: series[method][-1])[:STREAM_LINES]
    shown = {method: line for method, line in series.items() if method in best}
    left_out = f" The {STREAM_LINES} of {len(series)} rows with the lowest error." if len(series) > STREAM_LINES else ""
    where = f" of {dataset}" if several else ""
    caption = f"Along the stream{where}: mean error of the batches so far, averaged over the streams of each method."
    return Drawing(traces(shown), caption + left_out)


# What the sparsity constraint left: gates, and the effective rank of the update of each layer.


LAYERS = 24
"""Layers with a line; of more, those that changed most."""
GATE_LINES = 6
Findings = dict[str, list[dict[str, Any]]]


def constraint_sections(records: Sequence[Record]) -> list[Section]:
    """Return the section about gates and ranks, if any result holds them."""
    found = _findings(records)
    if not found:
        return []
    means = {method: update_means(own) for method, own in found.items()}
    rows = [
        [method, f"{100 * zeros:.1f}", f"{rank:.2f}", f"{100 * change:.3g}", str(len(found[method]))]
        for method, (zeros, rank, change) in means.items()
    ]
    names = ["method", "gates at zero (%)", "effective rank", "change of the weights (%)", "cells"]
    table = Table(names, rows, "Means over layers and cells, at the end of each stream.")
    shown = dict(list(found.items())[:GATE_LINES])
    drawings = [_ranks(shown), *_gates(shown)]
    prose = (
        "A method under the constraint adapts a low-rank update of each layer, with a gate per rank. The change is the "
        "size of the update relative to the weights it is added to."
    )
    return [Section("Gates and ranks", prose, [table], drawings)]


def _findings(records: Sequence[Record]) -> Findings:
    """What constrained adapters reported, by method as the tables name it; each result once."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for part in parts_of(records):
        told = part.record.deterministic.get("findings", {})
        if "updates" in told and "gates" in told:
            found.setdefault(part.method, {})[part.record.key] = told
    return {method: list(own.values()) for method, own in found.items()}


def _ranks(found: Findings) -> Drawing:
    """Mean effective rank of each layer, from the smallest to the largest over cells."""
    change: dict[str, float] = {}
    for told in (each for own in found.values() for each in own):
        for layer, update in told["updates"].items():
            change[layer] = max(change.get(layer, 0.0), update["change"])
    kept = set(sorted(change, key=lambda layer: -change[layer])[:LAYERS])
    series: dict[str, dict[str, Interval]] = {}
    for method, own in found.items():
        for layer in (layer for layer in own[0]["updates"] if layer in kept):
            ranks = [each["updates"][layer]["effective_rank"] for each in own if layer in each["updates"]]
            series.setdefault(method, {})[layer] = statistics.fmean(ranks), min(ranks), max(ranks)
    only = f" The {LAYERS} of {len(change)} layers that changed most." if len(change) > LAYERS else ""
    caption = f"Effective rank by layer: the mean over cells, and its range.{only}"
    return Drawing(intervals(series, "effective rank"), caption)


def _gates(found: Findings) -> list[Drawing]:
    values = {m: [g for each in own for layer in each["gates"].values() for g in layer] for m, own in found.items()}
    values = {method: gates for method, gates in values.items() if gates}
    caption = "Values of the gates over all layers and cells, at the end of each stream."
    return [Drawing(histogram(values, "gate"), caption)] if values else []


def update_means(own: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Return the share of gates at zero, the effective rank and the relative change, over results and their layers."""
    zeros, rank = (statistics.fmean(each[name] for each in own) for name in ("zero_gates", "mean_effective_rank"))
    return zeros, rank, statistics.fmean(u["change"] for each in own for u in each["updates"].values())


# The theory panel: radii of Theorem 1, identifiability and likelihood gaps, and assumptions found to fail.


NAMES = {
    "r2_c": "R² of c from its estimate",
    "certified_radius": "certified radius of Theorem 1",
    "gap": "likelihood missed by the dense fit (nats)",
    "gap_oracle": "likelihood missed when begun at the truth (nats)",
}
Values = Mapping[str, Mapping[str, Sequence[float]]]


def theory_sections(records: Sequence[Record]) -> list[Section]:
    """Return the section about what the theorems say of these runs, if any result measures it."""
    radii, scores, failing = radii_of(records), _scores(records), _failing(records)
    tables, drawings = [], []
    if radii:
        drawings.append(_spread(radii, "distance from the support", "Radius of Theorem 1 by the way it is computed"))
        tables.append(_quartiles({f"{shift}: {way}": v for shift, own in radii.items() for way, v in own.items()}))
    if scores:
        tables.append(_quartiles({NAMES.get(name, name): values for name, values in scores.items()}))
        drawings += [_histogram(name, values) for name, values in scores.items() if len(set(values)) > 1]
    if failing:
        rows = [[name, f"{100 * count / runs:.0f}", str(runs)] for name, (count, runs) in failing.items()]
        tables.append(Table(["assumption", "fails in (%)", "runs"], rows, "Assumptions of Theorem 1 with a witness."))
    return [Section("Theory", tables=tables, figures=drawings)] if tables else []


def _scores(records: Sequence[Record]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in records:
        for name, values in record.deterministic.get("scores", {}).items():
            found.setdefault(name, []).extend(values)
    return found


def _failing(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """How many runs have a witness against each assumption, and of how many."""
    found: dict[str, tuple[int, int]] = {}
    for record in records:
        for name, count in record.deterministic.get("failing", {}).items():
            counted, runs = found.get(name, (0, 0))
            found[name] = counted + count, runs + record.cell.config["runs"]
    return found


def _spread(values: Values, label: str, what: str) -> Drawing:
    series = {
        name: {way: _interval(found, (50, 10, 90)) for way, found in groups.items()} for name, groups in values.items()
    }
    return Drawing(intervals(series, label), f"{what}: the median over runs, and four in five.")


def _histogram(name: str, values: Sequence[float]) -> Drawing:
    words = NAMES.get(name, name)
    return Drawing(histogram({"runs": values}, words, bins=12), f"{words}, over {len(values)} runs.")


def _quartiles(named: Mapping[str, Sequence[float]]) -> Table:
    rows = []
    for name, values in named.items():
        median, low, high = _interval(values, (50, 25, 75))
        rows.append([name, f"{median:.3f}", f"{low:.3f} to {high:.3f}", str(len(values))])
    return Table(["quantity", "median", "half of the runs", "runs"], rows)


def _interval(values: Sequence[float], quantiles: tuple[float, float, float]) -> Interval:
    middle, low, high = np.percentile(values, quantiles)
    return float(middle), float(low), float(high)


# The figure of an episode: what was seen, what was reconstructed before and after, what was believed on the way.


TITLES = {"original": "the image", "masked": "what is seen", "before": "before", "after": "after"}
SHOWN_EPISODES = 4
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
        "An episode", words, figures=[Drawing(draw_episode(found), "Masked, reconstructed, believed.", wide=True)]
    )


def draw_episode(found: Mapping[str, Any]) -> str:
    """Draw the four pictures above the probabilities over the iterations."""
    from matplotlib.ticker import MaxNLocator

    with canvas(7.0, 4.6) as (figure, axes):
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
            curves.plot(p[:, label], label=f"{found['classes'][label]}{true}", markersize=4, **style(i))
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        curves.set(xlabel="iteration", ylabel="probability", ylim=(-0.03, 1.03))
        curves.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return svg(figure)


def _classes(p: np.ndarray[Any, Any], label: int) -> list[int]:
    likely = np.argsort(-p.max(axis=0))[:SHOWN_EPISODES].tolist()
    return likely if label in likely else [*likely, label]


def _image(found: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    channels, height, width = found["size"]
    values = np.frombuffer(base64.b64decode(found["pictures"][name]), dtype=np.uint8)
    image = values.reshape(height, width, channels)
    return image.repeat(3, axis=2) if channels == 1 else image
