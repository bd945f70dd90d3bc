"""Kinds of cells for the tests of the bench: they cost nothing, and some of them go wrong."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from offsupport.bench import Cell, Kind, Outcome, Place


@dataclass(frozen=True, kw_only=True)
class SquareConfig:
    x: int
    threads: int = 1
    behaviour: str = "fine"


def run_square(config: SquareConfig, place: Place) -> Outcome:
    with (Path(place.folder) / "computed.log").open("a") as log:
        log.write(f"{config.x}\n")
    _behave(config.behaviour, place)
    return Outcome({"square": config.x**2}, {"data_sha256": "0"}, {"seconds": time.time()})


def _behave(behaviour: str, place: Place) -> None:
    flag = Path(place.folder) / "died"
    if behaviour == "raise":
        raise RuntimeError("seven is right out")
    if behaviour == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "die once" and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "slow":
        time.sleep(30)
    if behaviour == "disk full" and (Path(place.folder) / "full").exists():
        _fill_disk((Path(place.folder) / "full").read_text())
    if behaviour == "two seconds":
        (Path(place.folder) / f"begun-{os.getpid()}-{os.environ.get('RAY_RAYLET_PID')}").touch()
        time.sleep(2)
    if behaviour == "brief":
        time.sleep(0.15)


def _fill_disk(moment: str) -> None:
    """From the third result on, a call of this worker that a write needs fails as it does on a full disk."""
    global results_begun
    results_begun += 1
    if results_begun == 3:
        name = moment.removeprefix("os.")
        real = getattr(os, name)

        def refuse(path: object, *rest: object, **more: object) -> object:
            of_result = name == "fsync" or str(path).endswith(".tmp")
            if of_result:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, *rest, **more)

        setattr(os, name, refuse)


results_begun = 0
square = Kind(SquareConfig, run_square)


def square_cell(x: int, behaviour: str = "fine") -> Cell:
    return Cell("bench_kinds:square", {"x": x, "threads": 1, "behaviour": behaviour})
