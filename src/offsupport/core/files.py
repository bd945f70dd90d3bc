"""Files that are whole or absent, hashes of them, and locks on folders and files; the same on every system."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from offsupport.core.errors import FileError

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_TEMPORARY = ".offsupport.tmp"
"""How temporary files end. Who clears up goes by it: nobody else's file is called so."""
_NAME = 40
"""Characters of a file's name that its temporary one keeps; names have a longest length."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextlib.contextmanager
def atomic(path: Path | str) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears under ``path`` only when the block ends without an error.

    The bytes go to a temporary file in the same folder, are flushed to disk, renamed over ``path`` and the folder is
    flushed too: a reader, also one after a crash, sees the old file or the new one.
    """
    path = Path(path)
    _require_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because a rename is atomic within one file system only.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_NAME]}.", suffix=_TEMPORARY)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner may read; results are meant to be shared.
        temporary.chmod(0o644)
        _replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:  # Ctrl-C too must leave nothing half-written behind
        temporary.unlink(missing_ok=True)
        raise


def clear_temporaries(folder: Path) -> None:
    """Remove what a killed process left half-written in this very folder, by the names :func:`atomic` gives.

    A link is neither followed nor removed, whatever it is called.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        ours = [entry for entry in entries if re.fullmatch(rf"\..*\.\w{{8}}{re.escape(_TEMPORARY)}", entry.name)]
        left = [Path(entry.path) for entry in ours if entry.is_file(follow_symlinks=False)]
    for path in left:
        path.unlink(missing_ok=True)


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""What a disk says that takes no more, or is dying: nobody's mistake, and the same command works once there is room."""


def set_aside(path: Path) -> None:
    """Rename what is at ``path``, if anything is, to a name that is free: whoever misses it finds it beside."""
    if not os.path.lexists(path):
        return
    names = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
    path.rename(next(name for name in names if not os.path.lexists(name)))


def open_regular(path: Path | str) -> IO[bytes]:
    """Open a file for reading; a pipe, which might wait for ever, and a device, which might never end, are refused."""
    path = Path(path)
    _require_regular(path, path.stat().st_mode)  # asked before, since to open a device can already do something
    if sys.platform == "win32":
        descriptor = os.open(path, os.O_RDONLY | os.O_BINARY)
    else:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)  # and after, since it may have been exchanged
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_file(path: Path) -> bool:
    """Tell whether there is such a file; what is longer than any name is that of none, which Path takes for a fault."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def require_folder(path: Path | str) -> Path:
    """Return the folder ``path``, made if need be; refuse, before any work is done, where nothing can be written."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Trying is the only test that rights, quotas and read-only mounts all answer truly.
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        if error.errno in FULL:  # the folder is right, and another one would be as full
            raise
        raise FileError(f"Nothing can be written to {path} ({error.strerror}).", "Give another folder.") from error


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all."""
    with atomic(path) as file:
        file.write(data)


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, whole or not at all."""
    # As bytes: text mode would end lines differently on Windows, and hashes with them. What is no Unicode, such as a
    # name of a file in another encoding, is written escaped.
    write_bytes(path, text.encode(errors="backslashreplace"))


def canonical_json(value: Any) -> str:
    """Return the one JSON text of ``value``: sorted keys, no spaces, no NaN; what hashes are taken of."""
    return _CANONICAL.encode(value)


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as readable JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


MOST_BYTES = 64 << 20
"""Larger JSON files are not read."""
MOST_DEPTH = 64
"""Lists and mappings inside each other that are read; ours have fewer than ten."""


def read_json(path: Path | str) -> Any:
    """Read JSON; a damaged file, or one made to exhaust its reader, is an error that names it."""
    with open_regular(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FileError(f"{path} is larger than {MOST_BYTES >> 20} MB.", "Delete it and make it again.")
    try:
        return parse_json(data)
    except ValueError as error:
        raise FileError(f"{path} is not valid JSON ({error}).", "Delete it and make it again.") from error


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON text that may come from anywhere; a ValueError says why it is none.

    Refused beside what is no JSON: NaN and numbers too large to be finite, text that no file could hold (lone halves
    of surrogate pairs), and nesting that would exhaust whoever walks through the value.

    Example:
        >>> parse_json(b'{"error": 0.25}')
        {'error': 0.25}
    """
    try:
        value = json.loads(data, parse_float=_finite, parse_constant=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        inside = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = [one for many in inside for one in many if isinstance(one, (dict, list))]
        if not level:
            _require_text(value, data)
            return value
    raise ValueError(f"nested more than {MOST_DEPTH} deep")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _whole(text: str) -> int:
    if len(text) > 40:  # more than any count, seed or hash, and less than what a float can be made of
        raise ValueError(f"{text[:10]}... is too large a number")
    return int(text)


def _require_text(value: Any, data: bytes | str) -> None:
    """Refuse halves of surrogate pairs, which only escapes can write: UTF-8 has no bytes for them."""
    if (b"\\ud" if isinstance(data, bytes) else "\\ud") in data.lower():  # type: ignore[operator]
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it is not valid Unicode") from None


def sha256_bytes(data: bytes) -> str:
    """Return the sha256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path | str) -> str:
    """Return the sha256 of a file in hexadecimal, read in pieces."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def flush_file(path: Path | str) -> None:
    """Flush a file that was written and closed to disk."""
    descriptor = os.open(path, os.O_RDWR)  # Windows flushes only what is open for writing
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def folder_lock(folder: Path | str) -> Iterator[None]:
    """Hold ``folder`` for one process; refuse at once when another one holds it. The lock dies with its process."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FileError(
            f"Another process is working in {folder}.", "Wait for it to end, or use another folder."
        ) from None
    with contextlib.ExitStack() as held:
        held.callback(lock.release)
        yield


@contextlib.contextmanager
def file_lock(path: Path | str) -> Iterator[None]:
    """Wait until no other process is making the file at ``path``, and keep others waiting; a ``.lock`` stays."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.with_suffix(".lock")):
        yield


def _lock(path: Path) -> FileLock:
    _require_lock_file(path)
    # The system's own lock on an open file, not the existence of a file: it is gone when its process is, however that
    # ended. The file itself stays, since removing one that somebody waits for would let two in.
    return FileLock(path, mode=0o644)


def _require_lock_file(path: Path) -> None:
    """Refuse a file that is no lock: taking a lock may empty it, and a link would lead elsewhere."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    # Locks are empty; where the file system has none of its own, they hold a process number.
    empty = stat.S_ISREG(found.st_mode) and (not found.st_size or _first_line(path).strip().isdigit())
    if not empty:
        raise FileError(f"{path} is in the way: it is no lock of offsupport.", "Move it, or use another folder.")


def _first_line(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.readline(100)


def _require_replaceable(path: Path) -> None:
    """Refuse to put a file where a folder, a device or a pipe is; renaming over ``/dev/null`` would replace it."""
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing there, or a link to nothing
        return
    if not stat.S_ISREG(mode):
        raise FileError(f"{path} is {_kind(mode)}: no file can be written there.", "Name a file.")


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise FileError(f"{path} is {_kind(mode)}, not a file.", "Replace or remove it.")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")


def _replace(temporary: Path, path: Path, tries: int = 20) -> None:
    """Rename over ``path``; on Windows wait a moment for whoever is just reading it, which is no reason to fail."""
    try:
        temporary.replace(path)
    except PermissionError:
        if sys.platform != "win32" or not tries:
            raise
        time.sleep(0.05)
        _replace(temporary, path, tries - 1)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # folders cannot be opened there, and a rename is on disk when it returns
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
