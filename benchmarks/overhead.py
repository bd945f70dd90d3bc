"""What a method costs beside the passes through the network that its mathematics needs.

For each method one network (ResNet-18, CIFAR stem; for ``foa`` a small vision transformer) is run twice: wrapped by
``offsupport.adapt``, and bare, as the forward and backward passes alone, written plainly below, with the same
``requires_grad`` flags and the same batch-norm statistics. Optimiser, filters, views, guard, snapshot and collapse
monitor are what the ratio shows. A method with ``+sc`` is compared with the method without it, wrapped as well;
``over`` says what a ratio is over.

All sides take turns in one process, in an order that rotates from round to round, so that other load on the machine
falls on all of them alike. ``ratio`` is the ratio of the median times over the rounds, ``ratio_paired`` the median of
the ratios within a round, ``ratio_min`` the ratio of the fastest calls, and ``ratio_cpu`` the ratio of the medians of
processor time, which other load disturbs least.

Run: ``python benchmarks/overhead.py [--json] [--width 16] [--batch 128] [--rounds 30] [--threads 1] [--methods a,b]``
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import offsupport
from offsupport.core.progress import progress
from offsupport.methods import Adapter
from offsupport.nn import WithProjection, mae, resnet18, with_rotation_head
from offsupport.nn.inspect import find_head
from offsupport.nn.projected import projection_head

Passes = Callable[[nn.Module, Tensor], None]


def entropy_loss(logits: Tensor) -> Tensor:
    """Return the mean entropy of the predictions, for a backward pass to start from."""
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1).mean()


@torch.no_grad()
def forward(net: nn.Module, x: Tensor) -> None:
    """Run one forward pass."""
    net(x)


def forward_backward(net: nn.Module, x: Tensor) -> None:
    """Run one forward and one backward pass."""
    entropy_loss(net(x)).backward()
    net.zero_grad()


def twice(net: nn.Module, x: Tensor) -> None:
    """Run two forward and two backward passes, as a sharpness-aware step needs."""
    forward_backward(net, x)
    forward_backward(net, x)


@functools.lru_cache(maxsize=8)
def frozen(net: nn.Module) -> nn.Module:
    """Return a copy whose parameters need no gradient, as a teacher's."""
    return copy.deepcopy(net).requires_grad_(False)


def teacher_and_student(net: nn.Module, x: Tensor) -> None:
    """Run seven passes of a teacher, one of them back to its input alone, and two of a student, back and forth."""
    teacher = frozen(net)
    for _ in range(6):
        forward(teacher, x)
    image = x.clone().requires_grad_()
    torch.autograd.grad(entropy_loss(teacher(image)), image)
    twice(net, x)


def copies_of_each(net: nn.Module, x: Tensor) -> None:
    """Run a forward and a backward pass over 32 copies of each image, and a forward pass of the image."""
    for image in x[:, None]:
        forward_backward(net, image.repeat(32, 1, 1, 1))
        forward(net, image)


def scored_after(net: nn.Module, x: Tensor) -> None:
    """Run one forward and one backward pass as in training, and one forward pass as in evaluation."""
    forward_backward(net.train(), x)
    forward(net.eval(), x)


def views_and_scored_after(net: nn.Module, x: Tensor) -> None:
    """Run two views of each image and the images themselves, back and forth, and a forward pass that scores."""
    loss = entropy_loss(net(torch.cat([x, x]))) + entropy_loss(net(x))
    loss.backward()
    net.zero_grad()
    forward(net, x)


def memory_of_64(net: nn.Module, x: Tensor) -> None:
    """Run the batch, and for every 64 images of it 64 back and forth."""
    forward(net, x)
    for part in torch.split(x, 64):
        forward_backward(net, part)


def memory_of_64_by_teacher(net: nn.Module, x: Tensor) -> None:
    """Run the batch, and for every 64 images of it a teacher on 64 and a student on 64, back and forth."""
    memory_of_64(net, x)
    for part in torch.split(x, 64):
        forward(net, part)


def source_teacher_student(net: nn.Module, x: Tensor) -> None:
    """Run the batch by two networks, and by a third one back and forth."""
    forward(net, x)
    forward(net, x)
    forward_backward(net, x)


def teacher_and_two_views(net: nn.Module, x: Tensor) -> None:
    """Run the batch by a teacher, and by a student twice, as images and as views, back and forth."""
    forward(frozen(net), x)
    loss = entropy_loss(net(x)) + entropy_loss(net(x))
    loss.backward()
    net.zero_grad()


def and_pieces(net: nn.Module, x: Tensor) -> None:
    """Run the batch back and forth, and once more without."""
    forward_backward(net, x)
    forward(net, x)


def memory_of_64_with_anchor(net: nn.Module, x: Tensor) -> None:
    """Run what a teacher's memory takes, and the source model on each 64 of it."""
    memory_of_64_by_teacher(net, x)
    for part in torch.split(x, 64):
        forward(net, part)


def batch_and_views(net: nn.Module, x: Tensor) -> None:
    """Run the batch and views of it, back and forth together."""
    loss = entropy_loss(net(x)) + entropy_loss(net(x))
    loss.backward()
    net.zero_grad()


def views_of_teacher_and_student(net: nn.Module, x: Tensor) -> None:
    """Run four passes of views and one that scores; one view goes back."""
    for _ in range(3):
        forward(net, x)
    forward_backward(net, x)
    forward(net, x)


def candidates(net: nn.Module, x: Tensor) -> None:
    """Run the batch under 27 candidates and the best so far."""
    for _ in range(28):
        forward(net, x)


def turns_and_scored_after(net: nn.Module, x: Tensor) -> None:
    """Run as many turned copies as there are images, back from the rotation head, and the images."""
    entropy_loss(net.both(x)[1]).backward()
    net.zero_grad()
    forward(net, x)


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table: a method, and the passes it cannot do without.

    Args:
        name: What the row is called.
        method: What ``adapt`` is given.
        bare: The passes.
        options: Hyper-parameters that keep the filters open, so that no step is skipped.
        source: Whether the method is given source statistics.
        images: How many images of a batch it is given; None for all.
        over: The method on the other side, in place of the bare passes.
        extra: Hyper-parameters that only the method has, and not the one on the other side.
        transformer: Whether the network is a vision transformer, which the method asks for.
    """

    name: str
    method: str
    bare: Passes
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: bool = False
    images: int | None = None
    over: str | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    transformer: bool = False


# A learning rate that leaves the network as it is: every round then does the same work.
STEP = {"lr": 1e-8}
OPEN = {**STEP, "margin": 1.1}
CASES = (
    Case("source", "source", forward),
    Case("bn", "bn", forward),
    Case("bn, blended", "bn", forward, {"statistics": "blend"}),
    Case("tent", "tent", forward_backward, STEP),
    Case("shot", "shot", forward_backward, STEP),
    Case("shot, pseudo-labels", "shot", forward_backward, {**STEP, "pseudo_weight": 0.3}),
    Case("eata, no source", "eata", forward_backward, {**OPEN, "redundancy": 1.1}),
    Case("eata", "eata", forward_backward, {**OPEN, "redundancy": 1.1}, source=True),
    Case("sar", "sar", twice, {**OPEN, "reset_below": 0.0}),
    Case("memo, 4 images", "memo", copies_of_each, STEP, images=4),
    Case("tesla", "tesla", teacher_and_student, STEP),
    Case("tesla-s", "tesla-s", teacher_and_student, STEP, source=True),
    Case("ttac", "ttac", scored_after, {**STEP, "confidence": 0.0, "class_min": 1}, source=True),
    Case("tttpp", "tttpp", views_and_scored_after, STEP, source=True),
    Case("lame", "lame", forward),
    Case("t3a", "t3a", forward),
    Case("neo", "neo", forward, source=True),
    Case("rpl", "rpl", forward_backward, STEP),
    Case("rdumb", "rdumb", forward_backward, {**OPEN, "redundancy": 1.1}),
    Case("roid, no views", "roid", forward_backward, {**STEP, "consistency": False}),
    Case("roid", "roid", batch_and_views, {**STEP, "weighting": False}),
    Case("cmf, no views", "cmf", forward_backward, {**STEP, "consistency": False}),
    Case("deyo", "deyo", and_pieces, {**OPEN, "drop": -1.0}),
    Case("note", "note", memory_of_64, STEP),
    Case("rotta", "rotta", memory_of_64_by_teacher, STEP),
    Case("petta", "petta", memory_of_64_with_anchor, STEP, source=True),
    Case("adacontrast", "adacontrast", views_of_teacher_and_student, {**STEP, "bank": 1024, "queue": 1024}),
    Case("foa", "foa", candidates, source=True, transformer=True),
    Case("cotta, no views", "cotta", source_teacher_student, {**STEP, "sure": 0.0}),
    Case("actmad", "actmad", scored_after, STEP, source=True),
    Case("rmt", "rmt", teacher_and_two_views, STEP, source=True),
    Case("ttt, online", "ttt", turns_and_scored_after, {**STEP, "online": True, "copies": 128}),
    *(
        Case(f"tent+sc, rank {r}", "tent+sc", forward_backward, STEP, over="tent", extra={"rank": r})
        for r in (4, 16, 64)
    ),
    Case("shot+sc", "shot+sc", forward_backward, STEP, over="shot"),
    Case("tesla+sc", "tesla+sc", teacher_and_student, STEP, over="tesla"),
    Case("tesla-s+sc", "tesla-s+sc", teacher_and_student, STEP, source=True, over="tesla-s"),
)
WARM_UP = 2
EXPECTED: dict[Passes, tuple[int, int]] = {
    forward: (1, 0),
    forward_backward: (1, 1),
    twice: (2, 2),
    teacher_and_student: (9, 3),
    copies_of_each: (8, 4),
    scored_after: (2, 1),
    views_and_scored_after: (3, 1),
    memory_of_64: (3, 2),
    memory_of_64_by_teacher: (5, 2),
    source_teacher_student: (3, 1),
    teacher_and_two_views: (3, 1),
    turns_and_scored_after: (2, 1),
    and_pieces: (2, 1),
    memory_of_64_with_anchor: (7, 2),
    batch_and_views: (2, 1),
    views_of_teacher_and_student: (5, 1),
    candidates: (27, 0),  # and from the second batch on the best so far
}


def bare_network(model: nn.Module, adapted: Adapter) -> nn.Module:
    """Copy ``model`` with the gradient flags and the batch-norm statistics of ``adapted``."""
    net = copy.deepcopy(model).eval()
    for plain, wrapped in zip(net.parameters(), adapted.model.parameters(), strict=True):
        plain.requires_grad_(wrapped.requires_grad)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d) and adapted.statistics_policy.kind in ("batch", "blend"):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    return net


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one call, on the wall clock and on the processor."""

    wall: float
    cpu: float


def timed(call: Callable[[], object]) -> Timing:
    """Time one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def measure(width: int, batch: int, rounds: int, only: list[str]) -> list[dict[str, Any]]:
    """Return one row per case; of some methods alone where these are named."""
    cases = [case for case in CASES if not only or case.method in only]
    torch.manual_seed(0)
    data = [torch.rand(batch, 3, 32, 32) for _ in range(4)]
    models = {False: network(width, data[0]), True: mae("tiny/4", classes=10, head="linear").eval()}
    adapted = [make(case, models[case.transformer], data) for case in cases]
    others = [
        other_side(case, models[case.transformer], wrapped, data) for case, wrapped in zip(cases, adapted, strict=True)
    ]
    times: list[list[tuple[Timing, Timing]]] = [[] for _ in cases]
    with progress("overhead", rounds + WARM_UP) as advance:
        for r in range(rounds + WARM_UP):
            x, turn, first = data[r % len(data)], r % len(cases), r % 2
            for i in (*range(turn, len(cases)), *range(turn)):
                given = x[: cases[i].images]
                sides = (functools.partial(adapted[i], given), functools.partial(others[i], given))
                pair = {side: timed(sides[side]) for side in (first, 1 - first)}
                times[i].append((pair[0], pair[1]))
            advance()
    for case, wrapped in zip(cases, adapted, strict=True):
        check(case, wrapped, rounds + WARM_UP)
    return [row(case, pairs[WARM_UP:]) for case, pairs in zip(cases, times, strict=True)]


def network(width: int, x: Tensor) -> nn.Module:
    """Return the network, with the heads that ``tttpp`` and ``ttt`` need and no other method runs."""
    body = resnet18(width=width)
    features = find_head(body)[1].get_parameter("weight").shape[1]
    projected = WithProjection(body, projection_head(features, 128))
    return spread(with_rotation_head(projected, "backbone.layer3").eval(), x)


@torch.no_grad()
def spread(model: nn.Module, x: Tensor) -> nn.Module:
    """Let a random network predict all classes rather than one, so that methods with work per class have it to do."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # the statistics of this batch
    model.train()(x)
    bias = find_head(model)[1].get_parameter("bias")
    bias -= model.eval()(x).mean(0)
    return model


def make(case: Case, model: nn.Module, data: list[Tensor]) -> Adapter:
    """Wrap the network."""
    source = offsupport.source_stats(model, data[:2], method=case.method) if case.source else None
    adapted: Adapter = offsupport.adapt(model, case.method, source=source, **case.options, **case.extra)
    return adapted


def other_side(case: Case, model: nn.Module, adapted: Adapter, data: list[Tensor]) -> Callable[[Tensor], object]:
    """Return what the method is compared with: its bare passes, or another method."""
    if case.over is None:
        return functools.partial(case.bare, bare_network(model, adapted))
    return make(dataclasses.replace(case, method=case.over, extra={}), model, data)


def check(case: Case, adapted: Adapter, calls: int) -> None:
    """Stop when a step was left out: a ratio against passes that were not made says nothing."""
    made = (adapted.passes["forward"] // calls, adapted.passes["backward"] // calls)
    if made != EXPECTED[case.bare]:
        sys.exit(f"{case.name}: {made} forward and backward passes per batch, not {EXPECTED[case.bare]}")


def row(case: Case, pairs: list[tuple[Timing, Timing]]) -> dict[str, Any]:
    """Summarise the timings of one case and of what it is over."""
    ours, bare = [[timing.wall for timing in side] for side in zip(*pairs, strict=True)]
    ours_cpu, bare_cpu = [statistics.median(timing.cpu for timing in side) for side in zip(*pairs, strict=True)]
    return {
        "method": case.name,
        "over": case.over or "bare passes",
        "seconds": statistics.median(ours),
        "bare_seconds": statistics.median(bare),
        "ratio": statistics.median(ours) / statistics.median(bare),
        "ratio_paired": statistics.median(a / b for a, b in zip(ours, bare, strict=True)),
        "min_seconds": min(ours),
        "min_bare_seconds": min(bare),
        "ratio_min": min(ours) / min(bare),
        "cpu_seconds": ours_cpu,
        "bare_cpu_seconds": bare_cpu,
        "ratio_cpu": ours_cpu / bare_cpu,
        "passes": dict(zip(("forward", "backward"), EXPECTED[case.bare], strict=True)),
        "rounds": len(pairs),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage of the ResNet-18")
    parser.add_argument("--batch", type=int, default=128, help="images per batch")
    parser.add_argument("--rounds", type=int, default=30, help="timed calls of every side")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--methods", default="", help="only these, with commas between them")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # that eata without source is ETA, that a random network predicts one class
    only = [name for name in arguments.methods.split(",") if name]
    rows = measure(arguments.width, arguments.batch, arguments.rounds, only)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'method':<22}{'over':<14}{'seconds':>10}{'over':>10}{'ratio':>8}{'paired':>8}{'fastest':>9}{'cpu':>8}")
    for r in rows:
        print(
            f"{r['method']:<22}{r['over']:<14}{r['seconds']:>10.4f}{r['bare_seconds']:>10.4f}"
            f"{r['ratio']:>8.3f}{r['ratio_paired']:>8.3f}{r['ratio_min']:>9.3f}{r['ratio_cpu']:>8.3f}"
        )


if __name__ == "__main__":
    main()
