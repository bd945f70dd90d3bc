"""Promises about batches: any size is served, and a bad one harms nothing that comes later."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from offsupport.methods.adapter import Adapter
from offsupport.testing.case import (
    Case,
    all_same_bits,
    changed_weights,
    promise,
    promise_same_state,
    run,
    same_bits,
    stream,
)
from offsupport.testing.fault_checks import Faulty
from offsupport.testing.networks import CLASSES, IMAGE, toy_images

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
    adapter = case.wrap()
    huge = torch.full((20, *IMAGE), 3e38)
    mixed = huge.clone()
    mixed[:, 0, 0, 0] = math.inf
    for x in (huge, -huge, mixed):
        (logits,) = run(adapter, [x])
        promise(bool(logits.isfinite().all()), "A sample near the largest float gives non-finite logits.")


def check_absurd(case: Case) -> None:
    """After finite but absurd batches, predictions are finite and as good as without, or a collapse was counted."""
    for window in (0, 32):
        _check_absurd(case.wrap(window=window))


def _check_absurd(adapter: Adapter) -> None:
    run(adapter, stream(8, size=32))
    later = [toy_images(64, seed=777 + i) for i in range(12)]
    expected = _error(copy.deepcopy(adapter), later)
    absurd = {"zeros": 0.0, "a constant": 0.5, "1e30": 1e30, "-1e30": -1e30}
    for name, value in absurd.items():
        shaken = copy.deepcopy(adapter)
        run(shaken, [torch.full((32, *IMAGE), value)])
        error = _error(shaken, later)
        promise(
            error <= expected + TOLERANCE or shaken.events["collapse"] > 0,
            f"A batch of {name} raises the later error from {expected:.3f} to {error:.3f} and no collapse is counted.",
        )


def check_window(case: Case) -> None:
    """With ``window=N`` past images fill batches up, and one step is made per N new images."""
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
