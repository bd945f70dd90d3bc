"""Fitted flows kept in a folder: the slow part of an extrapolator does not depend on what it is asked afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import torch
from torch import Tensor

from offsupport import __version__
from offsupport.core.checkpoints import load_tensors, save_tensors
from offsupport.core.errors import FileError
from offsupport.core.files import sha256_bytes, turn
from offsupport.latent.flow_fit import FlowConfig, fit_flow


def fitted_flow(
    folder: str | None, x: Tensor, labels: Tensor, config: FlowConfig, rng: Callable[[str], torch.Generator]
) -> Tensor:
    """Return what :func:`~offsupport.latent.flow_fit.fit_flow` gives; read it if ``folder`` has it, else keep it there.

    The name of a file is a hash of everything the fit depends on, so a flow is never taken for another one; a damaged
    file is fitted again.
    """
    if folder is None:
        return fit_flow(x, labels, config, rng)
    facts = f"{__version__} {astuple(config)} {rng('').initial_seed()} {x.dtype} {tuple(x.shape)}".encode()
    key = sha256_bytes(facts + x.numpy().tobytes() + labels.numpy().tobytes())
    path = Path(folder) / f"flow-{key[:32]}.safetensors"
    with turn(path):  # who comes second waits, and reads
        with contextlib.suppress(FileError):
            return load_tensors(path)[0]["flat"]
        flat = fit_flow(x, labels, config, rng)
        save_tensors(path, {"flat": flat}, {})
    return flat
