"""Promises about steps that go wrong, and about what a long stream costs."""

from __future__ import annotations

import gc
import itertools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.methods.adapter import Adapter
from offsupport.methods.state import Snapshot
from offsupport.nn.mae import MaskedAutoencoder
from offsupport.testing.case import Case, changed_weights, promise, promise_same_state, run, same_bits, stream

PAGE = 4096


class _NaNGradient(torch.autograd.Function):
    """The identity, with a gradient of NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.full_like(gradient, math.nan)


class Faulty(nn.Module):
    """A model with a switch: while gradients are recorded, its ``logits`` or all its ``gradient`` become NaN.

    What an autoencoder reconstructs breaks in the same way.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.fault = ""
        for module in model.modules():
            if isinstance(module, MaskedAutoencoder):
                # A method that learns from reconstructions may see no logits before its last step.
                module.decoder_pred.register_forward_hook(self._break_reconstruction)

    def forward(self, x: Tensor) -> Tensor:
        """Run the model and break what is to be broken."""
        apply: Any = _NaNGradient.apply
        parameters = self.model.named_parameters() if self.fault == "gradient" else ()
        broken: dict[str, Tensor] = {name: apply(parameter) for name, parameter in parameters}
        logits: Tensor = torch.func.functional_call(self.model, broken, (x,))
        return self._broken(logits)

    def _break_reconstruction(self, layer: nn.Module, given: Any, out: Tensor) -> Tensor:
        apply: Any = _NaNGradient.apply
        return apply(out) if self.fault == "gradient" else self._broken(out)

    def _broken(self, out: Tensor) -> Tensor:
        return out * math.nan if self.fault == "logits" and torch.is_grad_enabled() else out


def check_faults(case: Case) -> None:
    """A non-finite loss or gradient undoes the step: weights bit-equal, logits finite, event counted."""
    for fault in ("logits", "gradient"):
        model = Faulty(case.network())
        adapter = case.wrap(model, inplace=True)
        x, bad = stream(2)
        run(adapter, [x])
        before = adapter.snapshot()
        model.fault = fault
        (logits,) = run(adapter, [bad])
        skipped = sum(adapter.events[name] for name in ("bad_loss", "bad_grad", "empty_selection"))
        promise(skipped > 0 or not case.steps, f"A non-finite {fault} in the step is not counted.")
        _promise_undone(case, adapter, before, bad, logits if fault == "gradient" else None)
        promise(bool(logits.isfinite().all()), f"A non-finite {fault} in the step makes the prediction non-finite.")


def check_spoiled_parameters(case: Case) -> None:
    """A step that makes a parameter non-finite is undone and counted."""
    adapter = case.wrap()
    run(adapter, stream(1))
    if adapter.optimizer is None:
        return

    def spoil(*_: Any) -> None:
        next(iter(adapter.parameters_adapted.values())).data.fill_(math.inf)

    before = adapter.snapshot()
    hook = adapter.optimizer.register_step_post_hook(spoil)
    bad = stream(1, size=64, seed=1)
    (logits,) = run(adapter, bad)
    hook.remove()
    counted = adapter.events["bad_param"] + adapter.events["empty_selection"]
    promise(counted > 0, "A step to non-finite parameters is not counted.")
    _promise_undone(case, adapter, before, bad[0], logits)


def _promise_undone(case: Case, adapter: Adapter, before: Snapshot, x: Tensor, logits: Tensor | None) -> None:
    """Promise weights as before the step, and logits as from a twin that does not step."""
    promise(not changed_weights(before, adapter.snapshot()), "A step that went wrong is not undone.")
    if logits is not None:
        model = Faulty(case.network()) if isinstance(adapter.model, Faulty) else case.network()
        twin = case.wrap(model, **case.still)
        twin.restore(before)
        (expected,) = run(twin, [x])
        promise(same_bits(logits, expected), "After an undone step the prediction is not that of the old weights.")


def check_memory(case: Case, batches: int = 300) -> None:
    """A long stream costs no more memory than a short one."""
    adapter = case.wrap(window=24)
    x = stream(4, size=16)
    warm_up = max(batches // 3, 20)
    run(adapter, (x[i % 4] for i in range(warm_up)))
    tensors, resident = _tensor_bytes(), [_resident_bytes()]
    part = batches // 4
    for _ in range(4):
        run(adapter, (x[i % 4] for i in range(part)))
        resident.append(_resident_bytes())
    grown = _tensor_bytes() - tensors
    promise(grown <= 0, f"{4 * part} batches leave {grown} more bytes of tensors.")
    # The allocator takes memory in steps; a leak grows in every part of the stream.
    slope = min(after - before for before, after in itertools.pairwise(resident)) / part
    promise(slope < 1024, f"The process grows by {slope:.0f} bytes of memory per batch.")


def check_repeatable_state(case: Case) -> None:
    """A snapshot can be restored any number of times, and the same batches lead on to the same state."""
    adapter = case.wrap()
    run(adapter, stream(2))
    moment = adapter.snapshot()
    run(adapter, stream(2, seed=1))
    end = adapter.snapshot()
    for _ in range(2):
        adapter.restore(moment)
        run(adapter, stream(2, seed=1))
        promise_same_state(end, adapter.snapshot(), "A snapshot is changed by what comes after it.")


def _tensor_bytes() -> int:
    gc.collect()
    found = [each for each in gc.get_objects() if issubclass(type(each), Tensor) and each.device.type == "cpu"]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}
    return sum(storages.values())


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0  # Only Linux tells; the count of tensors stands elsewhere.
