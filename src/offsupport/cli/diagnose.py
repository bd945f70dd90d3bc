"""``offsupport diagnose``: is this shift recoverable? The numbers, the verdict and a picture.

Of a process of the synthetic study, of arrays in files, or of a network and a folder of images.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from offsupport.cli.adapt import source_model
from offsupport.cli.output import JSON, as_option, emit_json, emit_table, say, tell
from offsupport.cli.settings import AllowCode, allowed, parse_settings
from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.core.escaping import escape

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from offsupport.serving.source_model import SourceModel
    from offsupport.theory import Diagnosis

DEFAULT_OUT = Path("runs/diagnose")
KEYS = frozenset({"theorem1", "runs", "targets", "regime"})
"""One of these stands in every diagnosis.json of ours."""
OF_NETWORKS = {"model", "images", "source", "size", "resize", "out", "allow_code", "json"}
"""The options that mean something for a network; a process or arrays have no ``size``."""


def diagnose(
    context: typer.Context,
    process: str = typer.Option("dense", help="dense: s moves every dimension of x; sparse: only d_s of them."),
    preset: str = typer.Option(
        "paper", help="paper (as published), table (our tables), assumptions (the theorem holds)."
    ),
    distance: float = typer.Option(12.0, min=0.0, help="Distance of the target's s from the origin."),
    seed: int = typer.Option(0, help="Which run of the process."),
    runs: int = typer.Option(1, min=1, help="Diagnose this many runs, from --seed on, and print their ranges."),
    set_: list[str] = typer.Option([], "--set", help="A field of the process, as name=value; may be repeated."),
    source: Path | None = typer.Option(None, help="Your own source samples (.npy or .csv), instead of a process."),
    labels: Path | None = typer.Option(None, help="Their labels."),
    target: Path | None = typer.Option(None, help="Your own target samples, one per row."),
    shift: str = typer.Option("auto", help="Kind of shift of your targets, if known: dense or sparse."),
    model: str | None = typer.Option(None, help="A deep network instead: zoo:NAME, file:PATH, digits-small, ..."),
    images: Path | None = typer.Option(None, help="Folder of its target images; --source is then a folder, too."),
    size: int | None = typer.Option(None, min=1, help="Side of its images; all are resized and cropped to squares."),
    resize: int | None = typer.Option(
        None, min=1, help="Shorter side before the square of --size is cut: 256 for 224."
    ),
    out: Path = typer.Option(DEFAULT_OUT, help="Folder for diagnosis.json, diagnosis.png and diagnosis.svg."),
    allow_code: AllowCode = False,
    json: bool = JSON,
) -> None:
    """Say by which theorem a target is recoverable, or which assumption fails by how much, and draw it.

    For a process of the synthetic study; for your own arrays, to which an Extrapolator is fitted first; or for a deep
    network and a folder of images.
    """
    if model is not None or images is not None:
        _refuse(context, set(context.params) - OF_NETWORKS, "a network")
        if model is None or images is None:
            raise ConfigError("A network and its images come together.", "Give --model and --images.")
        given = source_model(model, None, None, out, allowed([model], allow_code))
        _of_network(given, images, source, (size, resize), out, json)
        return
    _refuse(context, {"size", "resize", "allow_code"}, "a process or arrays")
    _check_out(out)
    if source is not None or labels is not None or target is not None:
        if source is None or labels is None or target is None:
            raise ConfigError("Your own arrays come in three files.", "Give --source, --labels and --target.")
        shown, data = _of_arrays(source, labels, target, shift)
    else:
        changes = parse_settings(set_, "--set", "radius=9")
        shown, data = _of_process(preset, process, changes, distance, range(seed, seed + runs))
    _save(data, shown[0].plot(), out)
    if json:
        emit_json(data)
    elif len(shown) == 1:
        _tabulate_targets(data)
        tell(str(shown[0]))
    else:
        _summarise(shown)
    say(f"picture: {out / 'diagnosis.png'}")


def _refuse(context: typer.Context, names: set[str], subject: str) -> None:
    """Refuse options that were given although they would be ignored."""
    for name in sorted(names):
        given = context.get_parameter_source(name)
        if given is not None and given.name == "COMMANDLINE":
            option = name.rstrip("_").replace("_", "-")
            raise ConfigError(f"--{option} has no meaning for {subject}.", f"Leave --{option} out.")


def _of_process(
    preset: str, shift: str, changes: dict[str, Any], distance: float, seeds: range
) -> tuple[list[Diagnosis], dict[str, Any]]:
    """Diagnose one target of every run."""
    import torch

    from offsupport.core.progress import progress
    from offsupport.latent.process.draws import draw
    from offsupport.latent.process.process import preset as named
    from offsupport.theory import diagnose as examine

    draws = draw(named(preset, shift, **changes), seeds, [distance], dtype=torch.float64)  # type: ignore[arg-type]
    results = []
    with progress("diagnose", len(seeds)) as advance:
        for run in range(len(seeds)):
            results.append(examine(draws, run=run))
            advance()
    if len(results) == 1:
        return results, results[0].to_dict()
    return results, {"runs": [result.to_dict() for result in results]}


def _of_arrays(source: Path, labels: Path, target: Path, shift: str) -> tuple[list[Diagnosis], dict[str, Any]]:
    """Fit an Extrapolator, diagnose every target, show the one farthest off the support."""
    import numpy as np

    from offsupport.core.progress import progress
    from offsupport.latent.extrapolator.estimator import Extrapolator
    from offsupport.theory import diagnose as examine

    X, y, x_tgt = (read_array(path) for path in (source, labels, target))
    x_tgt = np.atleast_2d(x_tgt)
    if y.dtype.kind == "U" and len(y) == len(X) + 1:
        y = y[1:]  # a header over words looks like one more of them
    say(f"fitting an Extrapolator to {len(X)} samples")
    estimator = Extrapolator(shift=shift).fit(X, y, x_tgt)  # type: ignore[arg-type]
    predicted, found = estimator.predict(x_tgt), estimator.explain(x_tgt)
    assert not isinstance(found, list)  # noqa: S101 - told to the type checker
    estimator.shift = found.shift  # type: ignore[assignment]  # decided on all targets, kept for each
    results = []
    with progress("diagnose", len(x_tgt)) as advance:
        for x in x_tgt:
            results.append(examine(estimator, x))
            advance()
    targets = [
        {"target": i, "predicted": np.asarray(label).item(), **result.to_dict()}
        for i, (label, result) in enumerate(zip(predicted, results, strict=True))
    ]
    farthest = max(range(len(results)), key=lambda i: results[i].distance)
    return [results[farthest]], {"shift": f"{found.shift}: {found.reason}", "shown": farthest, "targets": targets}


def _check_out(out: Path) -> None:
    """Refuse, before the work is done, to replace files in the folder that are not of an earlier diagnosis."""
    from offsupport.core.ownership import foreign, is_own_json, require_own
    from offsupport.diagnosis.network import FIGURE_MARKS, figure_files

    remedy = "Give another folder: --out DIR."
    numbers = out / "diagnosis.json"
    ours = is_own_json(numbers, lambda found: bool(KEYS & found.keys()))
    if os.path.lexists(numbers) and not ours:
        raise foreign(numbers, remedy)
    for picture in figure_files(out / "diagnosis"):
        # Beside numbers of ours also one that 0.2 drew, which named the drawing library alone.
        require_own(picture, *FIGURE_MARKS, *([b"Matplotlib"] if ours else []), remedy=remedy)


def _save(data: dict[str, Any], figure: Figure, out: Path) -> None:
    """Write the numbers and the picture, each whole or not at all."""
    from offsupport.core.files import write_json
    from offsupport.diagnosis.network import save_figure

    write_json(out / "diagnosis.json", data)
    save_figure(figure, out / "diagnosis")


def _tabulate_targets(data: dict[str, Any]) -> None:
    """Print one row per target, if these are the user's own; the farthest is described in full below."""
    if "targets" not in data:
        return
    columns = ["target", "predicted", "off the support", "Theorem 1", "Theorem 2"]
    rows = [
        [
            str(t["target"]),
            str(t["predicted"]),
            f"{t['distance']:.3g}",
            t["theorem1"]["status"],
            t["theorem2"]["status"],
        ]
        for t in data["targets"]
    ]
    emit_table(f"shift {data['shift']}", columns, rows)
    tell(f"\nTarget {data['shown']}, the farthest:")


def _summarise(results: list[Diagnosis]) -> None:
    """Print the range of every number over the runs, and how often each assumption holds."""
    rows = [
        [name, *(f"{value:.4g}" for value in (min(values), statistics.median(values), max(values)))]
        for name, values in _numbers(results).items()
    ]
    emit_table(f"{len(results)} runs", ["number", "lowest", "median", "highest"], rows)
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for verdict in (result.theorem1, result.theorem2):
            counts.setdefault(verdict.theorem, Counter())[verdict.status] += 1
            for condition in verdict.conditions:
                counts.setdefault(f"{verdict.theorem[:9]}: {condition.name}", Counter())[condition.status] += 1
    states = ("holds", "fails", "unknown")
    emit_table("", ["assumption", *states], [[name, *(str(c[s]) for s in states)] for name, c in counts.items()])


def _numbers(results: list[Diagnosis]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for result in results:
        row: dict[str, float | None] = {"distance to the support": result.distance}
        for radius in result.radii:
            row |= {f"{radius.way} radius (J_u)": radius.radius, f"{radius.way} radius (J_u^s)": radius.radius_s}
        if result.jacobian is not None:
            row["mean rank of J"] = result.jacobian.mean_rank
        if result.dependence is not None:
            row["margin of dependence"] = result.dependence.margin
        for name, value in row.items():
            found.setdefault(name, []).extend([] if value is None else [value])
    return {name: values for name, values in found.items() if values}


# A network and a folder of images: --model M --images DIR.


def _of_network(
    model: SourceModel, images: Path, source: Path | None, cut: tuple[int | None, int | None], out: Path, as_json: bool
) -> None:
    """Diagnose a folder of images under a network, write the numbers and the picture, and print them."""
    from offsupport.diagnosis.network import figure_files
    from offsupport.serving.folder_diagnosis import diagnose_folder
    from offsupport.serving.image_files import first_frames

    _check_out(out)
    drawn = figure_files(out / "diagnosis")
    size, resize = cut
    result = diagnose_folder(model, images, source=source, size=size, resize=resize, leave_out=drawn, spell=as_option)
    found = result.diagnosis
    _save(result.to_dict(), found.plot(), out)
    for why in result.skipped.values():
        say(f"Left out: {why}")
    if result.animated:
        say(first_frames(result.animated))
    if as_json:
        emit_json(result.to_dict())
    else:
        columns = (found.shift, found.distance, found.quantile, found.share)
        numbers = [column.tolist() for column in columns]
        rows = [
            [escape(name), kind, f"{z:.2g}", f"{d:.2f}", f"{q:.2f}", f"{s:.0%}"]
            for name, kind, z, d, q, s in zip(result.images, found.regime, *numbers, strict=True)
        ]
        emit_table(model.name, ["image", "regime", "shift", "distance", "quantile", "patches off"], rows)
        tell(str(found))
    say(f"picture: {out / 'diagnosis.png'}")


# Arrays from files a person has: .npy, or .csv with or without a header line. Loading never executes code.


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """Read one array: numbers where all entries are numbers, words otherwise; (n,) if there is one column."""
    import numpy as np

    if not path.is_file():
        raise DataMissingError(f"There is no file {path}.", "Give the path of a .npy or .csv file.")
    if path.suffix == ".npy":
        from offsupport.data.stored import open_npy

        try:
            array = np.array(open_npy(path))
        except FileError as error:
            raise FileError(error.message, "Save it with numpy.save, without objects.") from error
        if not array.ndim:
            raise FileError(f"{path} holds a single value.", "Save an array with one sample per row.")
        return array
    if path.suffix == ".csv":
        return _read_csv(path)
    raise FileError(f"{path} is neither .npy nor .csv.", "Convert it, for example with numpy.save.")


LONGEST = 100
"""Characters of a word in a CSV file: an array gives every cell the room of the longest."""


def _read_csv(path: Path) -> np.ndarray[Any, Any]:
    import csv

    import numpy as np

    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(
            f"{path} is not CSV in UTF-8 ({error}).", "Save it as CSV, UTF-8, one sample per line."
        ) from error
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise FileError(f"{path} has no rows, or rows of different lengths.", "Write one sample per line.")
    if len(rows) > 1 and _parsed_numbers(rows[1]) and not _parsed_numbers(rows[0]):
        rows = rows[1:]  # a header
    numbers = all(map(_parsed_numbers, rows))
    longest = max(len(cell) for row in rows for cell in row)
    if not numbers and longest > LONGEST:
        raise FileError(f"{path} has a field of {longest} characters.", f"Write labels of at most {LONGEST}.")
    table = np.array(rows, dtype=float if numbers else str)
    return table[:, 0] if table.shape[1] == 1 else table


def _parsed_numbers(row: list[str]) -> bool:
    try:
        [float(cell) for cell in row]
    except ValueError:
        return False
    return True
