"""Promises about state: what changes, what does not, and that it can be put back, copied and carried on."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.methods.adapter import Adapter
from offsupport.methods.factory import load_adapted
from offsupport.testing.case import Case, all_same_bits, promise, promise_same_state, quiet, run, same_bits, stream


def check_reset(case: Case) -> None:
    """Reset goes back bit for bit: parameters, optimiser, memory, generator, counters, and the next logits."""
    adapter = case.wrap(window=32)
    start, events = adapter.snapshot(), dict(adapter.events)
    first = run(adapter, stream(5))
    adapter.generator.manual_seed(99)
    adapter.reset()
    promise_same_state(start, adapter.snapshot(), "reset() does not restore all state.")
    promise(adapter.events == events, "reset() does not clear the counters of events.")
    promise(adapter.passes == {"forward": 0, "backward": 0}, "reset() does not clear the counters of passes.")
    promise(all_same_bits(first, run(adapter, stream(5))), "After reset() the same stream gives other logits.")


def check_original(case: Case) -> None:
    """The given model is untouched: values, flags, classes and gradients."""
    model = case.network().train()
    before = _describe(model)
    adapter = case.wrap(model)
    run(adapter, stream(3))
    after = _describe(model)
    promise(before[0] == after[0], "Adapting changes the flags or classes of the given model's layers.")
    promise(all_same_bits(before[1], after[1]), "Adapting changes the values of the given model.")


def check_inplace(case: Case) -> None:
    """With ``inplace=True`` the given model itself adapts, to the same values as a copy would."""
    model = case.network()
    adapter = case.wrap(model, inplace=True)
    promise(adapter.model is model, "inplace=True adapts a copy.")
    copied = case.wrap()
    run(adapter, stream(3))
    run(copied, stream(3))
    promise(
        all_same_bits(model.state_dict().values(), copied.model.state_dict().values()),
        "inplace=True adapts to other values than a copy.",
    )


def check_gradient_modes(case: Case) -> None:
    """Inside no_grad and inference_mode the same bits come out, also when everything happens in there."""
    batches = stream(3)
    plain = run(case.wrap(), batches)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            adapter = case.wrap()
            inside = run(adapter, [x.clone() for x in batches])
            adapter.restore(adapter.snapshot())
            adapter.reset()
        promise(all_same_bits(plain, inside), f"Inside torch.{mode.__name__}() the logits differ.")
        promise(all_same_bits(plain, run(adapter, batches)), f"After a reset in torch.{mode.__name__}() logits differ.")
    promise(not any(out.requires_grad for out in plain), "The returned logits hold on to a graph.")


def check_flags(case: Case) -> None:
    """The train/eval flags, of the adapter and of the model inside, mean nothing."""
    batches = stream(4)
    plain = run(case.wrap(), batches)
    adapter = case.wrap(case.network().train())
    out = run(adapter, batches[:1])
    adapter.train()
    out += run(adapter, batches[1:2])
    adapter.model.train()
    out += run(adapter, batches[2:3])
    adapter.eval()
    out += run(adapter, batches[3:])
    promise(all_same_bits(plain, out), "The train/eval flags change the predictions.")


def check_keys(case: Case) -> None:
    """The state dict of the wrapped model keeps its keys, and adaptation changes none of its buffers."""
    original = case.network()
    adapter = case.wrap(original)
    run(adapter, stream(3))
    promise(
        list(adapter.model.state_dict()) == list(original.state_dict()),
        "The wrapped model's state dict has other keys than the original's.",
    )
    buffers = dict(original.named_buffers())
    promise(
        all(same_bits(buffers[name], buffer) for name, buffer in adapter.model.named_buffers()),
        "Adapting changes buffers of the model.",
    )


def check_deterministic(case: Case) -> None:
    """The same stream gives the same bits, whatever the global random state, which is left alone."""
    batches = stream(4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = run(case.wrap(seed=3), batches)
        torch.manual_seed(2)
        adapter, before = case.wrap(seed=3), torch.get_rng_state()
        second = run(adapter, batches)
        after = torch.get_rng_state()
    promise(all_same_bits(first, second), "Two runs with one seed differ.")
    promise(same_bits(before, after), "Adapting draws from the global random generator.")


def check_save_load(case: Case) -> None:
    """A saved adapter continues bit-equal after load() and load_adapted(), counters included."""

    def through_file(adapter: Adapter) -> Adapter:
        other = case.wrap(window=32)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "adapter.safetensors"
            adapter.save(path)
            run(other, stream(1, seed=5))
            other.load(path)
            with quiet():
                again = load_adapted(case.network(), path, source=adapter.source)
        promise_same_state(other.snapshot(), again.snapshot(), "load_adapted() and load() differ.")
        return other

    _continues(case, through_file, "load()")


def check_state_dict(case: Case) -> None:
    """An adapter continues bit-equal from its state dict, also through ``torch.save`` with ``weights_only``."""

    def through_state_dict(adapter: Adapter) -> Adapter:
        file = io.BytesIO()
        torch.save(adapter.state_dict(), file)
        file.seek(0)
        other = case.wrap(window=32)
        run(other, stream(1, seed=5))
        other.load_state_dict(torch.load(file, weights_only=True))
        return other

    _continues(case, through_state_dict, "load_state_dict()")


def check_deepcopy(case: Case) -> None:
    """A deep copy continues bit-equal, and the two do not share state."""
    _continues(case, copy.deepcopy, "copy.deepcopy()")


def check_pickle(case: Case) -> None:
    """A pickled adapter continues bit-equal."""
    _continues(case, lambda adapter: pickle.loads(pickle.dumps(adapter)), "pickle")  # noqa: S301 (our own bytes)


def _continues(case: Case, copied: Callable[[Adapter], Adapter], how: str) -> None:
    """Cut a stream in two, carry the state over the cut, and compare with the stream in one piece."""
    batches = stream(2) + stream(1, size=5, seed=1)
    adapter = case.wrap(window=32)
    run(adapter, batches)
    other = copied(adapter)
    promise_same_state(adapter.snapshot(), other.snapshot(), f"{how} does not carry all state over.")
    promise(
        (adapter.events, adapter.passes) == (other.events, other.passes), f"{how} does not carry the counters over."
    )
    rest = stream(3, seed=2)
    promise(all_same_bits(run(adapter, rest), run(other, rest)), f"After {how} the stream continues differently.")
    promise_same_state(adapter.snapshot(), other.snapshot(), f"After {how} the state moves differently.")
    for each in (adapter, other):
        each.reset()
    promise_same_state(adapter.snapshot(), other.snapshot(), f"After {how}, reset() leads elsewhere.")


def _describe(model: nn.Module) -> tuple[list[Any], list[Tensor]]:
    flags = [(type(module), module.training) for module in model.modules()]
    needs = [(parameter.requires_grad, parameter.grad is None) for parameter in model.parameters()]
    return [*flags, *needs], [value.clone() for value in model.state_dict().values()]
