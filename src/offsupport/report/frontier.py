"""Error against time: every method of a protocol as a point, and the line of those that none as quick betters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offsupport.bench.store import Record
from offsupport.report.figures import WIDTH, canvas, style, svg
from offsupport.report.page import Figure, Section
from offsupport.studies.ours.protocols import board, frontier

Points = Mapping[str, tuple[float, float]]
"""Milliseconds and error in percent, by method."""
TICKS = tuple(digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5))
"""Milliseconds that may stand at the axis."""


def frontier_sections(records: Sequence[Record]) -> list[Section]:
    """Return a drawing for each protocol and network, where there are results of the table ``protocols``."""
    found: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for line in board(records):
        own = found.setdefault((line.network, line.protocol), {})
        own[line.method] = line.milliseconds, 100 * line.error.value
    drawings = [
        Figure(draw(points), f"{protocol}, {network}: on the frontier are {', '.join(_along(points))}.")
        for (network, protocol), points in found.items()
        if len(points) > 1
    ]
    prose = (
        "A point is a method; the line joins those that no method as quick, within a tenth, or quicker betters. Time "
        "is that of one core and an image, on a logarithmic scale."
    )
    return [Section("Error against time", prose, figures=drawings)] if drawings else []


def _along(points: Points) -> list[str]:
    return sorted(frontier(points), key=lambda name: points[name])


def draw(points: Points) -> str:
    """Draw error against milliseconds, with the frontier as a step: between two methods the quicker one is had."""
    best = _along(points)
    with canvas(WIDTH, 3.6) as (figure, axes):
        costs, errors = zip(*(points[name] for name in best), strict=True)
        axes.step(costs, errors, where="post", color=style(0)["color"], linewidth=1.2)
        for name, (cost, error) in points.items():
            looks = style(0 if name in best else 1)
            axes.plot(cost, error, linestyle="none", markersize=5.5, **looks)
            axes.annotate(
                name, (cost, error), textcoords="offset points", xytext=(5, 4), fontsize=9, annotation_clip=False
            )
        axes.set_xscale("log")
        least, most = (end(cost for cost, _ in points.values()) for end in (min, max))
        shown = [tick for tick in TICKS if least / 2 <= tick <= 2 * most]
        axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
        axes.minorticks_off()
        axes.set(xlabel="milliseconds of one core per image", ylabel="error (%)")
        axes.grid()
        return svg(figure)
