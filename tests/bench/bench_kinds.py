"""Kinds of cells for the tests of the bench: they cost nothing, and some of them go wrong."""

from __future__ import annotations

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
    if behaviour == "two seconds":
        (Path(place.folder) / f"begun-{os.getpid()}-{os.environ.get('RAY_RAYLET_PID')}").touch()
        time.sleep(2)
    if behaviour == "brief":
        time.sleep(0.15)


square = Kind(SquareConfig, run_square)


def square_cell(x: int, behaviour: str = "fine") -> Cell:
    return Cell("bench_kinds:square", {"x": x, "threads": 1, "behaviour": behaviour})
