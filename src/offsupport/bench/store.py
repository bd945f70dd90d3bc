"""A run folder: one file per result, whole or absent, that proves its own integrity. No database."""

from __future__ import annotations

import contextlib
import functools
import json
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from offsupport.bench.cell import Cell, Outcome
from offsupport.core.errors import FileError
from offsupport.core.files import canonical_json, folder_lock, read_json, sha256_bytes, write_bytes, write_json
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
_HEAD = '{"checksum": "'
_MIDDLE = '",\n"record": '
_INDENT = 1


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

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def record(self) -> Record:
        """What the file says."""
        return parse(self.data)


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
            for leftover in self.folder.glob("*/.*.tmp"):
                leftover.unlink(missing_ok=True)
            for checkpoint in self.folder.glob("checkpoints/*.safetensors"):
                if self.path(checkpoint.stem).exists():
                    checkpoint.unlink(missing_ok=True)
            yield

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
        return found if isinstance(found, Invalid) else found.record

    def sound(self, key: str) -> Sound | Invalid:
        """Return the intact result of this schema and cell, or why there is none."""
        try:
            data = self.path(key).read_bytes()
        except FileNotFoundError:
            return Invalid("not computed yet", found=False)
        except OSError as error:
            return Invalid(f"unreadable ({error.strerror})", found=True)
        if not intact(data):
            return Invalid("damaged: its checksum does not match", found=True)
        reason = _misplaced(data, key)
        return Invalid(reason, found=True) if reason else Sound(data)

    def write_failure(self, cell: Cell, message: str) -> None:
        """Note that a cell failed, and how."""
        write_json(self.failure_path(cell.key), {"cell": cell.to_dict(), "message": message})

    def failure(self, key: str) -> str | None:
        """Return how a cell failed, or None."""
        path = self.failure_path(key)
        return str(read_json(path)["message"]) if path.is_file() else None

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
        """Return what was asked last."""
        return dict(self._read_grid()["request"])

    @property
    def _grid_path(self) -> Path:
        return self.folder / "grid.json"

    def _read_grid(self) -> dict[str, Any]:
        if not self._grid_path.is_file():
            raise FileError(f"{self.folder} is not a run folder.", "Give the folder that --out named.")
        grid = read_json(self._grid_path)
        if not isinstance(grid, dict) or grid.get("schema") != SCHEMA:
            raise FileError(f"{self._grid_path} was written by another version.", "Run the grid again.")
        return grid


def _misplaced(data: bytes, key: str) -> str:
    """Return why an intact file is not the result of this cell, or nothing.

    To parse a file takes ten times as long as to read and hash it. So first its text is searched for the two lines that
    :func:`seal` would write; only where one is not there, what the file says is parsed and decides.
    """
    if all(_line(name, value) in data for name, value in (("schema", SCHEMA), ("key", key))):
        return ""
    body = json.loads(data)["record"]
    if body["schema"] != SCHEMA:
        return f"of schema {body['schema']}, this version reads {SCHEMA}"
    return "" if body["key"] == key else "of another cell"


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
    """Return what an intact result file says."""
    body = json.loads(data)["record"]
    cell = Cell(body["cell"]["kind"], body["cell"]["config"])
    return Record(body["key"], cell, body["deterministic"], body["provenance"], body["timing"])


def seal(body: dict[str, Any]) -> bytes:
    """Return a JSON file that begins with the sha256 of every byte that follows it."""
    rest = json.dumps(body, indent=_INDENT, sort_keys=True, allow_nan=False) + "}\n"
    return f"{_HEAD}{sha256_bytes(rest.encode())}{_MIDDLE}{rest}".encode()


def intact(data: bytes) -> bool:
    """Tell whether every bit is as :func:`seal` wrote it."""
    start = len(_HEAD) + 64 + len(_MIDDLE)
    return data[:start] == f"{_HEAD}{sha256_bytes(data[start:])}{_MIDDLE}".encode()
