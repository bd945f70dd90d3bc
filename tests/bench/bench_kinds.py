"""Kinds of cells for the tests of the bench: they cost nothing, and some of them go wrong.

Workers import this file, so it imports nothing heavy: with torch every one of them would take seconds to start.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from offsupport.bench import KINDS, Cell, Kind, Outcome, Place


@dataclass(frozen=True, kw_only=True)
class SquareConfig:
    x: int
    threads: int = 1
    behaviour: str = "fine"
    device: str = "cpu"


def run_square(config: SquareConfig, place: Place) -> Outcome:
    with (Path(place.folder) / "computed.log").open("a") as log:
        log.write(f"{config.x}\n")
    if config.device == "cuda":
        with (Path(place.folder) / "devices.log").open("a") as log:
            log.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    _behave(config.behaviour, place)
    gates = {"findings": {"gates": {"conv": [0.4]}, "zero_gates": 0.1}} if config.behaviour == "gates" else {}
    runs = {"runs": [0.95, 1.0, 0.9]} if config.behaviour == "runs" else {}
    return Outcome({"square": config.x**2, **gates, **runs}, {"data_sha256": "0"}, {"seconds": time.time()})


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
    if behaviour == "bad disk" and (Path(place.folder) / "bad").exists():
        _break_disk(*(Path(place.folder) / "bad").read_text().split())
    if behaviour == "two seconds":
        (Path(place.folder) / f"begun-{os.getpid()}-{os.environ.get('RAY_RAYLET_PID')}").touch()
        time.sleep(2)
    if behaviour == "brief":
        time.sleep(0.15)


def _break_disk(moment: str, error: str) -> None:
    """From the third result on, a call of this worker that a write needs fails as on a full or dying disk."""
    global results_begun
    results_begun += 1
    if results_begun == 3:
        name = moment.removeprefix("os.")
        real = getattr(os, name)

        def refuse(path: object, *rest: object, **more: object) -> object:
            of_result = name == "fsync" or str(path).endswith(".tmp")
            if of_result:
                code = getattr(errno, error)
                raise OSError(code, os.strerror(code))
            return real(path, *rest, **more)

        setattr(os, name, refuse)


results_begun = 0
KINDS.register("test-square")(Kind(SquareConfig, run_square))


def square_cell(x: int, behaviour: str = "fine") -> Cell:
    return Cell("test-square", {"x": x, "threads": 1, "behaviour": behaviour})


def gpu_cell(x: int, behaviour: str = "fine") -> Cell:
    """A cell that asks for a GPU, notes the one it was given, and does without."""
    return Cell("test-square", {**square_cell(x, behaviour).config, "device": "cuda"})


def devices_given(folder: Path) -> dict[str, str]:
    """The GPU of every process that computed such a cell."""
    return dict(line.split() for line in (folder / "devices.log").read_text().splitlines())
