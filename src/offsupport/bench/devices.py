"""Devices: which cells need a GPU, who gets which, and the sentence where there is none."""

from __future__ import annotations

from collections.abc import Sequence

from offsupport.bench.cell import Cell
from offsupport.core.errors import ConfigError, nearest
from offsupport.core.processes import gpus

DEVICES = ("cpu", "cuda")


def needs_gpu(cell: Cell) -> bool:
    """Return whether a cell, of whatever kind, has the setting ``device`` at ``cuda``."""
    return cell.config.get("device") == "cuda"


def check_device(device: str) -> None:
    """Refuse a device that nobody has heard of; whether it is there can only be said where the cell is computed."""
    if device not in DEVICES:
        raise ConfigError(f"There is no device {device!r}.", nearest(device, DEVICES))


def require_gpus() -> list[str]:
    """Return the GPUs of this process; to have none is an error."""
    found = gpus()
    if not found:
        raise ConfigError("These cells need a GPU, and torch finds none.", "Run them where torch.cuda.is_available().")
    return found


def assign(devices: Sequence[str], workers: int) -> list[str | None]:
    """Return the device of each worker: one each while they last, then shared; None for all where there are none."""
    return [devices[number % len(devices)] if devices else None for number in range(workers)]
