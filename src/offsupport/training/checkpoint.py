"""The state of a run on disk after each epoch: weights, momentum, generator and log in one safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import FileError
from offsupport.training.loop import Run

FILE = "checkpoint.safetensors"


def save(run: Run, folder: Path, identity: dict[str, Any]) -> None:
    """Write where the run stands, whole or not at all.

    Args:
        run: The run.
        folder: Its folder.
        identity: What must be equal for the run to be continued: recipe, seed, data.
    """
    tensors = {f"objective.{name}": value for name, value in run.objective.state_dict().items()}
    tensors |= {f"momentum.{name}": buffer for name, buffer in _momentum(run).items()}
    tensors["generator"] = run.generator.get_state()
    save_tensors(folder / FILE, tensors, {"identity": identity, "epoch": run.epoch, "log": run.log})


def resume(run: Run, folder: Path, identity: dict[str, Any]) -> None:
    """Bring a fresh run to where the checkpoint in ``folder`` stands; without one it stays at its start."""
    path = folder / FILE
    if not path.is_file():
        return
    tensors, manifest = load_tensors(path)
    if manifest["identity"] != identity:
        changed = [key for key in identity if manifest["identity"].get(key) != identity[key]]
        raise FileError(
            f"{folder} holds a run with another {' and another '.join(changed)}.",
            "Continue it with what it was begun with, or give another folder.",
        )
    run.objective.load_state_dict(_under("objective.", tensors))
    buffers = _under("momentum.", tensors)
    for name, parameter in run.objective.named_parameters():
        if name in buffers:
            run.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffers[name])
    run.generator.set_state(tensors["generator"])
    run.epoch, run.log = manifest["epoch"], manifest["log"]


def _momentum(run: Run) -> dict[str, Tensor]:
    state = run.optimizer.state
    return {name: state[p]["momentum_buffer"] for name, p in run.objective.named_parameters() if p in state}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
