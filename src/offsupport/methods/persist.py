"""Adapters on disk: only what changed, tied by hash to the model it was changed from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from offsupport.core.checkpoints import load_tensors, save_tensors, tensors_sha256
from offsupport.core.config import to_dict
from offsupport.core.errors import FileError
from offsupport.methods.state import Snapshot

if TYPE_CHECKING:
    from offsupport.methods.adapter import Adapter


def base_sha256(adapter: Adapter) -> str:
    """Return the identity of the model an adapter started from, however far it has moved since."""
    return tensors_sha256(dict(adapter.model.state_dict()) | adapter._start.parameters)


def model_sha256(model: nn.Module) -> str:
    """Return the identity of a model's weights."""
    return tensors_sha256(dict(model.state_dict()))


def save(adapter: Adapter, path: Path | str) -> None:
    """Write an adapter's state; see :meth:`Adapter.save`."""
    manifest = {
        "method": adapter.info.name,
        "config": to_dict(adapter.config),
        "window": adapter.options.window,
        "base_sha256": base_sha256(adapter),
        "events": adapter.events,
        "passes": adapter.passes,
    }
    save_tensors(path, adapter.snapshot().flat(), manifest)


def load(adapter: Adapter, path: Path | str) -> None:
    """Read an adapter's state; see :meth:`Adapter.load`."""
    tensors, manifest = load_tensors(path)
    saved_for = (manifest.get("method"), manifest.get("config"), manifest.get("window"))
    if saved_for != (adapter.info.name, to_dict(adapter.config), adapter.options.window):
        raise FileError(
            f"{path} was saved by another set-up: method {saved_for[0]!r}, {saved_for[1]}, window {saved_for[2]}.",
            "Call adapt() with the same method, hyper-parameters and window.",
        )
    if manifest["base_sha256"] != base_sha256(adapter):
        raise FileError(f"{path} was saved from a model with other weights.", "Wrap the model it was saved from.")
    adapter.restore(Snapshot.from_flat(tensors))
    adapter.events, adapter.passes = dict(manifest["events"]), dict(manifest["passes"])
