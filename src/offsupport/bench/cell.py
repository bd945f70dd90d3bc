"""A cell: one thing to compute, said completely in plain values, and named by the hash of what it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from offsupport.core.config import build
from offsupport.core.errors import ConfigError
from offsupport.core.files import canonical_json, sha256_bytes
from offsupport.core.registry import Registry, names_code


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One thing to compute. Two cells that say the same are equal, whatever the order their settings were given in.

    Args:
        kind: Who computes it: a name in :data:`KINDS`. A cell may come from a file, so it names no code.
        config: Every setting the result depends on, as JSON values. Paths are not among them: a result does not
            depend on where its data lies.

    Example:
        >>> Cell("adapt", {"seed": 0, "method": "bn"}) == Cell("adapt", {"method": "bn", "seed": 0})
        True
    """

    kind: str
    config: Mapping[str, Any]

    @cached_property
    def text(self) -> str:
        """The canonical JSON of the cell."""
        try:
            return canonical_json(self.to_dict())
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"A setting of this cell is not a JSON value ({error}).", f"{dict(self.config)}"
            ) from None

    @cached_property
    def key(self) -> str:
        """The sha256 of the canonical JSON, in hexadecimal."""
        return sha256_bytes(self.text.encode())

    def to_dict(self) -> dict[str, Any]:
        """Return kind and settings as plain JSON values, in canonical form."""
        return {"kind": self.kind, "config": _plain(self.config)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a cell runs: what it may use and its result must not depend on.

    Args:
        folder: The run folder.
        data: The folder that holds the data sets; None leaves it to the environment.
        checkpoint: The file in which a cell that takes long may keep how far it is.
        code: Functions, each ``module:function``, that a person named and allowed to run. Whatever else a cell names
            is a name in a registry: nothing that comes from a file is imported.
    """

    folder: Path
    data: Path | None = None
    checkpoint: Path | None = None
    code: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What computing a cell gives, as JSON values.

    Args:
        deterministic: The same on every run on the same versions and CPU type.
        provenance: What it was computed from: hashes of weights, data and order, and limits.
        timing: Seconds and bytes, different on every run.
    """

    deterministic: dict[str, Any]
    provenance: dict[str, Any]
    timing: dict[str, Any]


def _nothing_to_prepare(configs: Sequence[Any], place: Place) -> None:
    """For kinds whose cells share nothing and cannot be asked for wrongly."""


def but_for(*names: str) -> Callable[[Any], dict[str, Any]]:
    """Return what gives the settings of a cell without those of these names."""
    return lambda config: {name: value for name, value in vars(config).items() if name not in names}


_but_for_seed = but_for("seed")


def _one_piece(config: Any, place: Place) -> int:
    return 1


def _none_counted(measured: Mapping[str, Any]) -> tuple[float, float]:
    return 0.0, 0.0


@dataclasses.dataclass(frozen=True)
class Effort:
    """What one must know of a kind to say what a cell will cost before it runs.

    Args:
        size: Of how many pieces of about the same cost a cell is made: images of its stream, runs.
        alike: What cells have in common whose pieces cost the same.
        few: Given settings and a number, the settings of a cell of so many images, by which others are judged; None
            where a few pieces cost nothing like their share, so that only results tell.
        passes: Given what a cell measured, how often one of its images went through the network, and back.
        adaptation: The settings of the adaptation inside it, as of kind ``adapt``: what has source statistics.
        shared: Whether cells with the same adaptation share its source statistics.
    """

    size: Callable[[Any, Place], int] = _one_piece
    alike: Callable[[Any], dict[str, Any]] = _but_for_seed
    few: Callable[[Any, int], Any] | None = None
    passes: Callable[[Mapping[str, Any]], tuple[float, float]] = _none_counted
    adaptation: Callable[[Any], Any] | None = None
    shared: bool = False


@dataclasses.dataclass(frozen=True)
class Kind:
    """How cells of one kind are computed.

    Args:
        config: The frozen dataclass of their settings; it has a field ``threads``.
        run: Computes one cell. Its module registers the kind, so that another process knows it after one import.
        prepare: Given the settings of all cells that will run: refuses what cannot work, makes what they share.
        named_by: Settings whose values tell a person which cell it is.
        effort: What tells how long one will take.
    """

    config: type[Any]
    run: Callable[[Any, Place], Outcome]
    prepare: Callable[[Sequence[Any], Place], None] = _nothing_to_prepare
    named_by: tuple[str, ...] = ()
    effort: Effort = Effort()


KINDS: Registry[Kind] = Registry("kind of cell")


def label(cell: Cell) -> str:
    """Return a few words that tell a person which cell this is; of a kind unknown here, the key alone."""
    names = KINDS[cell.kind].named_by if cell.kind in KINDS else ()
    # A list (several corruptions in a row) would fill the line; the key tells such cells apart.
    words = [value for value in (cell.config.get(name) for name in names) if isinstance(value, str)]
    return " ".join([*words, cell.key[:8]])


def home_of(cell: Cell) -> str:
    """Return the module that registers the kind of a cell: what another process must import to compute it."""
    return KINDS[cell.kind].run.__module__


MOST_CELLS = 100_000
"""Cells of a grid: many times the largest table there is; what is more is a slip of the finger, or ill will."""


def require_few(cells: int) -> None:
    """Refuse a grid of too many cells before any of them is made, which alone would take all memory."""
    if cells > MOST_CELLS:
        number = f"{cells:,}" if cells < 10**18 else "more than a billion times a billion"
        raise ConfigError(
            f"This grid would have {number} cells.",
            f"A grid may have {MOST_CELLS:,}: take fewer seeds, or split it into several runs.",
        )


MOST_THREADS = 1024


def require_threads(threads: int) -> None:
    """Refuse a number of threads that no machine has: a computer told to start a billion of them stops."""
    if not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"A cell cannot have {threads} threads.", f"Give a number from 1 to {MOST_THREADS}.")


def code_of(cell: Cell) -> frozenset[str]:
    """Return the functions that a cell names; it is computed only where its :class:`Place` allows them."""
    return frozenset(value for value in cell.config.values() if names_code(value))


def make_cell(kind: str, config: Any) -> Cell:
    """Return the cell of a configuration dataclass, every field included."""
    return Cell(kind, {field.name: getattr(config, field.name) for field in dataclasses.fields(config)})


def compute(cell: Cell, place: Place) -> Outcome:
    """Compute one cell in this process, with the number of threads it asks for; go on where it was stopped before."""
    kind = KINDS[cell.kind]
    return kind.run(_settings(cell, kind), dataclasses.replace(place, checkpoint=checkpoint_of(cell, place)))


def checkpoint_of(cell: Cell, place: Place) -> Path:
    """Return the file in which a cell keeps how far it is; whoever stores its result removes it."""
    return Path(place.folder) / "checkpoints" / f"{cell.key}.safetensors"


def prepare(cells: Iterable[Cell], place: Place) -> None:
    """Refuse cells that cannot work (unknown names, missing data), and make what they share."""
    by_kind: dict[str, list[Cell]] = {}
    for cell in cells:
        by_kind.setdefault(cell.kind, []).append(cell)
    for name, members in by_kind.items():
        kind = KINDS[name]
        kind.prepare([_settings(cell, kind) for cell in members], place)


def _settings(cell: Cell, kind: Kind) -> Any:
    config = build(kind.config, cell.config, f"a cell of kind {cell.kind!r}")
    require_threads(config.threads)
    return config


def _plain(value: Any) -> Any:
    """The canonical form of a setting: tuples are lists, 1.0 is 1; so that equal settings have equal text."""
    if value is None or isinstance(value, (str, int)):  # most of them, and first: grids have many cells
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("names must be strings")
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
