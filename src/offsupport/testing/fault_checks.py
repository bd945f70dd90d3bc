"""Promises about steps that go wrong, and about what a long stream costs."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.testing.case import Case, changed_weights, promise, promise_same_state, run, same_bits, stream

PAGE = 4096


class _NaNGradient(torch.autograd.Function):
    """The identity, with a gradient of NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return torch.full_like(gradient, math.nan)


class Faulty(nn.Module):
    """A model with a switch: while gradients are recorded, its ``logits`` or its ``gradient`` become NaN."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        """Run the model and break what is to be broken."""
        logits: Tensor = self.model(x)
        if self.fault == "logits" and torch.is_grad_enabled():
            return logits * math.nan
        return _NaNGradient.apply(logits) if self.fault == "gradient" else logits


def check_faults(case: Case) -> None:
    """A non-finite loss or gradient undoes the step: state bit-equal, logits those of a prediction, event counted."""
    for fault in ("logits", "gradient"):
        model = Faulty(case.network())
        adapter = case.wrap(model, inplace=True)
        twin = case.wrap(Faulty(case.network()), **({"lr": 0.0} if case.steps else {}))
        x, bad = stream(2)
        run(adapter, [x])
        twin.restore(adapter.snapshot())
        before = adapter.snapshot()
        model.fault = fault
        (logits,) = run(adapter, [bad])
        model.fault = ""
        promise(bool(logits.isfinite().all()), f"A non-finite {fault} in the step makes the prediction non-finite.")
        promise(
            not changed_weights(before, adapter.snapshot()), f"A step with a non-finite {fault} is not undone."
        )
        skipped = sum(adapter.events[name] for name in ("bad_loss", "bad_grad", "empty_selection"))
        promise(skipped > 0 or not case.steps, f"A non-finite {fault} in the step is not counted.")
        (expected,) = run(twin, [bad])
        promise(same_bits(logits, expected), f"After an undone step ({fault}) the prediction is not the model's.")


def check_huge_step(case: Case) -> None:
    """A step that makes a parameter non-finite is undone and counted."""
    if not case.steps:
        return
    adapter = case.wrap(lr=1e39)
    before = adapter.snapshot()
    (logits,) = run(adapter, stream(1, size=64))
    events = adapter.events
    promise(not changed_weights(before, adapter.snapshot()), "A step to non-finite parameters is not undone.")
    promise(events["bad_param"] + events["empty_selection"] == 1, "A step to non-finite parameters is not counted.")
    promise(bool(logits.isfinite().all()), "A step to non-finite parameters spoils the prediction.")


def check_memory(case: Case, batches: int = 300) -> None:
    """A long stream costs no more memory than a short one."""
    adapter = case.wrap(window=24)
    x = stream(4, size=16)
    warm_up = max(batches // 3, 20)
    run(adapter, (x[i % 4] for i in range(warm_up)))
    tensors, resident = _tensor_bytes(), _resident_bytes()
    run(adapter, (x[i % 4] for i in range(batches)))
    grown = _tensor_bytes() - tensors
    promise(grown <= 0, f"{batches} batches leave {grown} more bytes of tensors.")
    slope = (_resident_bytes() - resident) / batches
    promise(slope < 1024 + (1 << 20) / batches, f"The process grows by {slope:.0f} bytes per batch.")


def check_repeatable_state(case: Case) -> None:
    """Restoring a snapshot and serving the same batch twice leads to the same state."""
    adapter = case.wrap()
    run(adapter, stream(2))
    moment = adapter.snapshot()
    ends: list[Any] = []
    for _ in range(2):
        adapter.restore(moment)
        run(adapter, stream(2, seed=1))
        ends.append(adapter.snapshot())
    promise_same_state(*ends, "A snapshot is changed by what comes after it.")


def _tensor_bytes() -> int:
    gc.collect()
    found = [each for each in gc.get_objects() if isinstance(each, Tensor) and each.device.type == "cpu"]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}
    return sum(storages.values())


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0  # Only Linux tells; the count of tensors stands elsewhere.


