"""The promises every method makes, as one check each.

About state: what changes, what does not, and that it can be put back, copied and carried on. About batches of any size
and any content. About steps that go wrong. About what a long stream costs. And that every hyper-parameter does
something. The docstring of a check is its promise.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import itertools
import math
import pickle
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.engine.adapter import Adapter
from offsupport.engine.state import Snapshot
from offsupport.methods import METHODS, load_adapted
from offsupport.nn.mae import MaskedAutoencoder
from offsupport.nn.norm import norm_layers
from offsupport.testing.case import (
    Case,
    all_same_bits,
    changed_weights,
    promise,
    promise_same_state,
    quiet,
    run,
    same_bits,
    stream,
)
from offsupport.testing.networks import CLASSES, IMAGE, toy_images


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
                again = load_adapted(case.network(), path, source=case.stats(case.network()))
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


# Promises about batches: any size is served, and a bad one harms nothing that comes later.


TOLERANCE = 0.005
"""How much later error an absurd batch may cost: half a percentage point."""


def check_sizes(case: Case) -> None:
    """Batches of one, two and an odd number are served in any order, with finite logits."""
    for window in (0, 20):
        adapter = case.wrap(window=window)
        for size in (1, 24, 2, 7, 1, 24, 3):
            (logits,) = run(adapter, stream(1, size=size, seed=size))
            promise(logits.shape == (size, CLASSES), f"A batch of {size} gives logits of shape {tuple(logits.shape)}.")
            promise(bool(logits.isfinite().all()), f"A batch of {size} gives non-finite logits.")


def check_empty_batch(case: Case) -> None:
    """A batch without samples gives no logits and changes nothing."""
    adapter = case.wrap(window=32)
    run(adapter, stream(2))
    before = adapter.snapshot()
    (logits,) = run(adapter, [torch.empty(0, *IMAGE)])
    promise(logits.shape == (0, CLASSES), f"An empty batch gives logits of shape {tuple(logits.shape)}.")
    promise_same_state(before, adapter.snapshot(), "An empty batch changes state.")


def check_small_batches(case: Case) -> None:
    """Batches below ``min_batch`` are predicted without a step, and counted."""
    adapter = case.wrap()
    run(adapter, stream(1))
    for size in (1, 2, adapter.min_batch - 1):
        if not 0 < size < adapter.min_batch:
            continue
        before, counted = adapter.snapshot(), adapter.events["small_batch"]
        run(adapter, stream(1, size=size))
        promise(not changed_weights(before, adapter.snapshot()), "A small batch makes a step.")
        promise(adapter.events["small_batch"] == counted + 1, "A small batch is not counted once.")
    counted = adapter.events["small_batch"]
    run(adapter, stream(1, size=adapter.min_batch))
    promise(adapter.events["small_batch"] == counted, "A batch of min_batch samples is counted as small.")


def check_all_bad(case: Case) -> None:
    """A batch of only bad samples leaves all state bit-unchanged, and later logits with it."""
    batches = stream(5)
    clean = case.wrap(window=32)
    expected = run(clean, batches)
    for value in (math.nan, math.inf, -math.inf):
        adapter = case.wrap(window=32)
        run(adapter, batches[:3])
        before = adapter.snapshot()
        (logits,) = run(adapter, [torch.full((6, *IMAGE), value)])
        promise_same_state(before, adapter.snapshot(), f"A batch of only {value} changes state.")
        promise(adapter.events["bad_input"] == 1, f"A batch of only {value} is not counted once as bad_input.")
        promise(same_bits(logits, torch.zeros(6, CLASSES)), f"Samples of only {value} are not predicted uniformly.")
        promise(all_same_bits(expected[3:], run(adapter, batches[3:])), f"After a batch of {value} logits differ.")


def check_partly_bad(case: Case) -> None:
    """A partly bad batch acts as its good samples alone; the source weights predict the bad ones, repaired."""
    batches = stream(4, size=30)
    bad = batches[2].clone()
    bad[3, 0, 0, 0], bad[17, 1] = math.nan, math.inf
    bad[29] = -math.inf
    rows = torch.tensor([3, 17, 29])
    good = torch.ones(30, dtype=torch.bool).index_fill(0, rows, False)
    clean, adapter = case.wrap(window=32), case.wrap(window=32)
    expected = run(clean, [*batches[:2], batches[2][good], batches[3]])
    got = run(adapter, [*batches[:2], bad, batches[3]])
    promise(same_bits(got[2][good], expected[2]), "A partly bad batch predicts its good samples differently.")
    promise(same_bits(got[3], expected[3]), "After a partly bad batch logits differ.")
    promise_same_state(clean.snapshot(), adapter.snapshot(), "A partly bad batch is not as its good samples alone.")
    promise(adapter.events["bad_input"] == 1, "A partly bad batch is not counted once as bad_input.")
    with torch.no_grad():
        by_source = case.network()(torch.stack([_repaired(x) for x in bad[rows]]))
    by_source[2] = 0.0
    promise(
        torch.allclose(got[2][rows], by_source, rtol=1e-4, atol=1e-5),
        "Bad samples are not predicted by the source weights with the mean of their finite values filled in.",
    )


def check_overflow(case: Case) -> None:
    """Logits are finite also for samples that are beyond repair or that overflow inside the network."""
    adapter, (x,) = case.wrap(), stream(1)
    x[:6], x[6:9] = 3e38, -3e38
    x[3:9, 0, 0, 0] = math.inf
    for batch in (x[:12] if adapter.config.independent else x, x[3:9]):
        (logits,) = run(adapter, [batch])
        promise(bool(logits.isfinite().all()), "A sample near the largest float gives non-finite logits.")


def check_out_of_range(case: Case) -> None:
    """A sample in another unit changes nothing for the others, and is counted; a batch of such samples is refused."""
    _check_out_of_range(case, window=32)
    if not METHODS[case.method].augments and case.wrap().first_norm.layer is not None:
        # No range is declared: its moments give it away.
        _check_out_of_range(case, input_range=None)


def _check_out_of_range(case: Case, **options: Any) -> None:
    clean, adapter = case.wrap(**options), case.wrap(**options)
    first, x, last = stream(3, size=3 if adapter.config.independent else 24)
    frames = torch.cat([255 * stream(1, size=1, seed=3)[0], torch.full((1, *IMAGE), -50.0)])
    mixed, rows = torch.cat([frames[:1], x, frames[1:]]), slice(1, -1)
    expected = run(clean, [first, x, last])
    got = run(adapter, [first, mixed, frames[:1], last])
    promise(same_bits(got[1][rows], expected[1]), "A sample of another unit changes the predictions of its batch.")
    promise(same_bits(got[3], expected[2]), "After a sample of another unit logits differ.")
    promise_same_state(clean.snapshot(), adapter.snapshot(), "A sample of another unit changes state.")
    promise(adapter.events == clean.events | {"out_of_range": 2}, "Samples of another unit are not counted by batch.")
    with torch.no_grad():
        by_source = case.network()(frames)
    promise(
        torch.allclose(torch.stack([got[1][0], got[1][-1]]), by_source, rtol=1e-4, atol=1e-2),
        "Samples of another unit are not predicted by the source weights.",
    )
    before = adapter.snapshot()
    try:
        run(adapter, [255 * last])
    except InputError as error:
        promise("/ 255" in error.remedy, "The refusal of a batch of another unit does not show the line to add.")
    else:
        promise(False, "A batch of another unit is not refused.")
    promise_same_state(before, adapter.snapshot(), "A refused batch changes state.")


def check_absurd(case: Case) -> None:
    """After finite but absurd batches, predictions are finite and as good as without, or a collapse was counted."""
    for window in (0, 32):
        _check_absurd(case.wrap(window=window))


def _check_absurd(adapter: Adapter) -> None:
    run(adapter, stream(8, size=32))
    later = [toy_images(128, seed=777 + i) for i in range(6)]
    expected = _error(copy.deepcopy(adapter), later)
    absurd = {"zeros": 0.0, "a constant": 0.5, "whiter than white": 1.4, "blacker than black": -0.4}
    for name, value in absurd.items():
        shaken = copy.deepcopy(adapter)
        run(shaken, [torch.full((32, *IMAGE), value)])
        error = _error(shaken, later)
        promise(
            error <= expected + TOLERANCE or shaken.events["collapse"] > 0,
            f"A batch of {name} raises the later error from {expected:.3f} to {error:.3f} and no collapse is counted.",
        )


def check_window(case: Case) -> None:
    """With ``window=N`` past images fill batches up; they pass again for a step, one per N new images."""
    size, adapter = 20, case.wrap(window=20)
    singles = stream(45, size=1)
    steps: list[int] = []
    for i, x in enumerate(singles, start=1):
        before = adapter.snapshot()
        run(adapter, [x])
        past = torch.cat(singles[max(0, i - size) : i])
        promise(same_bits(adapter.memory["window"], past), f"After {i} images the window does not hold the last ones.")
        if changed_weights(before, adapter.snapshot()):
            steps.append(i)
    promise(set(steps) <= {20, 40}, f"With window=20 steps are made after {steps} images.")
    filling = min(adapter.min_batch, size) - 1
    promise(adapter.events["small_batch"] == filling, f"Filling the window counts {adapter.events['small_batch']}.")
    whole = case.wrap()
    expected = run(whole, [torch.cat(singles[:20])])[0][-1:]
    adapter.reset()
    promise(
        torch.allclose(expected, run(adapter, singles[:20])[-1], rtol=1e-4, atol=1e-5),
        "A full window predicts its newest image differently from the same images as one batch.",
    )
    promise(
        not changed_weights(whole.snapshot(), adapter.snapshot()), "A full window steps differently from one batch."
    )


def check_interventions(case: Case) -> None:
    """A batch counted as bad, small or without selection changes no parameter and no part of the optimiser.

    The network breaks its logits on every second batch, so methods that step are sure to be intervened with.
    """
    model = Faulty(case.network())
    adapter = case.wrap(model, inplace=True)
    skipping = ("bad_loss", "bad_grad", "bad_param", "empty_selection", "small_batch")
    flat = torch.rand(32, *IMAGE, generator=torch.Generator().manual_seed(3))
    seen = 0
    for i, x in enumerate((*stream(3), flat, 0.5 + 0.01 * flat, *stream(1, size=2), *stream(2, seed=1))):
        model.fault = "logits" if i % 2 else ""
        before, counted = adapter.snapshot(), [adapter.events[name] for name in skipping]
        run(adapter, [x])
        if counted != [adapter.events[name] for name in skipping]:
            seen += 1
            promise(not changed_weights(before, adapter.snapshot()), "A step that is counted as skipped was made.")
    promise(seen > 0 or not case.steps, "No broken batch is counted as skipped.")


def _repaired(x: Tensor) -> Tensor:
    finite = x[x.isfinite()]
    return torch.where(x.isfinite(), x, finite.mean() if len(finite) else torch.tensor(0.0))


def _error(adapter: Adapter, batches: Sequence[tuple[Tensor, Tensor]]) -> float:
    wrong = 0
    for (_, y), logits in zip(batches, run(adapter, (x for x, _ in batches)), strict=True):
        promise(bool(logits.isfinite().all()), "After an absurd batch logits are non-finite.")
        wrong += int((logits.argmax(1) != y).sum())
    return wrong / sum(len(y) for _, y in batches)


# Promises about steps that go wrong, and about what a long stream costs.


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
    # What is looked at now and then fills up the slower.
    warm_up = max(batches // 3, 20) * adapter.watches
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
    # What others in this process may hold: sparse tensors, and the stand-ins of an export, have no storage.
    every = [each for each in gc.get_objects() if issubclass(type(each), Tensor) and not is_fake(each)]
    found = [each for each in every if each.device.type == "cpu" and each.layout == torch.strided]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}
    return sum(storages.values())


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * PAGE
    except OSError:
        return 0  # Only Linux tells; the count of tensors stands elsewhere.


# The promise that every hyper-parameter does something.


def check_hyper_parameters(cases: Sequence[Case]) -> None:
    """Every hyper-parameter changes some logits, on some network, in some set-up of the others."""
    config = METHODS[cases[0].method].config_class
    # What the statistics policies of the engine are given is the same for all methods.
    names = [field.name for field in dataclasses.fields(config) if field.name != "rate"]
    if not any(case.wrap().norm_statistics.layers for case in cases) or cases[0].wrap().statistics == "source":
        # They are about batch-norm statistics, and idle where there are none or where those of the source stay.
        names = [name for name in names if name not in ("prior", "statistics")]
    searches = [_Search(case) for case in cases]
    dead = [name for name in names if not any(search.finds_effect(name) for search in searches)]
    if dead:
        raise AssertionError(f"These hyper-parameters change nothing: {', '.join(dead)}.")


class _Search:
    """Set-ups of one case, each served once however many hyper-parameters are tried on top of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.fields = {field.name: field for field in dataclasses.fields(METHODS[case.method].config_class)}
        self.references: dict[str, _Outputs] = {}
        # Small and large batches: some hyper-parameters act on one of them alone. The small ones, which cost methods of
        # many steps per image least, come first.
        self.batches = [*stream(1, size=5, seed=1), *stream(4, size=32), *stream(1, size=5, seed=2)]

    def finds_effect(self, name: str) -> bool:
        """Search set-ups of the other hyper-parameters until changing this one changes the logits."""
        values, names = _candidates(self.case, self.fields[name]), list(self.fields)
        # What works together is declared together: the neighbours of a hyper-parameter are tried first.
        others = sorted(names, key=lambda other: abs(names.index(other) - names.index(name)))[1:]
        return any(self._differs(base, name, values) for base in self._set_ups([self.fields[o] for o in others]))

    def _set_ups(self, others: Sequence[dataclasses.Field[Any]]) -> Iterator[dict[str, Any]]:
        """Yield the defaults, a fast learner, and then each other hyper-parameter changed on top of that."""
        yield {}
        fast = {"lr": 0.05} if any(field.name == "lr" for field in others) else {}
        yield fast
        for field in others:
            for value in _candidates(self.case, field):
                yield {**fast, field.name: value}

    def _differs(self, base: Mapping[str, Any], name: str, values: Sequence[Any]) -> bool:
        key = repr(base)
        if key not in self.references:
            self.references[key] = _Outputs(self.case, base, self.batches)
        reference = self.references[key]
        if reference.refused:
            return False
        served = (_Outputs(self.case, {**base, name: value}, self.batches) for value in values)
        return any(each.differs(reference) for each in served)


class _Outputs:
    """What a set-up answers to a stream, batch by batch: most differences show in the first."""

    def __init__(self, case: Case, hyper: Mapping[str, Any], batches: Sequence[Tensor]) -> None:
        self.batches = batches
        self.logits: list[Tensor] = []
        try:
            self.adapter: Adapter | None = case.wrap(**hyper)
        except (ConfigError, ModelError):
            self.adapter = None

    @property
    def refused(self) -> bool:
        """Whether the combination cannot be, and so says nothing."""
        return self.adapter is None

    def answer(self, number: int) -> Tensor:
        """Return the logits of a batch; those before it are served first, and once."""
        assert self.adapter is not None  # noqa: S101 - asked of those that were not refused
        self.logits += run(self.adapter, self.batches[len(self.logits) : number + 1])
        return self.logits[number]

    def differs(self, other: _Outputs) -> bool:
        """Whether any batch is answered differently."""
        if self.refused:
            return False
        return any(not same_bits(self.answer(i), other.answer(i)) for i in range(len(self.batches)))


def _candidates(case: Case, field: dataclasses.Field[Any]) -> list[Any]:
    """Return other values that a hyper-parameter of this type and default may take."""
    hint = typing.get_type_hints(METHODS[case.method].config_class)[field.name]
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    default = case.hyper.get(field.name, field.default)
    found = itertools.chain.from_iterable(_of_type(case, option, default) for option in options)
    return [value for value in found if value != default]


def _of_type(case: Case, option: Any, default: Any) -> list[Any]:
    if typing.get_origin(option) is typing.Literal:
        return list(typing.get_args(option))
    if option is bool:
        return [not default]
    if option is float:
        return [factor * default for factor in (0.0, 0.5, 5.0, 20.0)] + [0.9] if default else [0.1, 0.9, 2.0]
    if option is int:
        return [1, 6, 64]
    if option is str:
        return [name for name, _ in norm_layers(case.network())][:1]
    return []
