"""The source model of the demonstration: a small residual network on the embedded digits."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from offsupport.data import load
from offsupport.training.loop import begin, epochs
from offsupport.training.recipe import read_recipe
from offsupport.training.run import ALONE, fresh_network, fresh_objective, split

RECIPE = "digits-small"
EPOCHS = 12
CLASSES = 10


def digits_network() -> nn.Module:
    """Return the untrained network, with one block per stage; it takes images in [0, 1]."""
    return fresh_network(read_recipe(RECIPE), CLASSES)


def digits_model(seed: int = 0, advance: Callable[[], None] = lambda: None) -> nn.Module:
    """Train the digits classifier: some seconds on one core, the same weights for the same seed and thread count.

    Args:
        seed: Seed of initialisation, order and augmentation.
        advance: Called after each of :data:`EPOCHS` epochs.
    """
    return train_on_the_spot(RECIPE, seed, advance)


def train_on_the_spot(name: str, seed: int = 0, advance: Callable[[], None] = lambda: None) -> nn.Module:
    """Train a recipe on the digits, and the one it starts from, without a folder.

    Args:
        name: Name of the recipe.
        seed: Seed of initialisation, order and augmentation.
        advance: Called after each epoch of the recipe itself.
    """
    recipe = read_recipe(name)
    objective = fresh_objective(recipe, CLASSES, seed)
    if recipe.start is not None:
        objective.start_from(train_on_the_spot(recipe.start, seed).state_dict())
    run = begin(recipe, objective, seed, ALONE)
    parts = split(load(recipe.dataset, split="train"), recipe.held_out)
    for _ in epochs(recipe, run, *parts, advance=lambda *_: advance()):
        pass
    return run.objective.model.eval()
