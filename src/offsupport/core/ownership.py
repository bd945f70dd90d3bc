"""What a command may replace: what it wrote itself, recognised by a mark in the file, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from offsupport.core.errors import FileError
from offsupport.core.escaping import escape
from offsupport.core.files import open_regular, read_json

MAKER = "offsupport"
"""What pictures and pages name as the program that made them."""
PNG_MARK = b"Software\0" + MAKER.encode()
_HEAD = 4096
"""Marks stand in the first bytes."""


def require_own(path: Path, *marks: bytes, remedy: str = "Move it, or choose another name.") -> None:
    """Refuse to replace a file that has none of these marks in its first bytes; where there is no file, all is well."""
    if os.path.lexists(path) and not any(mark in read_head(path) for mark in marks):
        raise foreign(path, remedy)


def require_absent(folder: Path, names: Sequence[str], what: str) -> None:
    """Refuse a folder that has files or folders of these names already, although ``what`` was never begun there."""
    for name in names:
        if os.path.lexists(folder / name):
            raise foreign(folder / name, f"Give {what} a folder of its own.")


def foreign(path: Path, remedy: str) -> FileError:
    """Return the error about a file of somebody else's that is in the way."""
    return FileError(f"{escape(path)} is in the way: offsupport did not write it, and does not replace it.", remedy)


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file; none of what is no regular file, or cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(_HEAD)
    except (OSError, FileError):
        return b""


def is_own_json(path: Path, ours: Callable[[dict[str, object]], bool]) -> bool:
    """Tell whether a file is a JSON object that ``ours`` recognises by its keys."""
    try:
        found = read_json(path)
    except (OSError, FileError):
        return False
    return isinstance(found, dict) and ours(found)
