"""Files that are whole or absent, hashes of them, and one lock per folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from offsupport.core.errors import FileError

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


@contextlib.contextmanager
def atomic(path: Path | str) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears under ``path`` only when the block ends without an error.

    The bytes go to a temporary file in the same folder, are flushed to disk, renamed over ``path`` and the folder is
    flushed too: a reader, also one after a crash, sees the old file or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def require_folder(path: Path | str) -> Path:
    """Return the folder ``path``, made if need be; refuse, before any work is done, where nothing can be written."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise FileError(f"Nothing can be written to {path} ({error.strerror}).", "Give another folder.") from error


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all."""
    with atomic(path) as file:
        file.write(data)


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def canonical_json(value: Any) -> str:
    """Return the one JSON text of ``value``: sorted keys, no spaces, no NaN; what hashes are taken of."""
    return _CANONICAL.encode(value)


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as readable JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read JSON; a damaged file is an error that names it."""
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON ({error}).", "Delete it and make it again.") from error


def sha256_bytes(data: bytes) -> str:
    """Return the sha256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path | str) -> str:
    """Return the sha256 of a file in hexadecimal, read in pieces."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


@contextlib.contextmanager
def folder_lock(folder: Path | str) -> Iterator[None]:
    """Hold ``folder`` for one process; refuse at once when another one holds it. The lock dies with its process."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"Another process is working in {folder}.", "Wait for it to end, or use another folder."
            ) from None
        yield


@contextlib.contextmanager
def turn(path: Path | str) -> Iterator[None]:
    """Wait until no other process is making the file at ``path``, and keep others waiting; a ``.lock`` stays."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: IO[bytes]) -> str:
    sha = hashlib.sha256()
    while block := file.read(1 << 20):
        sha.update(block)
    return sha.hexdigest()
