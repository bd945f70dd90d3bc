"""The loop: the pace of the steps, the views of the images, then batches, steps and epochs.

It starts from any epoch and gives the same bits whether or not it was interrupted: all randomness of an epoch comes
from one generator whose state is saved, and everything else is a function of the step.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from offsupport.augment import flip, random_resized_crop, shifted, simclr_view
from offsupport.nn.inspect import best_layout
from offsupport.training.objectives import Examples, Objective
from offsupport.training.recipe import Recipe
from offsupport.training.team import Team

# Learning rate and momentum are functions of the step, so that a resumed run needs no scheduler's state.


RISE = 0.3
"""Share of the steps in which the one-cycle rate rises."""
START_DIVISOR, END_DIVISOR = 25, 1e4
"""The rate begins at its largest over the one, and ends at that over the other: torch's defaults."""
SWING = 0.05
"""How far the momentum of one cycle goes from the recipe's, against the rate: fast steps carry less along."""


class Pace(NamedTuple):
    """What SGD uses in one step."""

    lr: float
    momentum: float


def pace(recipe: Recipe, step: int, steps_per_epoch: int) -> Pace:
    """Return the learning rate and momentum of a step, counted from 0 over all epochs."""
    if recipe.schedule == "warm-up":
        return Pace(_warm_up(recipe.lr, step, recipe.epochs * steps_per_epoch), recipe.momentum)
    if recipe.schedule == "cosine":
        floor = recipe.lr * 1e-3
        return Pace(_cosine(recipe.lr, floor, step // steps_per_epoch / recipe.epochs), recipe.momentum)
    return _one_cycle(recipe, step, recipe.epochs * steps_per_epoch)


def _warm_up(lr: float, step: int, total: int) -> float:
    """He et al. (2022): linearly up in a tenth of the steps, then half a cosine down to nothing."""
    top = max(1, total // 10)
    return lr * (step + 1) / top if step < top else _cosine(lr, 0.0, (step - top) / (total - top))


def _one_cycle(recipe: Recipe, step: int, total: int) -> Pace:
    """Smith and Topin (2018), as in torch's OneCycleLR: up in 30 % of the steps, then down to nearly nothing."""
    first = recipe.lr / START_DIVISOR
    # 0.9 + 0.05 is not 0.95 in floating point, and torch's scheduler is given 0.95.
    slow, fast = round(recipe.momentum + SWING, 12), round(recipe.momentum - SWING, 12)
    top, last = RISE * total - 1, total - 1  # of steps counted from 0
    if step <= top:
        return Pace(_cosine(first, recipe.lr, step / top), _cosine(slow, fast, step / top))
    done = (step - top) / (last - top)
    return Pace(_cosine(recipe.lr, first / END_DIVISOR, done), _cosine(fast, slow, done))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)


# How training images are varied: whole batches at once, every draw from the generator that is given.


View = Callable[[Tensor, torch.Generator], Tensor]
CROP, SHAPES = (0.2, 1.0), (3 / 4, 4 / 3)
"""Area and shape of random crops, as published."""


def make_view(recipe: Recipe) -> View:
    """Return what varies a batch of images (N, C, H, W) in [0, 1]."""
    views: dict[str, View] = {
        "none": lambda x, _: x,
        "shift": lambda x, generator: shifted(x, recipe.shift, generator),
        "shift-flip": lambda x, generator: flip(shifted(x, recipe.shift, generator), generator),
        "crop-flip": lambda x, generator: flip(random_resized_crop(x, CROP, SHAPES, generator), generator),
        "simclr": lambda x, generator: simclr_view(x, generator, CROP),
    }
    return views[recipe.views]


def resized(x: Tensor, side: int) -> Tensor:
    """Return the images at a smaller side, averaged rather than picked; those of that side as they are."""
    if x.shape[-1] == side:
        return x
    return nn.functional.interpolate(x, (side, side), mode="bilinear", antialias=True)


def side_at(recipe: Recipe, epoch: int, full: int) -> int:
    """Return the side of the images in an epoch: multiples of 4 from ``grow_from`` up to the full side."""
    if recipe.grow_from is None:
        return full
    done = min(1.0, epoch / (0.6 * recipe.epochs))
    return min(full, recipe.grow_from + int(done * (full - recipe.grow_from)) // 4 * 4)


# Steps and epochs.


Log = list[dict[str, Any]]


@dataclasses.dataclass
class Run:
    """Everything that changes during training; between two epochs it is all a run consists of."""

    objective: Objective
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    team: Team
    epoch: int = 0
    log: Log = dataclasses.field(default_factory=list)


def begin(recipe: Recipe, objective: Objective, seed: int, team: Team) -> Run:
    """Return a run at its start."""
    objective.to(team.device)
    if recipe.channels_last:
        objective.to(memory_format=best_layout(objective))  # type: ignore[call-overload]
    # A generator of the CPU whatever the device: order and views are then the same on all of them.
    return Run(objective, _optimizer(recipe, objective), torch.Generator().manual_seed(seed), team)


def _optimizer(recipe: Recipe, objective: Objective) -> torch.optim.Optimizer:
    learnt = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    decay = recipe.weight_decay
    if recipe.optimizer == "adamw":
        # Biases, scales of norm layers and single tokens are not decayed, as He et al. (2022) have it.
        groups: list[dict[str, Any]] = [{"params": [p for p in learnt if p.dim() > 1]}]
        groups.append({"params": [p for p in learnt if p.dim() <= 1], "weight_decay": 0.0})
        return torch.optim.AdamW(groups, lr=recipe.lr, betas=(recipe.momentum, 0.95), weight_decay=decay)
    return torch.optim.SGD(learnt, lr=recipe.lr, momentum=recipe.momentum, weight_decay=decay, nesterov=recipe.nesterov)


def epochs(
    recipe: Recipe,
    run: Run,
    train: Examples,
    held_out: Examples,
    target: float = math.inf,
    advance: Callable[..., None] = lambda *_: None,
) -> Iterator[dict[str, Any]]:
    """Train epoch by epoch, and yield the line of the log after each; what happens in between is the caller's.

    Args:
        recipe: The settings.
        run: Where the run stands; changed in place.
        train: What is trained on.
        held_out: What accuracy is measured on; may be empty.
        target: Held-out accuracy that is enough.
        advance: Called after each epoch, with 1 and a few words.
    """
    call = run.team.wrap(run.objective)
    train = run.objective.prepare(train)
    while run.epoch < recipe.epochs and _held_out_accuracy(run.log) < target:
        started = time.monotonic()
        line = {"epoch": run.epoch + 1, **_epoch(recipe, run, call, train)}
        if len(held_out) and run.objective.classifies:
            line["held_out_accuracy"] = correct(run.objective.model, held_out) / len(held_out)
        line["seconds"] = round(time.monotonic() - started, 2)
        run.epoch += 1
        run.log.append(line)
        scored = f"held-out accuracy {line['held_out_accuracy']:.1%}" if "held_out_accuracy" in line else ""
        advance(1, f"loss {line['loss']:.3f} {scored}".rstrip())
        yield line


def _held_out_accuracy(log: Log) -> float:
    return float(log[-1].get("held_out_accuracy", -math.inf)) if log else -math.inf


def _epoch(recipe: Recipe, run: Run, call: nn.Module, train: Examples) -> dict[str, Any]:
    run.objective.train()
    steps = min(len(train), recipe.epoch_images or len(train)) // recipe.batch_size
    side = side_at(recipe, run.epoch, train.images.shape[-1])
    view = make_view(recipe)
    # Whole batches only: statistics of a small last one would be noise. Another draw leaves out others.
    order = torch.randperm(len(train), generator=run.generator)[: steps * recipe.batch_size]
    total, right = 0.0, 0.0
    for step, rows in enumerate(torch.split(order, recipe.batch_size)):
        rate = pace(recipe, run.epoch * steps + step, steps)
        for group in run.optimizer.param_groups:
            group.update(rate._asdict())
        x, labels = train.batch(rows)
        views = [_prepared(recipe, run, x, view, side) for _ in range(run.objective.views)]
        loss = call(views, run.team.share(labels))
        run.optimizer.zero_grad()
        torch.autograd.backward(loss.value)
        run.optimizer.step()
        run.objective.after_step()
        total += float(loss.value.detach())
        right += float(loss.right.sum())
    total, right = run.team.total(total, right)
    mean = total / (steps * run.team.size)
    return {"side": side, "lr": rate.lr, "loss": mean, "train_accuracy": right / len(order)}


def _prepared(recipe: Recipe, run: Run, x: Tensor, view: View, side: int) -> Tensor:
    varied = run.team.share(resized(view(x, run.generator), side))
    # A convolution runs with the channels last if its input is so, whatever its weights: both must be asked.
    return varied.contiguous(memory_format=best_layout(run.objective)) if recipe.channels_last else varied


@torch.no_grad()
def correct(model: nn.Module, examples: Examples, batch_size: int = 250) -> int:
    """Return how many examples a model gets right, in evaluation mode."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    right = 0
    for rows in torch.split(torch.arange(len(examples)), batch_size):
        x, labels = examples.batch(rows)
        right += int((model(x.to(device)).argmax(1).cpu() == labels).sum())
    model.train(was_training)
    return right
