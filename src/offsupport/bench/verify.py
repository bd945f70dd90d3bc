"""Recompute a sample of results and compare: exactly where versions and CPU agree, else within a tolerance."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from offsupport.bench.cell import Cell, Place, code_of, label
from offsupport.bench.executor import run_cells
from offsupport.bench.runs import status
from offsupport.bench.store import Record, Store, intact, read_record, versions
from offsupport.core.errors import ConfigError, FileError, GridIncompleteError
from offsupport.core.seeds import derive_seed

# Which fields of results differ: of two results, or of two runs. Times are left out; they always do.


PARTS = ("config", "deterministic", "provenance")
_ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One field that differs, and what it is on both sides in the first place where it does."""

    field: str
    """Its path: ``config.batch_size``, ``deterministic.domains.fog/5.error``."""
    cells: int
    """In how many cells."""
    first: str
    """A label of the first of them."""
    a: Any
    b: Any

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def differing(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path and both values of every leaf in which two JSON values differ.

    Example:
        >>> list(differing({"error": 0.5, "n": 3}, {"error": 0.25, "n": 3}))
        [('error', 0.5, 0.25)]
    """
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys([*a, *b]):
            inner = f"{path}.{name}" if path else name
            yield from differing(a.get(name, _ABSENT), b.get(name, _ABSENT), inner)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b, strict=True)):
            yield from differing(*pair, f"{path}[{i}]")
    elif a != b or type(a) is not type(b):
        yield path, a, b


def of_records(a: Record, b: Record) -> list[tuple[str, Any, Any]]:
    """Return every field in which two results differ, times aside."""
    return list(differing(_comparable(a), _comparable(b)))


def compare(a: Path | str, b: Path | str) -> list[Difference]:
    """Return the fields in which two run folders, or two result files, differ."""
    one, other = _results(Path(a)), _results(Path(b))
    if len(one) == len(other) == 1:  # also results of different cells
        return _summed([(next(iter(one.values())), next(iter(other.values())))])
    both = [(one[key], other[key]) for key in one if key in other]
    alone = [[cell for key, cell in side.items() if key not in rest] for side, rest in ((one, other), (other, one))]
    return [*_settings(*([record.cell for record in side] for side in alone)), *_summed(both)]


def _comparable(record: Record) -> dict[str, Any]:
    config = {"kind": record.cell.kind, **record.cell.to_dict()["config"]}
    return dict(zip(PARTS, (config, record.deterministic, record.provenance), strict=True))


def _summed(pairs: Iterable[tuple[Record, Record]]) -> list[Difference]:
    found: dict[str, Difference] = {}
    for a, b in pairs:
        for path, left, right in of_records(a, b):
            before = found.get(path)
            found[path] = (
                Difference(path, before.cells + 1, before.first, before.a, before.b)
                if before
                else Difference(path, 1, label(a.cell), left, right)
            )
    return sorted(found.values(), key=lambda one: PARTS.index(one.field.split(".")[0]))


def _settings(a: list[Cell], b: list[Cell]) -> list[Difference]:
    """Cells that only one side has: the settings whose values are not the same on both."""
    cells = len(a) + len(b)
    first = label((a + b)[0]) if cells else ""
    names = dict.fromkeys(name for cell in a + b for name in cell.config)
    values = [(name, _values(a, name), _values(b, name)) for name in names]
    found = [Difference(f"config.{name}", cells, first, left, right) for name, left, right in values if left != right]
    if cells and not found:  # the same values in other combinations
        found = [Difference("config", cells, first, f"{len(a)} cells of its own", f"{len(b)} cells of its own")]
    return found


def _values(cells: list[Cell], name: str) -> list[Any]:
    seen = {str(value): value for value in (cell.to_dict()["config"].get(name, _ABSENT) for cell in cells)}
    return [seen[text] for text in sorted(seen)]


def _results(path: Path) -> dict[str, Record]:
    if path.is_dir():
        store = Store(path)
        found = (store.read(cell.key) for cell in store.grid())
        return {record.key: record for record in found if isinstance(record, Record)}
    if not path.is_file():
        raise FileError(f"There is no run folder or result file {path}.", "Check the path.")
    data = path.read_bytes()
    if not intact(data):
        raise FileError(f"{path} is damaged or no result file.", "Run its grid again to compute it again.")
    record = read_record(data, path)
    return {record.key: record}


TOLERANCE = 0.02
"""Elsewhere kernels round differently and single predictions flip: numbers may differ by this much, or this share."""
_FINE = {"trace", "per_class", "images", "events", "warnings", "gates", "updates", "changes"}
"""Details in which one flipped prediction weighs more: only their sums are compared elsewhere.

``gates`` and ``updates`` are single gates and the updates of single layers, with ``zero_gates`` and
``mean_effective_rank`` as sums; ``changes`` are those of single parameters, with ``change`` as sum.
"""

_DATA = ("provenance.data_source", "provenance.data_sha256")


@dataclass
class Verified:
    """What a check of a sample found."""

    done: int
    """Results the run has."""
    sample: int
    """How many were computed again."""
    exact: int = 0
    """Compared bit for bit: computed in the same place, or equal all the same."""
    tolerant: int = 0
    """Computed elsewhere, and compared within the tolerance."""
    remade: int = 0
    """Bit for bit the same numbers from data that came another way: from files then, generated now, or the reverse."""
    different: dict[str, str] = field(default_factory=dict)
    """What differs, by a label of the cell."""
    needs_code: dict[str, str] = field(default_factory=dict)
    """Results that were not computed again, because they name code that nobody allowed; which, by label."""

    def words(self) -> str:
        """Return what was compared, and how, as a sentence."""
        remade = f" ({self.remade} from data that came another way, file or generated)" if self.remade else ""
        ways = [
            f"{self.exact} bit for bit{remade}" if self.exact else "",
            f"{self.tolerant} within {TOLERANCE:g}, because versions or CPU are others" if self.tolerant else "",
        ]
        how = " and ".join(filter(None, ways)) or "none to compare"
        left = f" {len(self.needs_code)} were not: they need --allow-code." if self.needs_code else ""
        return f"{self.sample - len(self.needs_code)} of {self.done} results computed again and compared: {how}.{left}"


def verify(
    folder: Path | str,
    data: Path | None = None,
    sample: int = 5,
    seed: int = 0,
    workers: int = 1,
    announce: Callable[[str], None] = lambda line: None,
    code: frozenset[str] = frozenset(),
) -> Verified:
    """Compute some results of a run again, in a folder of their own, and compare.

    Args:
        folder: The run folder; it is only read.
        data: The folder of the data sets.
        sample: How many results; all if there are fewer.
        seed: Seed of the choice.
        workers: How many processes; 0 for one per core, or per GPU where cells need one.
        announce: Given a line for people when something needs their attention.
        code: Functions (``module:function``) that results may name and that may run; a result that names another one is
            not computed again.
    """
    done = list(status(folder).done)
    if not done:
        raise GridIncompleteError(f"{folder} has no results yet.", "Run its grid first.")
    chosen = random.Random(derive_seed("verify", seed)).sample(done, min(sample, len(done)))  # noqa: S311 - no secret
    found = Verified(len(done), len(chosen))
    found.needs_code = {label(one.cell): min(code_of(one.cell) - code) for one in chosen if code_of(one.cell) - code}
    chosen = [one for one in chosen if code_of(one.cell) <= code]
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "models").mkdir()
        for weights in (Path(folder) / "models").glob("*.safetensors"):  # part of what is verified, not made again
            if weights.is_file():  # and no pipe or device, which never ends
                shutil.copy(weights, Path(scratch) / "models")
        place = Place(Path(scratch), data, code=code)
        summary = run_cells([record.cell for record in chosen], place, workers, announce)
        for stored in chosen:
            now = Store(scratch).read(stored.key)
            failure = summary.failed.get(stored.key, "no result")
            said = _verdict(stored, now, found) if isinstance(now, Record) else f"failed now: {failure}"
            if said:
                found.different[label(stored.cell)] = said
    return found


def _verdict(stored: Record, now: Record, found: Verified) -> str:
    """Count how two results were compared, and return what differs, or nothing."""
    differences = of_records(stored, now)
    same_bits = not any(path.startswith("deterministic") for path, _, _ in differences)
    exact = same_bits or all(stored.provenance.get(name) == now.provenance[name] for name in versions())
    found.exact += exact
    found.tolerant += not exact
    if exact:
        differences = [each for each in differences if each[0].removeprefix("provenance.") not in versions()]
    else:
        averaged = differing(*(_averaged(_comparable(record)) for record in (stored, now)))
        differences = [each for each in averaged if not _tolerable(*each)]
    if same_bits and any(path == "provenance.data_source" for path, _, _ in differences):
        # The hash of files is over pixels, that of generated data over how they are made: they never agree, and every
        # image being answered as before says more.
        found.remade += 1
        differences = [each for each in differences if each[0] not in _DATA]
    return "; ".join(f"{path} was {a!r}, is {b!r}" for path, a, b in differences[:3])


def _averaged(value: Any) -> Any:
    """Put the mean in the place of every list of three numbers or more.

    Each may be the accuracy of one fit on twenty answers, and fits of many steps end elsewhere on another CPU.
    """
    if isinstance(value, dict):
        return {name: _averaged(inner) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 2 and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in value):
        return {"count": len(value), "mean": sum(value) / len(value)}
    return [_averaged(each) for each in value]


def _tolerable(path: str, a: Any, b: Any) -> bool:
    if path.removeprefix("provenance.") in versions() or _FINE & set(re.split(r"[.\[]", path)):
        return True
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (a, b))
    return numbers and abs(a - b) <= TOLERANCE * max(1.0, abs(a)) + 1e-9  # 0.98 is 0.02 above 0.96


def require_permission(found: Verified) -> None:
    """Raise an error when results were left out because they name code."""
    if found.needs_code:
        name = next(iter(found.needs_code.values()))
        raise ConfigError(
            f"{len(found.needs_code)} of {found.sample} results name code, {name!r}, and were not computed again.",
            f"If you trust it: --model {name} --allow-code",
        )


def require_same(found: Verified, folder: Path) -> None:
    """Raise an error with exit code 4 when results came out differently."""
    if found.different:
        first, said = next(iter(found.different.items()))
        raise GridIncompleteError(
            f"{len(found.different)} of {found.sample} results came out differently; {first}: {said}",
            f"Delete {folder / 'cells'} and run the grid again, or find out what changed: offsupport bench diff.",
        )
