"""The page of the tour: a stream of digits that changes, the paper's synthetic data, and what the theory says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from offsupport.data.dataset import Images
from offsupport.functional import wilson
from offsupport.monitor import Interval
from offsupport.report import figures
from offsupport.report.page import Badge, Figure, Page, Picture, Section, Table, Tile
from offsupport.report.tables import value_text
from offsupport.results.rows import Measured
from offsupport.theory.diagnose import headline as verdict_of

if TYPE_CHECKING:
    from offsupport.theory import Diagnosis

RUN, DISTANCE = 5, 3.1
"""The diagnosed target: a run of the process that meets the assumptions, and how far its s lies from the origin."""
DIAGNOSIS = f"offsupport diagnose --preset assumptions --distance {DISTANCE} --seed {RUN}"
"""Says all about it."""
SHOWN = 4
"""So many images of each shifted stage are shown: those in its middle, whatever became of them."""
SMOOTH = 64
"""Images that a point of a curve is about."""
WATCHED = 4
"""An estimate of auto rests on one batch of so many."""
WINDOW = 512
"""And on so many images of those at most."""


@dataclass(frozen=True)
class Stage:
    """A part of the stream.

    Args:
        name: What it is called.
        clean: Its images as they were, (N, H, W, 3).
        shown: What the model is shown.
        labels: The digits in them.
        burst: Whether bad frames come before it.
    """

    name: str
    clean: Images
    shown: Images
    labels: npt.NDArray[np.int64]
    burst: bool = False


@dataclass(frozen=True)
class Point:
    """What was said without labels after so many images."""

    images: int
    source: Interval | None
    adapted: Interval | None
    shift: float | None
    verdict: str


@dataclass(frozen=True)
class Score:
    """An error, its 95 % Wilson interval, and how many images it is of."""

    error: float
    ci95: tuple[float, float]
    n: int


@dataclass(frozen=True)
class Walk:
    """What one method made of the stream.

    Args:
        right: For each image whether it was right.
        predicted: The digits it saw, stage by stage.
        estimates: What it said of itself on the way.
    """

    right: list[bool]
    predicted: list[list[int]]
    estimates: list[Point]

    def stage(self, number: int, images: int) -> Score:
        """Return the error in one stage."""
        part = self.right[number * images : (number + 1) * images]
        return _score(part)

    @property
    def total(self) -> float:
        """The error over the whole stream."""
        return _score(self.right).error


def _score(right: Sequence[bool]) -> Score:
    wrong = len(right) - sum(right)
    return Score(wrong / len(right), wilson(wrong, len(right)), len(right))


def headline(walks: Mapping[str, Walk]) -> str:
    """Return what the stream came to, in a sentence."""
    alone, adapted = (100 * walks[name].total for name in ("source", "auto"))
    return f"Over the whole stream the network alone is wrong in {alone:.1f} %, adapted by auto in {adapted:.1f} %."


def demo_page(
    stream: Sequence[Stage],
    walks: Mapping[str, Walk],
    table: Measured,
    diagnosis: Diagnosis,
    about: Mapping[str, str],
) -> Page:
    """Return the page of the tour.

    Args:
        stream: What the methods were shown.
        walks: What each made of it.
        table: Table 1, measured.
        diagnosis: Of one synthetic target.
        about: What the digits results were made of.
    """
    alone, adapted = (walks[name].total for name in ("source", "auto"))
    tone = "good" if adapted < alone else "bad"
    numbers = f"{100 * alone:.1f} % \u2192 {100 * adapted:.1f} %"
    tiles = [Tile(numbers, "wrong over the whole stream: the network alone, and adapted as it predicts (auto)", tone)]
    intro = "A small network, trained on clean digits, meets a stream that changes under it, alone and adapted."
    sections = [_images(stream, walks), _along(stream, walks, about), _synthetic(table), _theory(diagnosis), _next()]
    return Page("offsupport demo", intro, sections, tiles=tiles)


def _images(stream: Sequence[Stage], walks: Mapping[str, Walk]) -> Section:
    pictures = []
    for number, stage in enumerate(stream):
        if np.array_equal(stage.clean, stage.shown):
            continue
        middle = len(stage.labels) // 2
        for row in range(middle, middle + SHOWN):
            before, after = (walks[name].predicted[number][row] for name in ("source", "auto"))
            truth = int(stage.labels[row])
            tone = "good" if after == truth != before else "bad" if after != truth else ""
            both = np.concatenate([stage.clean[row], stage.shown[row]], axis=1)
            pictures.append(Picture.of(both, [f"{before} \u2192 {after}", f"{stage.name}, a {truth}"], tone))
    return Section(
        "Before and after",
        "Each picture has the clean digit on the left and what the network was shown on the right. Before the arrow "
        "stands what the network alone reads, behind it what the adapted one reads. Green: adapting repaired it; red: "
        "the adapted network is wrong.",
        pictures=pictures,
        notes=[f"The {SHOWN} images in the middle of each shifted stage; none was chosen."],
    )


def _along(stream: Sequence[Stage], walks: Mapping[str, Walk], about: Mapping[str, str]) -> Section:
    images = len(stream[0].labels)
    starts = {float(i * images): stage.name for i, stage in enumerate(stream)}
    places = range(SMOOTH // 2, len(walks["source"].right) + 1, SMOOTH // 2)
    curves = {
        name: {float(at): (_error(each.right[max(0, at - SMOOTH) : at]),) * 3 for at in places}
        for name, each in walks.items()
    }
    return Section(
        "A stream that changes",
        "The same images for all methods, one pass, never reset: frost, fog, fog sorted by digit, a burst of bad "
        "frames (black, static, NaN), bright and faded images. Statistics of the batch (bn, tent) repair shifts and "
        "are misled by the sorted part; auto moves by the least change that explains the stream.",
        tables=[
            Table(
                ["digits", *walks],
                [*table_rows([stage.name for stage in stream], walks, images), total_row(walks)],
                "Error in %, with its 95 % Wilson interval.",
            )
        ],
        figures=[
            Figure(
                figures.curves(
                    curves, f"error of the last {SMOOTH} images (%)", "what comes from here on", ticks=starts
                ),
                "Error along the stream. The bad frames come before 'brightness'; they are not scored.",
            ),
            *_estimated(walks["auto"], starts),
        ],
        notes=["Intervals in one row overlap less than they seem to: all methods saw the same images."],
        facts=about,
    )


def _error(right: Sequence[bool]) -> float:
    return 100 - 100 * sum(right) / len(right)


def _estimated(auto: Walk, starts: Mapping[float, str]) -> list[Figure]:
    said = [(point.images, point.adapted) for point in auto.estimates if point.adapted is not None]
    if not said:
        return []
    beside = {
        "truth": {float(n): (100 - _error(auto.right[max(0, n - WATCHED * WINDOW) : n]),) * 3 for n, _ in said},
        "estimate": {float(n): (100 * e.value, 100 * e.low, 100 * e.high) for n, e in said},
    }
    drawn = figures.curves(beside, "accuracy of auto (%)", "what comes from here on", ticks=starts)
    return [Figure(drawn, "What auto says of itself without labels, beside the truth about the same images.")]


def _synthetic(table: Measured) -> Section:
    cells = {(row.method, row.column): row for row in table.rows}
    methods, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    body = [[m, *(value_text(cells[m, c]) if (m, c) in cells else "" for c in columns)] for m in methods]
    verdicts = [claim.verdict for claim in table.claims]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    return Section(
        "Table 1 of the paper, at smoke scale",
        "Latent variables c and s make a sample; its label depends on c alone, and the target's s lies outside the "
        "training support, at the distance in the column's name. A handful of runs decides little: 'offsupport "
        "reproduce table1 --scale paper' has 500.",
        tables=[Table(["accuracy", *columns], body, "'given-c' knows the true c and is the ceiling.")],
        notes=[
            f"Claims checked: {counts}.",
            "To learn dense shifts takes the extrapolator a minute, so that the tour leaves it out there; 'offsupport "
            "reproduce table1 --scale smoke' has it.",
            "The full report, with intervals and claims, is table1/report.html beside this page.",
        ],
    )


_TONES = {"holds": "good", "fails": "bad", "unknown": "open"}


def _theory(diagnosis: Diagnosis) -> Section:
    """What the theory says of one target: the verdict, why in words, the assumptions one by one, the picture."""
    theorems = (diagnosis.theorem1, diagnosis.theorem2)
    return Section(
        "Can this shift be recovered?",
        "One target of a process that meets the assumptions of Theorem 1, a little outside the support.\n\n"
        + "\n\n".join([verdict_of(diagnosis), *_why(diagnosis)]),
        tables=[
            Table(
                ["assumption", "", "why"],
                [[each.name, Badge(each.status, _TONES[each.status]), each.evidence] for each in theorem.conditions],
                f"{theorem.theorem}: {theorem.status}.",
                text_columns=3,
                stacked=True,
            )
            for theorem in theorems
        ],
        figures=[
            Figure(
                figures.in_style(partial(diagnosis.plot, half="latent")),
                "The source support of s, the target, and how far Theorem 1 reaches.",
            ),
            Figure(figures.in_style(partial(diagnosis.plot, half="observed")), "The classes in x."),
        ],
        facts={"command": DIAGNOSIS},
    )


def _why(diagnosis: Diagnosis) -> list[str]:
    """Return the numbers behind the verdict, in sentences."""
    said = [f"The target lies {diagnosis.distance:.3g} off the support, which is {diagnosis.convention}."]
    proven = next((radius for radius in diagnosis.radii if radius.way == "certified"), None)
    apart = None if diagnosis.separation is None else diagnosis.separation.certified
    if proven is not None and apart is not None:
        reach = max(proven.radius, proven.radius_s)
        said.append(
            f"The classes are at least {apart:.3g} apart at its edge, and a step of s moves x by at "
            f"most {proven.J_u_s:.3g} times its length. So nothing within {reach:.3g} of the support can be taken "
            f"for another class, and the target is at {100 * diagnosis.distance / reach:.0f} % of that."
        )
    failed = [condition.name for condition in diagnosis.theorem2.failed()]
    if failed and diagnosis.influence is not None:
        said.append(
            f"{diagnosis.theorem2.theorem} does not apply ({', '.join(failed)}): this shift moves "
            f"{diagnosis.influence.s_size[1]} dimensions of x, and leaves none that c alone moves."
            if diagnosis.influence.exclusive_size[1] == 0
            else f"{diagnosis.theorem2.theorem} does not apply ({', '.join(failed)})."
        )
    return [" ".join(said)]


def _next() -> Section:
    return Section(
        "Where to go next",
        "Your own images, your own grid, and every table of the paper:",
        code="offsupport adapt --model zoo:cifar10-resnet18x0.25-supervised --images DIR\n"
        "offsupport serve --model zoo:cifar10-resnet18x0.25-supervised\n"
        "offsupport bench run --dataset digits-c --corruptions fog,contrast --methods source,bn,auto --out runs/mine\n"
        "offsupport list tables",
    )


def table_rows(
    stages: Sequence[str], walks: Mapping[str, Walk], images: int, form: str = "{} ({}-{})"
) -> list[list[str]]:
    """Return one row per stage: its name, then error and interval, in this form, for each method."""
    return [
        [name, *(_cell(each.stage(number, images), form) for each in walks.values())]
        for number, name in enumerate(stages)
    ]


def total_row(walks: Mapping[str, Walk], form: str = "{} ({}-{})") -> list[str]:
    """Return the row of the whole stream."""
    return ["all of it", *(_cell(_score(each.right), form) for each in walks.values())]


def _cell(score: Score, form: str) -> str:
    bounds = (f"{100 * bound:.{0 if bound >= 0.1 else 1}f}" for bound in score.ci95)
    return form.format(f"{100 * score.error:.1f}", *bounds)
