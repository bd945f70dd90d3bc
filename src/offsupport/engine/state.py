"""Everything an adapter changes, in one place: captured, put back, reset, moved, saved and loaded.

The guard undoes steps, ``reset`` goes back to the start, files continue on another day, and all of it bit for bit. That
holds only if nothing is forgotten, so adaptive state is declared: adapted parameters, the optimiser's tensors, the
memory and the random generator make up a :class:`Snapshot`, and there is no other state.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from offsupport.core.checkpoints import load_tensors, save_tensors, tensors_sha256
from offsupport.core.config import to_dict
from offsupport.core.errors import FileError
from offsupport.core.weights import require_finite, require_names, require_ordinary, require_values
from offsupport.engine.config import EVENTS, PIXELS, MethodConfig, MethodInfo, Options
from offsupport.engine.precision import require_convertible
from offsupport.engine.source_stats import SourceStats
from offsupport.monitor import Alarms
from offsupport.nn.inspect import device_and_dtype
from offsupport.nn.projected import find_projection

if TYPE_CHECKING:
    from typing_extensions import Self

Optimizer = torch.optim.Optimizer


class Memory(dict[str, Tensor]):
    """Tensors a method carries from batch to batch, under names declared once.

    Values are replaced, never changed in place, so that a shallow copy is a snapshot. An empty tensor is "not yet";
    what starts with a shape keeps it, and files in which it has another are refused.
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
            part, _, name = full.partition("/")
            if part in parts:
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
        "input_range": None if adapter.options.input_range is None else list(adapter.options.input_range),
        "source_sha256": tensors_sha256(adapter.source.tensors) if adapter.source else None,
        "base_sha256": base_sha256(adapter),
        "statistics_sha256": tensors_sha256(adapter.clean_moments) if adapter.clean_moments else None,
        **({"monitor": True} if adapter.options.monitor else {}),
        **({} if adapter.options.trusted else {"trusted": False}),
        **({} if adapter.options.reset_every is None else {"reset_every": adapter.options.reset_every}),
    }


def require_identity(adapter: Lifecycle, saved: Mapping[str, Any], where: str) -> None:
    """Refuse state that belongs to another set-up or to other weights."""
    mine = identity(adapter)
    if saved.get("base_sha256", mine["base_sha256"]) != mine["base_sha256"]:
        raise FileError(f"{where} was saved from a model with other weights.", "Wrap the model it was saved from.")
    saved = {"input_range": mine["input_range"], **saved}  # files of 0.2.0 do not say it
    saved["config"] = _unsaid(adapter.config, saved.get("config"))
    different = [name for name in mine if saved.get(name) != mine[name]]
    if different:
        raise FileError(
            f"{where} was saved by another set-up: method {saved.get('method')!r}, {saved.get('config')}, "
            f"window {saved.get('window')}; what differs is {' and '.join(different)}.",
            "Call adapt() with the same method, hyper-parameters, options and source statistics.",
        )


def _unsaid(config: MethodConfig, saved: Any) -> Any:
    """Return saved hyper-parameters with the defaults of those that came later than the file."""
    # Such a hyper-parameter had no effect when the file was written: it is at its default.
    return {**to_dict(type(config)()), **saved} if isinstance(saved, Mapping) else saved


def save(adapter: Lifecycle, path: Path | str) -> None:
    """Write an adapter's state; see :meth:`Adapter.save`.

    Names of parameters and of memory are part of the file: to rename one is to lose every saved adapter.
    """
    manifest = {**identity(adapter), "events": adapter.events, "passes": adapter.passes}
    save_tensors(path, adapter.snapshot().flat(), manifest)


def saved_set_up(path: Path | str) -> dict[str, Any]:
    """Return the method, options and hyper-parameters of a saved adapter, as keyword arguments of ``adapt``."""
    manifest = load_tensors(path)[1]
    whole = {"method", "config", *_OPTIONS} <= set(manifest)
    if not whole or not isinstance(manifest["method"], str) or not isinstance(manifest["config"], dict):
        raise FileError(f"{path} holds no adapter.", "Give a file that Adapter.save() wrote.")
    # What a caller says of the model is no hyper-parameter: a file must not say it in the caller's place.
    odd = set(manifest["config"]) & {"model", "method", "preset", "source", *Options.__dataclass_fields__}
    if odd:
        raise FileError(f"{path} has a hyper-parameter {min(odd)!r}.", "Give a file that Adapter.save() wrote.")
    # Files of 0.2.0 do not say a range: then it is that of images.
    limits = manifest.get("input_range", PIXELS)
    options = {"input_range": tuple(limits) if isinstance(limits, list) else limits}
    later = {"monitor": manifest.get("monitor") is True}
    later |= {"trusted": False} if manifest.get("trusted") is False else {}
    later |= {"reset_every": manifest["reset_every"]} if "reset_every" in manifest else {}
    return {**{name: manifest[name] for name in ("method", *_OPTIONS)}, **options, **later, **manifest["config"]}


def load(adapter: Lifecycle, path: Path | str) -> None:
    """Read an adapter's state; see :meth:`Adapter.load`."""
    tensors, manifest = load_tensors(path)
    require_identity(adapter, manifest, str(path))
    adapter.adopt(tensors, manifest, str(path))


# A file is checked whole before anything is changed by it: a load that fails leaves the adapter bit for bit as it was.


_AGAIN = "Save it again from an adapter of this set-up; this one was not changed."


def require_state(adapter: Lifecycle, tensors: Mapping[str, Tensor], where: str) -> Snapshot:
    """Return the snapshot that flattened tensors make up, if it fits an adapter in every name, shape and type.

    Args:
        adapter: Who is to go on from it.
        tensors: As :meth:`Snapshot.flat` names them.
        where: Where they come from, for the error.
    """
    given = _without_projection(adapter, tensors)
    start = {name: t for name, t in adapter._start.flat().items() if not name.startswith("optimizer/")}
    wanted = start | _optimizer_wanted(adapter, given)
    require_names(given, wanted, where, _AGAIN)
    # Memory that starts empty gets its shape from the stream.
    fixed = {name: tensor for name, tensor in wanted.items() if tensor.numel() or not name.startswith("memory/")}
    require_values(given, fixed, where, "this adapter", _AGAIN)
    other = [name for name in fixed if given[name].dtype != fixed[name].dtype]
    if other:
        types = f"{given[other[0]].dtype}, and this adapter has {fixed[other[0]].dtype}"
        raise FileError(f"{where} holds {other[0]} as {types}.", _AGAIN)
    require_ordinary(given, where)
    require_finite({name: given[name] for name in wanted if name not in fixed}, where)
    _require_generator(given["generator"], where)
    snapshot = Snapshot.from_flat(given)
    odd = adapter.misfit(snapshot.memory)
    if odd is not None:
        shape = tuple(snapshot.memory[odd].shape)
        raise FileError(f"{where} holds memory/{odd} of shape {shape} as no stream of images leaves it.", _AGAIN)
    return snapshot


def _without_projection(adapter: Lifecycle, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave a projection head out: files of 0.2.0 count it among what SHOT adapts, though nothing depends on it."""
    head = find_projection(adapter.model)
    inside = {id(parameter) for parameter in head.parameters()} if head else set()
    names = {n for n, p in adapter.model.named_parameters() if id(p) in inside} - set(adapter.parameters_adapted)
    gone = tuple(f"{part}/{name}" for part in ("parameters", "optimizer") for name in names)
    return {full: tensor for full, tensor in tensors.items() if not full.startswith(gone or ("//",))}


def _optimizer_wanted(adapter: Lifecycle, given: Iterable[str]) -> dict[str, Tensor]:
    """Return what optimisers keep of each parameter that anything is given of: all or, before its first step, none."""
    wanted: dict[str, Tensor] = {}
    begun = {full.removeprefix("optimizer/").rpartition("/")[0] for full in given if full.startswith("optimizer/")}
    for mark, optimizer in adapter.optimizers().items():
        kept = _kept_by(optimizer)
        for name, parameter in adapter.parameters_adapted.items():
            if f"{mark}{name}" in begun:
                full = {key: like if not like.dim() else parameter.detach() for key, like in kept.items()}
                wanted |= {f"optimizer/{mark}{name}/{key}": like for key, like in full.items()}
    return wanted


def _kept_by(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return what an optimiser keeps of a parameter of one number, (1,), after a step; counters are scalars."""
    probe = nn.Parameter(torch.zeros(1))
    probe.grad = torch.zeros(1)
    twin = copy.copy(optimizer)
    twin.state = collections.defaultdict(dict)
    twin.param_groups = [{**optimizer.param_groups[0], "params": [probe]}]
    twin.step()
    return {key: value for key, value in twin.state[probe].items() if value is not None}


def _require_generator(state: Tensor, where: str) -> None:
    try:
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError) as error:
        raise FileError(f"{where} holds no state of a random generator ({error}).", _AGAIN) from error


def _counted(counters: Any, names: Iterable[str], where: str) -> dict[str, int]:
    """Return counters that a file holds; those it does not know are zero."""
    named = isinstance(counters, Mapping) and all(isinstance(name, str) for name in counters)
    if not named or not all(type(count) is int and count >= 0 for count in counters.values()):
        raise FileError(f"{where} counts {counters!r}, which are no events by name.", _AGAIN)
    return dict.fromkeys(names, 0) | dict(counters)


# What an adapter can do with its state; the ritual of a batch, which changes it, is in adapter.py.


class Turn:
    """A lock that one thread holds at a time and may take again; copies and pickles of it are new and free."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> Any:
        return Turn, ()


class Lifecycle(nn.Module):
    """A module whose adaptive state is all declared: parameters, optimiser, memory, generator, and where it started.

    Whoever reads or changes the state holds ``turn``: other threads wait.
    """

    info: ClassVar[MethodInfo]

    config: MethodConfig
    options: Options
    turn: Turn
    source: SourceStats | None
    clean_moments: Mapping[str, Tensor]
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

    def misfit(self, memory: Mapping[str, Tensor]) -> str | None:
        """Return the name of something in a memory that no stream leaves there; None where there is nothing.

        What starts with a shape has it by then. An adapter that remembers what gets its shape from the stream, and
        depends on it, says here what that may be.
        """
        return None

    def optimizers(self) -> dict[str, Optimizer]:
        """Return the optimisers by what stands before a parameter's name in a snapshot: one, without a mark."""
        return {} if self.optimizer is None else {"": self.optimizer}

    def snapshot(self) -> Snapshot:
        """Copy all adaptive state."""
        with self.turn:
            return capture(self.parameters_adapted, self.optimizer, self.memory, self.generator)

    @torch.inference_mode(False)
    def fork(self) -> Self:
        """Return an independent copy that goes on from the same state: model, optimiser, memory, generator, events."""
        with self.turn:
            return copy.deepcopy(self)

    @torch.inference_mode(False)
    def restore(self, snapshot: Snapshot) -> None:
        """Put all adaptive state back to a snapshot."""
        with self.turn:
            restore(snapshot, self.parameters_adapted, self.optimizer, self.memory, self.generator)

    def reset(self) -> None:
        """Go back to the start, bit for bit: parameters, optimiser, memory, random generator, counters."""
        with self.turn:
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
        with self.turn:
            require_convertible(self.model, fn(torch.zeros(1, dtype=device_and_dtype(self.model)[1])))
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            self._start = self._start.map(fn)
            self.restore(self.snapshot().map(fn))
        return self

    def save(self, path: Path | str) -> None:
        """Write what adaptation changed, with a manifest of what it belongs to, to one safetensors file."""
        with self.turn:
            save(self, path)

    @torch.inference_mode(False)
    def load(self, path: Path | str) -> None:
        """Continue where a saved adapter of the same method on the same model stopped."""
        with self.turn:
            load(self, path)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what the state dict holds beside the model: whose it is, optimiser, memory, generator, counters."""
        with self.turn:
            counters = {"events": dict(self.events), "passes": dict(self.passes)}
            return {"identity": identity(self), "state": self.snapshot().flat(), **counters}

    def set_extra_state(self, extra: dict[str, Any]) -> None:
        """Undo :meth:`get_extra_state`; state of another method or of other weights is refused, before any change."""
        where = "This state dict"
        if not isinstance(extra, Mapping) or not {"identity", "state", "events", "passes"} <= set(extra):
            raise FileError(f"{where} is not one of an adapter.", "Give what state_dict() of an adapter returned.")
        require_identity(self, extra["identity"], where)
        self.adopt(extra["state"], extra, where)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what ``state_dict`` returned, all of it or nothing."""
        # torch copies tensor by tensor and complains at the end, with half of them changed.
        own = {name: value for name, value in self.state_dict().items() if isinstance(value, Tensor)}
        given = {name: value for name, value in state_dict.items() if isinstance(value, Tensor)}
        if strict:
            require_names(given, own, "This state dict", "Give what state_dict() of an adapter returned.")
        require_values(given, own, "This state dict", "this adapter", _AGAIN)
        return super().load_state_dict(state_dict, strict, assign)

    def adopt(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any], where: str) -> None:
        """Go on from a flattened snapshot and its counters, wherever the tensors come from; refused, nothing changes.

        Args:
            tensors: As :meth:`Snapshot.flat` names them.
            counters: ``events`` and ``passes``.
            where: Where they come from, for the error.
        """
        # Files of 0.2.0 know one alarm and its memory, and no moments of a window: these start anew.
        later = Alarms.initial() | {"window_moments": torch.empty(0)}
        tensors = {f"memory/{name}": value for name, value in later.items()} | dict(tensors)
        snapshot, device = require_state(self, tensors, where), self.device
        events = _counted(counters.get("events"), EVENTS, where)
        passes = _counted(counters.get("passes"), ("forward", "backward"), where)
        self.restore(snapshot.map(lambda tensor: tensor.to(device)))
        self.events, self.passes = events, passes
