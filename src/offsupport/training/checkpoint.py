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
_KINDS = {"momentum": "momentum_buffer", "first": "exp_avg", "second": "exp_avg_sq", "steps": "step"}
"""What optimisers remember of a parameter, by its name in the file."""


def save(run: Run, folder: Path, identity: dict[str, Any]) -> None:
    """Write where the run stands, whole or not at all.

    Args:
        run: The run.
        folder: Its folder.
        identity: What must be equal for the run to be continued: recipe, seed, data.
    """
    tensors = {f"objective.{name}": value for name, value in run.objective.state_dict().items()}
    for kind, key in _KINDS.items():
        tensors |= {f"{kind}.{name}": value for name, value in _optimizer_state(run, key).items()}
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
    for kind, key in _KINDS.items():
        values = _under(f"{kind}.", tensors)
        for name, parameter in run.objective.named_parameters():
            if name in values:
                like = parameter if values[name].shape == parameter.shape else values[name]
                run.optimizer.state[parameter][key] = torch.empty_like(like).copy_(values[name])
    run.generator.set_state(tensors["generator"])
    run.epoch, run.log = manifest["epoch"], manifest["log"]


def _optimizer_state(run: Run, key: str) -> dict[str, Tensor]:
    state = run.optimizer.state
    return {name: state[p][key] for name, p in run.objective.named_parameters() if key in state.get(p, {})}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
