"""`offsupport data make` and `offsupport data check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offsupport.cli.output import JSON, emit_json, emit_table, say
from offsupport.core.escaping import escape

if TYPE_CHECKING:
    from offsupport.data.checking import Finding

app = typer.Typer(help="Make corrupted data sets, check what a folder holds.", no_args_is_help=True)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="A data set of `offsupport list datasets` that ends in -c.")],
    out: Annotated[Path, typer.Option(help="Folder that gets CIFAR-10-C/, ImageNet-C/, ...")],
    data: Annotated[Path | None, typer.Option(help="Folder of the clean data; default $OFFSUPPORT_DATA.")] = None,
    corruptions: Annotated[str, typer.Option(help="Names with commas between, `standard` (15) or `all` (19).")] = (
        "standard"
    ),
    workers: Annotated[int, typer.Option(min=0, help="Processes, of one thread each; 0 for one per core.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the corruptions' random draws.")] = 0,
    frost_dir: Annotated[Path | None, typer.Option(help="Official frost textures; default synthetic ones.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images, count them.")] = False,
    as_json: bool = JSON,
) -> None:
    """Write a corrupted data set in its official layout; killed and run again, it goes on where it stopped."""
    from offsupport.core.files import require_folder
    from offsupport.core.processes import cores
    from offsupport.data.corruptions import ALL, STANDARD
    from offsupport.data.making import find_layout
    from offsupport.data.making import make as make_data

    require_folder(out)
    groups = {"standard": STANDARD, "all": ALL}
    chosen = groups.get(corruptions) or [name.strip() for name in corruptions.split(",")]
    manifest = make_data(
        name,
        data,
        out,
        corruptions=chosen,
        workers=workers or cores(),
        seed=seed,
        frost_dir=frost_dir,
        skip_bad=skip_bad,
    )
    folder = find_layout(name).folder(out)
    if as_json:
        emit_json({"folder": str(folder), **manifest})
        return
    say(f"{folder}: {len(chosen)} corruptions at 5 severities, {manifest['recipe']['images']} images each.")
    if manifest["skipped"]:
        first = ", ".join(map(escape, manifest["skipped"][:5]))
        say(f"Left out {len(manifest['skipped'])} unreadable images: {first} ...")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A data set's folder, or one that holds several.")],
    sheet: Annotated[Path | None, typer.Option(help="The contact sheet; default FOLDER/contact-sheet.png.")] = None,
    as_json: bool = JSON,
) -> None:
    """Say what a folder holds, what is complete, missing or damaged; draw a contact sheet of its corruptions."""
    from PIL.PngImagePlugin import PngInfo

    from offsupport.core.errors import DataMissingError, FileError
    from offsupport.core.files import atomic
    from offsupport.core.ownership import MAKER, PNG_MARK, require_own
    from offsupport.data.checking import check as check_data
    from offsupport.data.checking import draw_findings

    target = sheet or folder / "contact-sheet.png"
    require_own(target, PNG_MARK, remedy="Name another file for the contact sheet: --sheet FILE.")
    findings = check_data(folder)
    picture = draw_findings(findings)
    if picture is not None:
        about = PngInfo()
        about.add_text("Software", MAKER)
        with atomic(target) as file:
            picture.save(file, "PNG", pnginfo=about)
    if as_json:
        shown = str(target) if picture is not None else None
        emit_json({"findings": [finding.to_json() for finding in findings], "contact_sheet": shown})
    else:
        for finding in findings:
            _show(finding)
        say(f"Contact sheet: {target}" if picture is not None else "No corruptions here to draw.")
    damaged = sum(len(finding.damaged) for finding in findings)
    missing = sum(len(finding.missing) for finding in findings)
    if damaged:
        raise FileError(f"{damaged} files are damaged.", "Make or fetch them again.")
    if missing:
        raise DataMissingError(f"{missing} parts are missing.", "Make them with `offsupport data make`.")


def _show(finding: Finding) -> None:
    rows = [[part, "present"] for part in finding.present]
    rows += [[part, "missing"] for part in finding.missing]
    rows += [[part, problem] for part, problem in finding.damaged.items()]
    state = "complete" if finding.complete else "not complete"
    emit_table(f"{finding.kind} in {finding.path}: {state}", ["part", "state"], rows, text_columns=2)
    for note in finding.notes:
        say(f"  {note}")
