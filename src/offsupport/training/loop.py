"""The loop: batches, steps and epochs, from any epoch on, the same bits whether or not it was interrupted."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offsupport.data import Dataset
from offsupport.training.objectives import Objective
from offsupport.training.recipe import Recipe
from offsupport.training.schedules import pace
from offsupport.training.team import Team
from offsupport.training.views import View, make_view, resized, side_at

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


@dataclasses.dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W) in uint8 and their labels, in memory."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, dataset: Dataset, rows: np.ndarray[Any, Any] | None = None) -> Examples:
        """Return rows of a data set, or all of them."""
        rows = np.arange(len(dataset)) if rows is None else rows
        pixels = torch.from_numpy(dataset.images(rows)).permute(0, 3, 1, 2).contiguous()
        return cls(pixels, torch.from_numpy(dataset.labels[rows]))

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return these rows as float images in [0, 1], and their labels."""
        return self.images[rows].float().div_(255), self.labels[rows]


def begin(recipe: Recipe, objective: Objective, seed: int, team: Team) -> Run:
    """Return a run at its start."""
    objective.to(team.device)
    if recipe.channels_last:
        objective.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Run(objective, _optimizer(recipe, objective), torch.Generator().manual_seed(seed), team)


def _optimizer(recipe: Recipe, objective: Objective) -> torch.optim.Optimizer:
    learnt = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    decay = recipe.weight_decay
    if recipe.optimizer == "adamw":
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
    return varied.contiguous(memory_format=torch.channels_last) if recipe.channels_last else varied


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
