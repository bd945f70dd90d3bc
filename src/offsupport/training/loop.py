"""The loop: batches, steps and epochs, from any epoch on, the same bits whether or not it was interrupted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.training.objectives import Objective
from offsupport.training.recipe import Recipe
from offsupport.training.schedules import pace
from offsupport.training.views import View, make_view, resized, side_at

Log = list[dict[str, Any]]


@dataclasses.dataclass
class Progress:
    """Everything that changes during training; between two epochs it is all a run consists of."""

    objective: Objective
    optimizer: torch.optim.SGD
    generator: torch.Generator
    epoch: int = 0
    log: Log = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W) in uint8 and their labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these rows as float images in [0, 1], and their labels."""
        return self.images[rows].float().div_(255), self.labels[rows]


def begin(recipe: Recipe, objective: Objective, seed: int) -> Progress:
    """Return a run at its start."""
    if recipe.channels_last:
        objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learnt = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(
        learnt, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov
    )
    return Progress(objective, optimizer, torch.Generator().manual_seed(seed))


def epochs(
    recipe: Recipe, run: Progress, train: Examples, held_out: Examples, advance: Callable[..., None] = lambda: None
) -> Iterator[dict[str, Any]]:
    """Train epoch by epoch, and yield the line of the log after each; what happens in between is the caller's.

    Args:
        recipe: The settings.
        run: Where the run stands; changed in place.
        train: What is trained on.
        held_out: What accuracy is measured on; may be empty.
        advance: Called after each epoch.
    """
    while run.epoch < recipe.epochs and not _reached(recipe, run.log):
        started = time.monotonic()
        line = {"epoch": run.epoch + 1, **_epoch(recipe, run, train)}
        if len(held_out):
            line["held_out_accuracy"] = accuracy(run.objective.model, held_out)
        line["seconds"] = round(time.monotonic() - started, 2)
        run.epoch += 1
        run.log.append(line)
        advance()
        yield line


def _reached(recipe: Recipe, log: Log) -> bool:
    return bool(log) and recipe.stop_at is not None and log[-1]["held_out_accuracy"] >= recipe.stop_at


def _epoch(recipe: Recipe, run: Progress, train: Examples) -> dict[str, Any]:
    run.objective.train()
    steps = len(train) // recipe.batch_size
    side = side_at(recipe, run.epoch, train.images.shape[-1])
    view = make_view(recipe)
    order = torch.randperm(len(train), generator=run.generator)[: steps * recipe.batch_size]
    total, right = 0.0, 0
    for step, rows in enumerate(torch.split(order, recipe.batch_size)):
        rate = pace(recipe, run.epoch * steps + step, steps)
        run.optimizer.param_groups[0].update(rate._asdict())
        x, labels = train.batch(rows)
        views = [_prepared(recipe, x, view, side, run.generator) for _ in range(run.objective.views)]
        loss = run.objective(views, labels)
        run.optimizer.zero_grad()
        torch.autograd.backward(loss.value)
        run.optimizer.step()
        total += float(loss.value.detach())
        right += int((loss.logits.argmax(1) == labels).sum())
    return {"side": side, "lr": rate.lr, "loss": total / steps, "train_accuracy": right / len(order)}


def _prepared(recipe: Recipe, x: Tensor, view: View, side: int, generator: torch.Generator) -> Tensor:
    varied = resized(view(x, generator), side)
    return varied.contiguous(memory_format=torch.channels_last) if recipe.channels_last else varied


@torch.no_grad()
def accuracy(model: nn.Module, examples: Examples, batch_size: int = 250) -> float:
    """Return the share of examples a model gets right, in evaluation mode."""
    was_training = model.training
    model.eval()
    right = 0
    for rows in torch.split(torch.arange(len(examples)), batch_size):
        x, labels = examples.batch(rows)
        right += int((model(x).argmax(1) == labels).sum())
    model.train(was_training)
    return right / len(examples)
