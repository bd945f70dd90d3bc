"""Adapters on disk: only what changed, tied by hash to the model it was changed from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from offsupport.core.checkpoints import load_tensors, save_tensors, tensors_sha256
from offsupport.core.config import to_dict
from offsupport.core.errors import FileError

if TYPE_CHECKING:
    from offsupport.methods.lifecycle import Lifecycle


_OPTIONS = ("window", "head", "collapse", "seed")
"""What a user says beside the method that changes how a stream goes on."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def base_sha256(adapter: Lifecycle) -> str:
    """Return the identity of the model an adapter started from, however far it has moved since."""
    return tensors_sha256(model_tensors(adapter.model) | adapter._start.parameters)


def model_sha256(model: nn.Module) -> str:
    """Return the identity of a model: its parameters and all its buffers, those that no checkpoint holds included."""
    return tensors_sha256(model_tensors(model))


def identity(adapter: Lifecycle) -> dict[str, Any]:
    """Return what the state of an adapter belongs to, as plain values: method, hyper-parameters, window, weights."""
    return {
        "method": adapter.info.name,
        "config": to_dict(adapter.config),
        **{name: getattr(adapter.options, name) for name in _OPTIONS},
        "source_sha256": tensors_sha256(adapter.source.tensors) if adapter.source else None,
        "base_sha256": base_sha256(adapter),
    }


def require_identity(adapter: Lifecycle, saved: Mapping[str, Any], where: str) -> None:
    """Refuse state that belongs to another set-up or to other weights."""
    mine = identity(adapter)
    if saved.get("base_sha256", mine["base_sha256"]) != mine["base_sha256"]:
        raise FileError(f"{where} was saved from a model with other weights.", "Wrap the model it was saved from.")
    different = [name for name in mine if saved.get(name) != mine[name]]
    if different:
        raise FileError(
            f"{where} was saved by another set-up: method {saved.get('method')!r}, {saved.get('config')}, "
            f"window {saved.get('window')}; what differs is {' and '.join(different)}.",
            "Call adapt() with the same method, hyper-parameters, options and source statistics.",
        )


def save(adapter: Lifecycle, path: Path | str) -> None:
    """Write an adapter's state; see :meth:`Adapter.save`."""
    manifest = {**identity(adapter), "events": adapter.events, "passes": adapter.passes}
    save_tensors(path, adapter.snapshot().flat(), manifest)


def saved_set_up(path: Path | str) -> dict[str, Any]:
    """Return the method, options and hyper-parameters of a saved adapter, as keyword arguments of ``adapt``."""
    manifest = load_tensors(path)[1]
    if not {"method", "config", *_OPTIONS} <= set(manifest):
        raise FileError(f"{path} holds no adapter.", "Give a file that Adapter.save() wrote.")
    return {**{name: manifest[name] for name in ("method", *_OPTIONS)}, **manifest["config"]}


def load(adapter: Lifecycle, path: Path | str) -> None:
    """Read an adapter's state; see :meth:`Adapter.load`."""
    tensors, manifest = load_tensors(path)
    require_identity(adapter, manifest, str(path))
    adapter.adopt(tensors, manifest)
