"""Learning rate and momentum as functions of the step, so that a resumed run needs no scheduler's state."""

from __future__ import annotations

import math
from typing import NamedTuple

from offsupport.training.recipe import Recipe

RISE = 0.3
"""Share of the steps in which the one-cycle rate rises."""
START_DIVISOR, END_DIVISOR = 25, 1e4
SWING = 0.05


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
    slow, fast = round(recipe.momentum + SWING, 12), round(recipe.momentum - SWING, 12)
    top, last = RISE * total - 1, total - 1
    if step <= top:
        return Pace(_cosine(first, recipe.lr, step / top), _cosine(slow, fast, step / top))
    done = (step - top) / (last - top)
    return Pace(_cosine(recipe.lr, first / END_DIVISOR, done), _cosine(fast, slow, done))


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)
