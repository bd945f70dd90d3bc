"""The page of a folder that was adapted to: what it came to, and the images whose prediction changed."""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.core.errors import FileError
from offsupport.core.escaping import escape
from offsupport.data.dataset import Images
from offsupport.data.pictures import open_picture
from offsupport.monitor import Interval
from offsupport.report.page import Page, Picture, Section, Table, Tile
from offsupport.serving.folder import FolderResult, Prediction

SHOWN = 48
"""So many changed images are shown: the surest ones."""


def folder_page(result: FolderResult) -> Page:
    """Return the page of a result of :func:`offsupport.adapt_folder`; its images are read once more."""
    n, changed = len(result.predictions), len(result.changed)
    tiles = [Tile(f"{n:,}", "images"), Tile(f"{changed:,}", "predictions changed")]
    intro = f"{result.model}, adapted by {result.method} in batches of {result.batch_size}. "
    if result.accuracy is not None:
        before, after = result.accuracy.source, result.accuracy.adapted
        tone = "good" if after.low > before.high else "bad" if after.high < before.low else ""
        tiles += [Tile(_percent(before), "right alone"), Tile(_percent(after), "right adapted", tone)]
        intro += "Accuracies are measured by the folders that the images lie in."
    elif result.estimate is not None and result.estimate.source and result.estimate.adapted:
        tiles += [Tile(f"~{_percent(result.estimate.source)}", "right alone, estimated")]
        tiles += [Tile(f"~{_percent(result.estimate.adapted)}", "right adapted, estimated")]
        intro += "The folder has no labels; accuracies are estimated."
    sections = [_changed(result), *_by_class(result), _said(result)]
    return Page("What adapting changed", intro, sections, tiles=tiles)


def _percent(share: Interval) -> str:
    return f"{100 * share.value:.1f} %"


def _changed(result: FolderResult) -> Section:
    surest = sorted(result.changed, key=lambda row: (-row.confidence, row.file))[:SHOWN]
    found = ((row, _read(result, row.file)) for row in surest)
    pictures = [Picture.of(pixels, _words(row), _tone(row)) for row, pixels in found if pixels is not None]
    prose = "Adapting changed no prediction."
    if result.changed:
        colours = " Green: the adapted model is right; red: the model alone was." if result.accuracy else ""
        prose = f"The model alone said what stands before the arrow; the surest changes come first.{colours}"
    more = len(result.changed) - len(surest)
    notes = [f"{more:,} more changed; the predictions have them all."] if more else []
    return Section("What changed", prose, pictures=pictures, notes=notes)


def _read(result: FolderResult, file: str) -> Images | None:
    try:
        return open_picture(result.folder / file, result.resize or result.size, result.size)[0]
    except FileError:  # it was there a moment ago; the page does without it
        return None


def _words(row: Prediction) -> Sequence[str]:
    before, after = row.source_name or row.source_label, row.name or row.label
    return [f"{before} \u2192 {after}", f"{row.source_confidence:.2f} \u2192 {row.confidence:.2f}", escape(row.file)]


def _tone(row: Prediction) -> str:
    if row.truth is None:
        return ""
    return "good" if row.label == row.truth else "bad" if row.source_label == row.truth else ""


def _by_class(result: FolderResult) -> list[Section]:
    if result.accuracy is None:
        return []
    groups: dict[str, list[Prediction]] = {}
    for row in result.predictions:
        groups.setdefault(row.file.partition("/")[0], []).append(row)
    rows = [
        [
            escape(name),
            str(len(group)),
            *(f"{100 * right / len(group):.1f}" for right in (_right(group, alone) for alone in (True, False))),
        ]
        for name, group in groups.items()
    ]
    table = Table(["class", "images", "alone", "adapted"], rows, "Right, in %.")
    return [Section("By class", tables=[table])]


def _right(rows: Sequence[Prediction], alone: bool) -> int:
    return sum((row.source_label if alone else row.label) == row.truth for row in rows)


def _said(result: FolderResult) -> Section:
    events = ", ".join(f"{name} {count}" for name, count in result.events.items() if count)
    prose = "" if result.estimate is None else "\n\n".join(str(result.estimate).splitlines())
    return Section(
        "What can be said without labels",
        prose,
        notes=[*result.notes, f"The guard: {events or 'nothing to do'}."],
        facts={
            "model": result.model,
            "weights": result.weights_sha256[:16],
            "method": result.method,
            **{name: str(value) for name, value in result.config.items()},
            "batch size": str(result.batch_size),
            "seed": str(result.seed),
            "order": "drawn from the seed" if result.shuffle else "sorted",
        },
    )
