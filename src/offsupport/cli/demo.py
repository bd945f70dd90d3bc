"""``offsupport demo``: the tour. A stream of digits that changes, a table of the paper, a diagnosis, one page."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from offsupport.cli.bench import finish
from offsupport.cli.output import JSON, emit_json, emit_table, say, tell

if TYPE_CHECKING:
    import torch

    from offsupport.data.dataset import Dataset
    from offsupport.engine.adapter import Adapter
    from offsupport.report.demo_page import Stage, Walk
    from offsupport.results import Measured
    from offsupport.theory import Diagnosis


ESTIMATORS = ("only-source", "trimmed-nn", "extrapolator", "given-c")
"""Rows of Table 1; the others train anew for every target, which takes too long for a tour."""
MODEL = "zoo:digits-small"
METHODS = ("source", "bn", "tent", "auto")
PLAN = (
    ("clean", None, False),
    ("frost", "frost", False),
    ("fog", "fog", False),
    ("sorted", "fog", True),
    ("brightness", "brightness", False),
    ("contrast", "contrast", False),
    ("clean again", None, False),
)
"""The stages of the stream: what they are called, the corruption, and whether images come sorted by their labels."""
BURST = "brightness"
"""Before this stage a burst of bad frames comes: a covered camera, static, and values that are no numbers."""
SEVERITY = 5
BATCH_SIZE = 32
IMAGES = 192
"""Of each stage."""
CLEAN = 151
"""Test images that are kept out of the stream: what the source model's images look like, for the estimate."""
DEFAULT_OUT = Path("runs/demo")


def demo(
    out: Path = typer.Option(DEFAULT_OUT, help="Folder for report.html, and the run of Table 1 that it shows."),
    seed: int = typer.Option(0, help="Seed of the order of the images."),
    json: bool = JSON,
) -> None:
    """Take the tour: a stream of digits that changes, a table of the paper, the diagnosis of a shift."""
    from offsupport.core.files import require_folder
    from offsupport.report.demo_page import demo_page
    from offsupport.report.page import require_own_page, write

    require_own_page(require_folder(out) / "report.html")
    say("1 of 3. A network that reads digits meets frost, fog, bad frames and faded images ...")
    stream = changing_stream(seed)
    walks = walk(stream, seed)
    say("2 of 3. Table 1 of the paper at smoke scale: what synthetic shifts can be recovered from ...")
    table = synthetic_table(out / "table1")
    say("3 of 3. Diagnosing one synthetic shift: does a theorem say that it can be recovered?")
    diagnosis = diagnose_target()
    about = facts(seed)
    write(demo_page(stream, walks, table, diagnosis, about), out / "report.html")
    if json:
        estimates = {"estimates": [asdict(point) for point in walks["auto"].estimates]}
        results = {"results": _results(walks), "total": {name: each.total for name, each in walks.items()}}
        emit_json({"about": about, **results, **estimates, "table1": table.to_dict(), "diagnosis": diagnosis.to_dict()})
    else:
        _show(walks, table, diagnosis)
    say(f"Report: {out / 'report.html'}")


def _test_rows(data: Dataset, seed: int) -> list[int]:
    """Return the rows of the test images in an order drawn from the seed; the first are kept for the estimate."""
    import torch

    from offsupport.core.seeds import derive_seed

    generator = torch.Generator().manual_seed(derive_seed("demo", seed))
    return torch.randperm(len(data), generator=generator).tolist()


def changing_stream(seed: int) -> list[Stage]:
    """Return the stages of the stream; every stage shows other images, as far as there are enough."""
    import numpy as np

    from offsupport.data import corrupt, load
    from offsupport.report.demo_page import Stage

    data = load("digits", split="test")
    rows = _test_rows(data, seed)[CLEAN:]
    stages = []
    for number, (name, corruption, is_sorted) in enumerate(PLAN):
        start = number * IMAGES % len(rows)
        chosen = np.array((rows * 2)[start : start + IMAGES])
        chosen = chosen[np.argsort(data.labels[chosen], kind="stable")] if is_sorted else chosen
        clean = data.images(chosen)
        shown = clean if corruption is None else corrupt(clean, corruption, severity=SEVERITY, seed=0)
        stages.append(Stage(name, clean, shown, data.labels[chosen], burst=name == BURST))
    return stages


def walk(stream: list[Stage], seed: int) -> dict[str, Walk]:
    """Return what every method makes of the stream, image by image."""
    import torch

    import offsupport
    from offsupport.core.progress import progress

    torch.set_num_threads(1)
    model = offsupport.load_model(MODEL)
    data = offsupport.data.load("digits", split="test")
    rows = _test_rows(data, seed)[:CLEAN]
    labels = torch.from_numpy(data.labels[rows])
    stats = offsupport.source_stats(model, torch.split(data.tensor(rows), BATCH_SIZE), "auto", labels=labels)
    found = {}
    with progress("Streams", len(METHODS)) as advance, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a stream is sorted is what the page is about
        for method in METHODS:
            found[method] = _walked(offsupport.adapt(model, method, source=stats if method == "auto" else None), stream)
            advance()
    return found


def _walked(adapted: Adapter, stream: list[Stage]) -> Walk:
    import torch

    from offsupport.report.demo_page import Point, Walk

    walked = Walk([], [], [])
    for stage in stream:
        if stage.burst:
            for frames in bad_frames():
                adapted(frames)
        x = torch.from_numpy(stage.shown).permute(0, 3, 1, 2).contiguous().float() / 255
        predicted: list[int] = []
        for batch in torch.split(x, BATCH_SIZE):
            predicted += adapted(batch).argmax(1).tolist()
            if adapted.options.monitor:
                said = adapted.estimate()
                images = len(walked.right) + len(predicted)
                walked.estimates.append(Point(images, said.source, said.adapted, said.shift, said.verdict))
        walked.predicted.append(predicted)
        walked.right.extend(guess == label for guess, label in zip(predicted, stage.labels.tolist(), strict=True))
    return walked


def bad_frames() -> list[torch.Tensor]:
    """Return a burst of bad frames: a covered camera, static, values that are no numbers."""
    import torch

    static = torch.rand(BATCH_SIZE, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return [torch.zeros(BATCH_SIZE, 3, 32, 32), static, torch.full((BATCH_SIZE, 3, 32, 32), torch.nan)]


def synthetic_table(folder: Path) -> Measured:
    """Return Table 1 at smoke scale for some estimators."""
    from offsupport.bench import Place
    from offsupport.report.run_page import write_report
    from offsupport.studies import TABLES, Request, TableOptions

    request = Request("table1", "smoke", TableOptions(methods=ESTIMATORS))
    # To fit the extrapolator for dense shifts takes a minute; the tour shows it on sparse ones.
    cells = [
        cell
        for cell in TABLES[request.table].cells(request.scale, request.options)
        if (cell.config.get("method"), cell.config.get("shift")) != ("extrapolator", "dense")
    ]
    # Here, where the libraries are loaded: that takes worker processes longer than these cells do.
    _, measured = write_report(finish(Place(folder), cells, request, workers=1, executor="here"))
    return measured


def diagnose_target() -> Diagnosis:
    """Return the diagnosis of a target close to the support of a process that meets the assumptions."""
    import torch

    from offsupport.latent.process.draws import draw
    from offsupport.latent.process.process import preset
    from offsupport.report.demo_page import DISTANCE, RUN
    from offsupport.theory import diagnose

    return diagnose(draw(preset("assumptions", "dense"), [RUN], [DISTANCE], dtype=torch.float64))


def facts(seed: int) -> dict[str, str]:
    """Return what the numbers were made of."""
    from offsupport import zoo
    from offsupport.core.version import __version__

    card = zoo.card(MODEL.removeprefix("zoo:"))
    return {
        "command": f"offsupport demo --seed {seed}",
        "version": __version__,
        "model": f"{MODEL}, sha256 {card['file_sha256'][:16]}, {100 * card['test']['accuracy']:.1f} % right when clean",
        "data": f"digits, test split; {CLEAN} images apart, for the estimate",
        "stages": f"{IMAGES} images each, in batches of {BATCH_SIZE}, order by seed {seed}",
        "corruptions": f"severity {SEVERITY}, generated with seed 0",
        "bad frames": f"before {BURST}: {BATCH_SIZE} black ones, {BATCH_SIZE} of static, {BATCH_SIZE} of NaN",
        "protocol": "one pass, never reset",
    }


def _results(walks: dict[str, Walk]) -> dict[str, dict[str, object]]:
    """Return error, interval and number of images by stage and method."""
    return {
        name: {method: asdict(each.stage(number, IMAGES)) for method, each in walks.items()}
        for number, (name, _, _) in enumerate(PLAN)
    }


def _show(walks: dict[str, Walk], table: Measured, diagnosis: Diagnosis) -> None:
    from offsupport.cli.bench import print_rows
    from offsupport.report.demo_page import DIAGNOSIS, headline, table_rows, total_row
    from offsupport.theory.diagnose import headline as verdict_of

    names = [name for name, _, _ in PLAN]
    form = "{}\n{}-{}"
    rows = [*table_rows(names, walks, IMAGES, form), total_row(walks, form)]
    emit_table("Error in %, with its 95 % interval", ["digits", *walks], rows)
    print_rows("Table 1 at smoke scale: accuracy", table.rows)
    tell(f"{verdict_of(diagnosis)} {DIAGNOSIS} says why.")
    tell(headline(walks))
