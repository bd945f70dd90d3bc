"""Reading what ``data make`` wrote about its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offsupport.core.errors import FileError
from offsupport.core.files import read_json
from offsupport.data.checking.finding import Finding
from offsupport.data.making import MANIFEST
from offsupport.data.making.job import PARTS


def read_manifest(folder: Path, finding: Finding) -> dict[str, Any]:
    """Return the files that a folder's manifest lists, and note what it says; empty without one."""
    if (folder / PARTS).is_dir():
        finding.notes.append("an unfinished `offsupport data make` is here; run it again to go on")
    path = folder / MANIFEST
    if not path.is_file():
        finding.notes.append("no manifest.json: sizes and types are checked, not content")
        return {}
    try:
        manifest = read_json(path)
        recipe, files = manifest["recipe"], dict(manifest["files"])
        whole = all(isinstance(entry["sha256"], str) and isinstance(entry["bytes"], int) for entry in files.values())
        note = f"made by offsupport {recipe['offsupport']}, seed {recipe['seed']}, frost {recipe['frost']}"
    except (FileError, KeyError, TypeError, ValueError) as error:
        finding.damaged[MANIFEST] = f"is not a manifest ({error})"
        return {}
    if not whole:
        finding.damaged[MANIFEST] = "is not a manifest"
        return {}
    finding.notes.append(note)
    if manifest.get("skipped"):
        finding.notes.append(f"{len(manifest['skipped'])} unreadable images were left out")
    return files
