"""Everything an adapter changes, in one place: captured, restored, and flattened to named tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

Optimizer = torch.optim.Optimizer


class Memory:
    """Tensors a method carries from batch to batch, under names declared once.

    Values are replaced, never changed in place, so that a shallow copy is a snapshot. An empty tensor is "not yet".
    """

    def __init__(self, initial: Mapping[str, Tensor]) -> None:
        self._tensors = dict(initial)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        if name not in self._tensors:
            raise KeyError(f"memory {name!r} is not declared; return it from initial_memory()")
        self._tensors[name] = value.detach()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def copy(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return dict(self._tensors)


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
            optimizer.state[parameters[name]][key] = tensor.clone()
    for name in memory:
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
