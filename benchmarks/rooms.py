"""How far a reader walks: files, files with one importer, circles, and hops between files while four calls run.

``python benchmarks/rooms.py [--json]``. A hop is a call that enters another file than the call before it did; only
functions of this package count. The four calls: one batch of ``tent`` and one of ``tesla+sc`` on a convolution, batch
norm and a linear layer (what runs inside ``nn``, the network's own functions, is left out); ``predict`` of an
Extrapolator for one target; and ``reproduce table2`` for one method and corruption from the command to the page, with
the cell computed in this process, in the rooms it passes (``cell``) and in all rooms (``cell_everywhere``: the layers
of the network and the pixels of the corruption among them).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import itertools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import offsupport

ROOT = Path(offsupport.__file__).parent
OF_A_CELL = ("cli", "bench", "studies", "results", "report", "core", "evaluation.py")
"""Rooms that a cell passes on its way from the command to the page."""


def look() -> dict[str, int]:
    """Count files, and files that exactly one other imports."""
    files = {_module(path): path for path in ROOT.rglob("*.py")}
    users: Counter[str] = Counter()
    for name, path in files.items():
        users.update(set(_imports(ast.parse(path.read_text(encoding="utf-8")), files)) - {name})
    plain = [name for name, path in files.items() if path.name != "__init__.py"]
    return {"files": len(files), "one_importer": sum(users[name] == 1 for name in plain)}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from [full] if full in known else [node.module] if node.module in known else []


def walk(call: Callable[[], Any]) -> list[str]:
    """Return the file of every function of the package that a call enters, in order, relative to the package."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            entered.append(Path(frame.f_code.co_filename).relative_to(ROOT).as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def hops(entered: list[str], rooms: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> int:
    """Count the changes of file, among calls into some rooms, or outside of some."""
    kept = [f for f in entered if (not rooms or f.split("/")[0] in rooms) and f.split("/")[0] not in without]
    return sum(a != b for a, b in itertools.pairwise(kept))


def adapter_call(method: str) -> Callable[[], Any]:
    """Return the second batch of a method on a small network."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10)
    adapted, x = offsupport.adapt(nn.Sequential(*layers), method), torch.rand(32, 3, 32, 32)
    adapted(x)
    return lambda: adapted(x)


def predict_call() -> Callable[[], Any]:
    """Return the question about one target of a fitted Extrapolator."""
    import numpy as np

    from offsupport.latent import Extrapolator

    X = np.random.default_rng(0).normal(size=(200, 6))
    fitted = Extrapolator().fit(X, (X[:, 0] > 0).astype(int))
    x_tgt = X[:1].copy()
    x_tgt[0, 5] += 9
    return lambda: fitted.predict(x_tgt)


def cell_call(folder: Path) -> Callable[[], Any]:
    """Return the command for a cell of Table 2 that is computed in this process; its model is trained before."""
    from offsupport.bench import executor
    from offsupport.cli.main import main
    from offsupport.studies.paper import table2

    @contextlib.contextmanager
    def here(_: Any) -> Iterator[Callable[[Any], None]]:
        def run(job: Any) -> None:
            for cell in job.cells:
                task = executor.Task(cell, executor.home_of(cell))
                if failure := executor.attempt(task, job.place, job.store.keep):
                    raise RuntimeError(failure)
                job.done(cell)

        yield run

    executor.Local.ready = here  # type: ignore[assignment, method-assign]
    table2.STANDARD = ("fog",)  # type: ignore[assignment]

    def command() -> None:
        sys.argv = ["offsupport", "reproduce", "table2", "--methods", "source", "--out", str(folder), "--json"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()

    command()
    for result in (folder / "cells").glob("*.json"):
        result.unlink()
    return command


def measure() -> dict[str, int]:
    """Return every number."""
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as name:
        cell = walk(cell_call(Path(name)))
    return {
        **look(),
        "tent": hops(walk(adapter_call("tent")), without=("nn",)),
        "tesla+sc": hops(walk(adapter_call("tesla+sc")), without=("nn",)),
        "predict": hops(walk(predict_call())),
        "cell": hops(cell, rooms=OF_A_CELL),
        "cell_everywhere": hops(cell),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="numbers only, as JSON")
    given = parser.parse_args()
    found = measure()
    print(json.dumps(found, indent=1) if given.json else "\n".join(f"{name:16} {n}" for name, n in found.items()))
