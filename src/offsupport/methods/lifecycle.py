"""What the state of an adapter can do: be captured, put back, reset, moved, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offsupport.methods import guard, persist, state
from offsupport.methods.config import MethodConfig, MethodInfo, Options
from offsupport.methods.source_stats import SourceStats


class Lifecycle(nn.Module):
    """A module whose adaptive state is all declared: parameters, optimiser, memory, generator, and where it started."""

    info: ClassVar[MethodInfo]

    config: MethodConfig
    options: Options
    source: SourceStats | None
    model: nn.Module
    parameters_adapted: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer | None
    memory: state.Memory
    generator: torch.Generator
    events: dict[str, int]
    passes: dict[str, int]
    _start: state.Snapshot

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters(), torch.empty(0)).device

    def brought(self, x: Any) -> Any:
        """Return images where the model is; what is no tensor is left to be refused with a remedy."""
        return x.to(self.device) if isinstance(x, Tensor) else x

    def speaking(self) -> Mapping[str, Tensor]:
        """Return the adapted parameters that predictions are made by, by name; with a teacher, the teacher's."""
        return self.parameters_adapted

    def snapshot(self) -> state.Snapshot:
        """Copy all adaptive state."""
        return state.capture(self.parameters_adapted, self.optimizer, self.memory, self.generator)

    @torch.inference_mode(False)
    def restore(self, snapshot: state.Snapshot) -> None:
        """Put all adaptive state back to a snapshot."""
        state.restore(snapshot, self.parameters_adapted, self.optimizer, self.memory, self.generator)

    def reset(self) -> None:
        """Go back to the start, bit for bit: parameters, optimiser, memory, random generator, counters."""
        self.restore(self._start)
        self.events = dict.fromkeys(guard.EVENTS, 0)
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
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._start = self._start.map(fn)
        self.restore(self.snapshot().map(fn))
        return self

    def save(self, path: Path | str) -> None:
        """Write what adaptation changed, with a manifest of what it belongs to, to one safetensors file."""
        persist.save(self, path)

    @torch.inference_mode(False)
    def load(self, path: Path | str) -> None:
        """Continue where a saved adapter of the same method on the same model stopped."""
        persist.load(self, path)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what the state dict holds beside the model: whose it is, optimiser, memory, generator, counters."""
        counters = {"events": dict(self.events), "passes": dict(self.passes)}
        return {"identity": persist.identity(self), "state": self.snapshot().flat(), **counters}

    def set_extra_state(self, extra: dict[str, Any]) -> None:
        """Undo :meth:`get_extra_state`; state of another method or of other weights is refused, before any change."""
        persist.require_identity(self, extra["identity"], "This state dict")
        self.adopt(extra["state"], extra)

    def adopt(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Go on from a flattened snapshot and its counters, wherever the tensors come from."""
        device = self.device
        self.restore(state.Snapshot.from_flat(tensors).map(lambda tensor: tensor.to(device)))
        self.events, self.passes = dict(counters["events"]), dict(counters["passes"])
