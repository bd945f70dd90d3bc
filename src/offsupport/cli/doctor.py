"""``offsupport doctor``: is this machine ready, and what will be slow or missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

from offsupport.cli.output import JSON, emit_json, emit_table
from offsupport.core.processes import WORKER_VARIABLES

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pillow", "safetensors", "matplotlib")


def doctor(json: bool = JSON) -> None:
    """Check the installation: versions, device, threads, data, and one adaptation step."""
    findings = examine()
    if json:
        emit_json(findings)
    else:
        rows = [[name, str(value)] for name, value in findings.items()]
        emit_table("offsupport doctor", ["what", "found"], rows, text_columns=2)


def examine() -> dict[str, Any]:
    """Return what was found, name by name."""
    import torch

    from offsupport import __version__

    found: dict[str, Any] = {"offsupport": __version__, "python": platform.python_version()}
    found |= {package: importlib.metadata.version(package) for package in PACKAGES}
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found["cores"] = os.cpu_count()
    # Beside the cores, as a surprise here is the most frequent reason for a slow run.
    found["threads"] = torch.get_num_threads()
    found["allocator"] = _allocator(os.environ)
    found["OFFSUPPORT_DATA"] = os.environ.get("OFFSUPPORT_DATA", "not set (only digits can be found)")
    found["adaptation"] = _one_step()
    return found


def _allocator(environment: Mapping[str, str]) -> str:
    """Say whether freed memory is kept: pages that are made anew for every tensor can take as long as the network."""
    if platform.libc_ver()[0] != "glibc":
        return "that of the system"
    names = [name for name in WORKER_VARIABLES if name.startswith("MALLOC_")]
    if all(name in environment for name in names):
        return "keeps freed memory"
    settings = " ".join(f"{name}={WORKER_VARIABLES[name]}" for name in names)
    return f"gives freed memory back, which is slow for large images; in workers, or with {settings}, it is kept"


def _one_step() -> str:
    """Take one step on a tiny network and come back."""
    import torch

    import offsupport
    from offsupport.nn import resnet18

    # 16 images: fewer would be a small batch, which takes no step.
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapted = offsupport.adapt(resnet18(width=4), "tent")
    first, moved = adapted(x), adapted(x)
    adapted.reset()
    works = torch.equal(adapted(x), first) and not torch.equal(first, moved)
    return "works: a step changes the model, reset() brings it back bit for bit" if works else "FAILS"
