"""A run folder: one file per result, whole or absent, that proves its own integrity. No database."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from offsupport.bench.cell import Cell, Outcome, require_few
from offsupport.core.errors import FileError
from offsupport.core.files import (
    MOST_BYTES,
    canonical_json,
    clear_temporaries,
    folder_lock,
    open_regular,
    parse_json,
    read_json,
    sha256_bytes,
    write_bytes,
    write_json,
)
from offsupport.core.ownership import require_absent
from offsupport.core.version import __version__

# What a result was computed with: versions and the type of the CPU.


@cache
def versions() -> dict[str, str]:
    """Return versions and CPU type; results are bit-identical only where all of these agree."""
    return {
        "offsupport": __version__,
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
        "cpu": _cpu(),
    }


_VECTOR_UNITS = ("amx_tile", "avx512_fp16", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "avx")


@functools.cache
def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    return cpu_type(info.read_text(encoding="utf-8")) if info.is_file() else cpu_type("")


def cpu_type(info: str) -> str:
    """Return the CPU type by all that kernels are chosen by, from the text of ``/proc/cpuinfo``.

    The model name alone does not tell: rented machines of several generations call themselves ``AMD EPYC``.
    """
    lines = (line.partition(":") for line in info.partition("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    if "model name" not in said:
        return platform.processor() or platform.machine()
    widest = next((unit for unit in _VECTOR_UNITS if unit in said.get("flags", "").split()), "no vectors")
    return f"{said['model name']} ({said.get('cpu family', '?')}/{said.get('model', '?')}, {widest})"


SCHEMA = 1
SHARED = "SHARED"
"""The file that makes a folder of results one that the runs beside it share."""
_PLACES = ("cells", "failures", "checkpoints")
_REPORT = ("report.html", "report.csv", "report.tex")
"""The folders and files of a run, beside its grid and the models it trains."""
_HEAD = '{"checksum": "'
_MIDDLE = '",\n"record": '
_INDENT = 1
_PARTS = ("cell", "deterministic", "provenance", "timing")
"""The mappings that a record is made of, beside its schema and key."""


@dataclass(frozen=True)
class Record:
    """The result of one cell, read back and found intact."""

    key: str
    cell: Cell
    deterministic: dict[str, Any]
    provenance: dict[str, Any]
    timing: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """A hash over everything but the times: equal for equal results."""
        return sha256_bytes(canonical_json([self.key, self.deterministic, self.provenance]).encode())


@dataclass(frozen=True)
class Invalid:
    """Why a cell has no usable result."""

    reason: str
    found: bool
    """Whether there is a file at all."""


class Sound:
    """A result file found intact, parsed when somebody looks into it: counting thousands of them takes no parsing."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data = data
        self.path = path

    @cached_property
    def record(self) -> Record:
        """What the file says."""
        return read_record(self.data, self.path)


class Store:
    """Results of a run folder.

    Runs that have cells in common may share them: where a file named SHARED stands in the folder ``cells`` beside the
    run folder, results are read from there and written there, each once for all the runs beside it.

    Args:
        folder: The run folder; made when something is written.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @cached_property
    def cells(self) -> Path:
        """The folder of the results: the run's own, or the one it shares with the runs beside it."""
        # A marker rather than a path in grid.json: no file that comes with results can send what is written elsewhere.
        beside = self.folder.absolute().parent / "cells"
        return beside if (beside / SHARED).is_file() else self.folder / "cells"

    def path(self, key: str) -> Path:
        """Where the result of a cell is."""
        return self.cells / f"{key}.json"

    def failure_path(self, key: str) -> Path:
        """Where the failure of a cell is."""
        return self.folder / "failures" / f"{key}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one run, and clear what a killed one left half-written."""
        with folder_lock(self.folder):
            for name in (*_PLACES, "models"):
                clear_temporaries(self.folder / name)
            for checkpoint in self._own_checkpoints():
                if self.path(checkpoint.stem).exists():
                    checkpoint.unlink(missing_ok=True)
            yield

    def require_own(self) -> None:
        """Refuse a folder where no run of ours was begun and where something has the name of its report."""
        if os.path.lexists(self._grid_path):
            self._read_grid()
            return
        # Elsewhere in it nothing is replaced but files that are called after a cell's key: those are results.
        require_absent(self.folder, _REPORT, "the run")

    def _own_checkpoints(self) -> list[Path]:
        folder = self.folder / "checkpoints"
        return [] if folder.is_symlink() else list(folder.glob("*.safetensors"))  # where a link leads is not the run's

    def write(self, cell: Cell, outcome: Outcome) -> None:
        """Store the result of a cell computed here; an earlier failure of it is forgotten."""
        self.keep(cell, result_file(cell, outcome))

    def keep(self, cell: Cell, data: bytes) -> None:
        """Store the result file of a cell, made here or elsewhere; an earlier failure of it is forgotten."""
        write_bytes(self.path(cell.key), data)
        self.failure_path(cell.key).unlink(missing_ok=True)

    def read(self, key: str) -> Record | Invalid:
        """Return the result under ``key``, or why there is none to use."""
        found = self.sound(key)
        try:
            return found if isinstance(found, Invalid) else found.record
        except FileError:
            return Invalid("damaged: it is not what a run writes", found=True)

    def sound(self, key: str) -> Sound | Invalid:
        """Return the intact result of this schema and cell, or why there is none."""
        try:
            if self.path(key).stat().st_size > MOST_BYTES:
                return Invalid("no result: far too large", found=True)
            with open_regular(self.path(key)) as file:
                data = file.read()
        except FileNotFoundError:
            return Invalid("not computed yet", found=False)
        except FileError as error:
            return Invalid(error.message, found=True)
        except OSError as error:
            return Invalid(f"unreadable ({error.strerror})", found=True)
        if not intact(data):
            return Invalid("damaged: its checksum does not match", found=True)
        reason = _misplaced(data, key)
        return Invalid(reason, found=True) if reason else Sound(data, self.path(key))

    def write_failure(self, cell: Cell, message: str) -> None:
        """Note that a cell failed, and how."""
        write_json(self.failure_path(cell.key), {"cell": cell.to_dict(), "message": message})

    def failure(self, key: str) -> str | None:
        """Return how a cell failed, or None."""
        path = self.failure_path(key)
        if not path.is_file():
            return None
        try:
            found = read_json(path)
        except (FileError, OSError):
            found = None
        message = found.get("message") if isinstance(found, dict) else None
        return message if isinstance(message, str) else f"it failed, and its note {path.name} is damaged"

    def add_to_grid(self, cells: Iterable[Cell], request: dict[str, Any]) -> None:
        """Note what this folder is for: its cells, those of earlier runs included, and what was asked last."""
        before = self._read_grid() if self._grid_path.is_file() else {"cells": [], "request": None}
        known = {cell.text for cell in _cells(before)}
        new = [cell.to_dict() for cell in dict.fromkeys(cells) if cell.text not in known]
        if new or canonical_json(request) != canonical_json(before["request"]):
            grid = {"schema": SCHEMA, "request": request, "cells": [*before["cells"], *new]}
            write_json(self._grid_path, grid)

    def grid(self) -> list[Cell]:
        """Return the cells this folder is for."""
        return _cells(self._read_grid())

    def request(self) -> dict[str, Any]:
        """Return what was asked last; nothing where that is not known."""
        return dict(self._read_grid()["request"] or {})

    @property
    def _grid_path(self) -> Path:
        return self.folder / "grid.json"

    def _read_grid(self) -> dict[str, Any]:
        if not self._grid_path.is_file():
            raise FileError(f"{self.folder} is not a run folder.", "Give the folder that --out named.")
        grid = read_json(self._grid_path)
        if not isinstance(grid, dict) or grid.get("schema") != SCHEMA:
            raise FileError(f"{self._grid_path} was written by another version.", "Run the grid again.")
        request, cells = grid.get("request"), grid.get("cells")
        if not isinstance(request, (dict, type(None))) or not isinstance(cells, list) or not all(map(_is_cell, cells)):
            raise FileError(f"{self._grid_path} is damaged.", "Delete it and run the grid again; results are kept.")
        require_few(len(cells))
        return {**grid, "request": request}


def _misplaced(data: bytes, key: str) -> str:
    """Return why an intact file is not the result of this cell, or nothing.

    To parse a file takes ten times as long as to read and hash it. So first its text is searched for the lines that
    :func:`seal` would write; only where one is not there, what the file says is parsed and decides.
    """
    lines = [_line("schema", SCHEMA), _line("key", key), *_OPENINGS]
    if all(line in data for line in lines):
        return ""
    try:
        return "" if _body(data)["key"] == key else "of another cell"
    except ValueError as error:
        return str(error)


_OPENINGS = [f'\n{" " * _INDENT}"{name}": {{'.encode() for name in _PARTS]
"""How the mappings of a record begin."""


def _body(data: bytes) -> dict[str, Any]:
    """Return the record of a result file, each part of its type; a ValueError says what is wrong.

    A checksum finds damage and is no signature: whoever can write the file can write what they like under a right one.
    """
    try:
        whole = parse_json(data)
    except ValueError as error:
        raise ValueError(f"damaged: {error}") from None
    body = whole.get("record") if isinstance(whole, dict) else None
    if not isinstance(body, dict) or "schema" not in body:
        raise ValueError("damaged: it does not say its schema")
    if body["schema"] != SCHEMA:
        raise ValueError(f"of schema {str(body['schema'])[:20]}, this version reads {SCHEMA}")
    for name in _PARTS:
        if not isinstance(body.get(name), dict):
            raise ValueError(f"damaged: its {name} is missing or no mapping")
    if not _is_cell(body["cell"]) or not isinstance(body.get("key"), str):
        raise ValueError("damaged: it does not say its cell")
    return body


def _is_cell(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("kind"), str) and isinstance(value.get("config"), dict)


def _line(name: str, value: str | int) -> bytes:
    """A field of the record as :func:`seal` writes it: what is inside of a field stands deeper than ``_INDENT``."""
    # Newlines inside of strings are escaped in JSON, so no value can look like a line of its own.
    return f"\n{' ' * _INDENT}{json.dumps(name)}: {json.dumps(value)},\n".encode()


def _cells(grid: dict[str, Any]) -> list[Cell]:
    return [Cell(cell["kind"], cell["config"]) for cell in grid["cells"]]


def result_file(cell: Cell, outcome: Outcome) -> bytes:
    """Return the result file of a cell that was computed on this machine with these versions."""
    body = {
        "schema": SCHEMA,
        "key": cell.key,
        "cell": cell.to_dict(),
        "deterministic": outcome.deterministic,
        "provenance": {**outcome.provenance, **versions()},
        "timing": outcome.timing,
    }
    return seal(body)


def parse(data: bytes) -> Record:
    """Return what an intact result file says; a ValueError says why it is none."""
    body = _body(data)
    cell = Cell(body["cell"]["kind"], body["cell"]["config"])
    return Record(body["key"], cell, body["deterministic"], body["provenance"], body["timing"])


def read_record(data: bytes, path: Path) -> Record:
    """Return what an intact result file says; one that was not written here is an error that names it."""
    try:
        return parse(data)
    except ValueError as error:
        raise FileError(
            f"{path} is no result ({error}).", "Delete it; the command that made the run computes it again."
        ) from error


def seal(body: dict[str, Any]) -> bytes:
    """Return a JSON file that begins with the sha256 of every byte that follows it."""
    rest = json.dumps(body, indent=_INDENT, sort_keys=True, allow_nan=False) + "}\n"
    return f"{_HEAD}{sha256_bytes(rest.encode())}{_MIDDLE}{rest}".encode()


def intact(data: bytes) -> bool:
    """Tell whether every bit is as :func:`seal` wrote it."""
    start = len(_HEAD) + 64 + len(_MIDDLE)
    return data[:start] == f"{_HEAD}{sha256_bytes(data[start:])}{_MIDDLE}".encode()
