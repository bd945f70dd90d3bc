"""Everything an adapter changes, in one place: captured, put back, reset, moved, saved and loaded.

The guard undoes steps, ``reset`` goes back to the start, files continue on another day, and all of it bit for bit. That
holds only if nothing is forgotten, so adaptive state is declared: adapted parameters, the optimiser's tensors, the
memory and the random generator make up a :class:`Snapshot`, and there is no other state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offsupport.core.checkpoints import load_tensors, save_tensors, tensors_sha256
from offsupport.core.config import to_dict
from offsupport.core.errors import FileError
from offsupport.engine.config import EVENTS, MethodConfig, MethodInfo, Options
from offsupport.engine.source_stats import SourceStats
from offsupport.monitor import Alarms

Optimizer = torch.optim.Optimizer


class Memory(dict[str, Tensor]):
    """Tensors a method carries from batch to batch, under names declared once.

    Values are replaced, never changed in place, so that a shallow copy is a snapshot. An empty tensor is "not yet".
    """

    def __setitem__(self, name: str, value: Tensor) -> None:
        # A name that was not there at the start would be missing from the start's snapshot: no reset could remove it.
        if name not in self:
            raise KeyError(f"memory {name!r} is not declared; return it from initial_memory()")
        super().__setitem__(name, value.detach())

    def update(self, values: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Replace several values; those of a plain dict would come in unseen."""
        for name, value in values.items():
            self[name] = value

    def __reduce__(self) -> Any:
        # Copies and pickles of a dict are filled item by item, which the declared names would forbid.
        return Memory, (dict(self),)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A moment of an adapter: adapted parameters, optimiser, memory, random generator."""

    parameters: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    memory: dict[str, Tensor]
    generator: Tensor

    def flat(self) -> dict[str, Tensor]:
        """Return all tensors under one level of names."""
        named = {f"{part}/{name}": t for part in _PARTS for name, t in getattr(self, part).items()}
        return named | {"generator": self.generator}

    def map(self, fn: Callable[[Tensor], Tensor]) -> Snapshot:
        """Return a snapshot with ``fn`` applied to every tensor that follows the model's device and type."""
        # Optimisers keep their step counters where they made them.
        parts = {
            part: {name: t if name.endswith("/step") else fn(t) for name, t in getattr(self, part).items()}
            for part in _PARTS
        }
        return Snapshot(**parts, generator=self.generator)

    @staticmethod
    def from_flat(tensors: Mapping[str, Tensor]) -> Snapshot:
        """Undo :meth:`flat`."""
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
        for full, tensor in tensors.items():
            if full != "generator":
                part, _, name = full.partition("/")
                parts[part][name] = tensor
        return Snapshot(**parts, generator=tensors["generator"])


_PARTS = ("parameters", "optimizer", "memory")


def capture(
    parameters: Mapping[str, nn.Parameter], optimizer: Optimizer | None, memory: Memory, generator: torch.Generator
) -> Snapshot:
    """Copy the state of an adapter."""
    return Snapshot(
        {name: parameter.detach().clone() for name, parameter in parameters.items()},
        _optimizer_tensors(parameters, optimizer),
        memory.copy(),
        generator.get_state(),
    )


@torch.no_grad()
def restore(
    snapshot: Snapshot,
    parameters: Mapping[str, nn.Parameter],
    optimizer: Optimizer | None,
    memory: Memory,
    generator: torch.Generator,
) -> None:
    """Put a captured state back, bit for bit; parameters keep their identity."""
    for name, parameter in parameters.items():
        parameter.copy_(snapshot.parameters[name])
        parameter.grad = None
    if optimizer is not None:
        optimizer.state.clear()
        for full, tensor in snapshot.optimizer.items():
            name, _, key = full.rpartition("/")
            # Files of 0.2.0 count a projection head among what SHOT adapts, though no prediction depends on it.
            if name in parameters:
                optimizer.state[parameters[name]][key] = tensor.clone()
    for name in memory:
        # Cloned, as a snapshot may be restored again after the method went on from it.
        memory[name] = snapshot.memory[name].clone()
    generator.set_state(snapshot.generator)


def _optimizer_tensors(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer | None) -> dict[str, Tensor]:
    if optimizer is None:
        return {}
    # SGD without momentum keeps None in its state: nothing to carry.
    return {
        f"{name}/{key}": value.clone()
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


# Adapters on disk: only what changed, tied by hash to the model it was changed from.


_OPTIONS = ("window", "head", "collapse", "seed")
"""What a user says beside the method that changes how a stream goes on; functions (``logits``) cannot be saved."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def base_sha256(adapter: Lifecycle) -> str:
    """Return the identity of the model an adapter started from, however far it has moved since."""
    # What adapts is hashed as it was at the start; all the rest never changes.
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
        **({"monitor": True} if adapter.options.monitor else {}),
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
    """Write an adapter's state; see :meth:`Adapter.save`.

    Names of parameters and of memory are part of the file: to rename one is to lose every saved adapter.
    """
    manifest = {**identity(adapter), "events": adapter.events, "passes": adapter.passes}
    save_tensors(path, adapter.snapshot().flat(), manifest)


def saved_set_up(path: Path | str) -> dict[str, Any]:
    """Return the method, options and hyper-parameters of a saved adapter, as keyword arguments of ``adapt``."""
    manifest = load_tensors(path)[1]
    if not {"method", "config", *_OPTIONS} <= set(manifest):
        raise FileError(f"{path} holds no adapter.", "Give a file that Adapter.save() wrote.")
    later = {"monitor": True} if manifest.get("monitor") else {}
    return {**{name: manifest[name] for name in ("method", *_OPTIONS)}, **later, **manifest["config"]}


def load(adapter: Lifecycle, path: Path | str) -> None:
    """Read an adapter's state; see :meth:`Adapter.load`."""
    tensors, manifest = load_tensors(path)
    require_identity(adapter, manifest, str(path))
    adapter.adopt(tensors, manifest)


# What an adapter can do with its state; the ritual of a batch, which changes it, is in adapter.py.


class Lifecycle(nn.Module):
    """A module whose adaptive state is all declared: parameters, optimiser, memory, generator, and where it started."""

    info: ClassVar[MethodInfo]

    config: MethodConfig
    options: Options
    source: SourceStats | None
    model: nn.Module
    parameters_adapted: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer | None
    memory: Memory
    generator: torch.Generator
    events: dict[str, int]
    passes: dict[str, int]
    _start: Snapshot

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters(), torch.empty(0)).device

    def to_device(self, x: Any) -> Any:
        """Return images where the model is; what is no tensor is left to be refused with a remedy."""
        return x.to(self.device) if isinstance(x, Tensor) else x

    def predicting_parameters(self) -> Mapping[str, Tensor]:
        """Return the adapted parameters that predictions are made by, by name; with a teacher, the teacher's."""
        return self.parameters_adapted

    def snapshot(self) -> Snapshot:
        """Copy all adaptive state."""
        return capture(self.parameters_adapted, self.optimizer, self.memory, self.generator)

    @torch.inference_mode(False)
    def restore(self, snapshot: Snapshot) -> None:
        """Put all adaptive state back to a snapshot."""
        restore(snapshot, self.parameters_adapted, self.optimizer, self.memory, self.generator)

    def reset(self) -> None:
        """Go back to the start, bit for bit: parameters, optimiser, memory, random generator, counters."""
        self.restore(self._start)
        self.events = dict.fromkeys(EVENTS, 0)
        self.passes = {"forward": 0, "backward": 0}

    def findings(self) -> dict[str, Any]:
        """Say, in plain JSON values, what is worth reporting about the state reached; nothing by default."""
        return {}

    def train(self, mode: bool = True) -> Lifecycle:
        """Set the flag of the adapter alone: the wrapped model keeps predicting as in evaluation (Dropout is off)."""
        self.training = mode
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Lifecycle:
        """Move or convert the model, as ``.to(...)`` does, and all adaptive state with it."""
        # .to(), .half() and the like go through here: optimiser, memory and the start must not stay behind.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._start = self._start.map(fn)
        self.restore(self.snapshot().map(fn))
        return self

    def save(self, path: Path | str) -> None:
        """Write what adaptation changed, with a manifest of what it belongs to, to one safetensors file."""
        save(self, path)

    @torch.inference_mode(False)
    def load(self, path: Path | str) -> None:
        """Continue where a saved adapter of the same method on the same model stopped."""
        load(self, path)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what the state dict holds beside the model: whose it is, optimiser, memory, generator, counters."""
        counters = {"events": dict(self.events), "passes": dict(self.passes)}
        return {"identity": identity(self), "state": self.snapshot().flat(), **counters}

    def set_extra_state(self, extra: dict[str, Any]) -> None:
        """Undo :meth:`get_extra_state`; state of another method or of other weights is refused, before any change."""
        require_identity(self, extra["identity"], "This state dict")
        self.adopt(extra["state"], extra)

    def adopt(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Go on from a flattened snapshot and its counters, wherever the tensors come from."""
        device = self.device
        # Files of 0.2.0 know one alarm and its memory; the others start anew.
        tensors = {f"memory/{name}": value for name, value in Alarms.initial().items()} | dict(tensors)
        self.restore(Snapshot.from_flat(tensors).map(lambda tensor: tensor.to(device)))
        self.events = dict.fromkeys(EVENTS, 0) | dict(counters["events"])
        self.passes = dict(counters["passes"])
