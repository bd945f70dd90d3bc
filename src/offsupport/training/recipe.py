"""Recipes: everything the weights of a source model depend on, except the data, the seed and the number of threads."""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from offsupport.core.config import build
from offsupport.core.errors import ConfigError, nearest
from offsupport.core.settings import read_settings, require_mapping

Views = Literal["none", "shift", "shift-flip", "crop-flip", "simclr"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a source model is trained."""

    about: str
    """One line for people."""
    dataset: Literal["digits", "cifar10", "cifar100", "tiny100"]
    """What it is trained on."""
    network: str
    """Name of the architecture (``resnet18x0.25``)."""
    objective: str = "supervised"
    """What is minimised: ``supervised``, ``joint``, ``rotation``, ``moco``, ``probe``, ``mae``, ``mae-head``,
    ``mae-joint``."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the objective."""
    start: str | None = None
    """Recipe whose weights this one begins with; None for fresh ones."""
    held_out: int = 0
    """Training images kept apart: never trained on, and the only ones choices are made by."""
    epochs: int
    """Passes over the training images."""
    epoch_images: int | None = None
    """Images per epoch, drawn anew for each; None for all."""
    batch_size: int
    """Images per step."""
    lr: float
    """Largest learning rate."""
    schedule: Literal["one-cycle", "cosine", "warm-up"] = "one-cycle"
    """``one-cycle`` rises and falls with every step; ``cosine`` falls to a thousandth, epoch by epoch; ``warm-up``
    rises in the first tenth of the steps and then falls as a cosine to nothing."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Stochastic gradient descent, or Adam with decoupled weight decay and a second moment decay of 0.95."""
    momentum: float = 0.9
    """Momentum; the one-cycle schedule swings by 0.05 around it. First moment decay of AdamW, which does not swing."""
    nesterov: bool = True
    """Nesterov's momentum, of SGD."""
    weight_decay: float = 5e-4
    """Weight decay, of all parameters; with AdamW of all but vectors."""
    views: Views = "none"
    """How images are varied."""
    shift: int = 4
    """Largest shift in pixels, of the views that shift."""
    grow_from: int | None = None
    """Begin with images of this side and let them grow to their own during the first 60 % of the epochs."""
    channels_last: bool = True
    """Keep images and weights channels last, which is quicker on CPUs."""
    stop_at: float | str | None = None
    """End after the epoch that reaches this accuracy on the held-out images, or that of another recipe's result."""

    def settings(self) -> dict[str, Any]:
        """Return what differs from the defaults, except the words: two recipes with equal settings train alike.

        Cards and checkpoints hold these, so that a setting added later with a default leaves the old ones valid.
        """
        fields = [field for field in dataclasses.fields(self) if field.name != "about"]
        values = {f.name: getattr(self, f.name) for f in fields if getattr(self, f.name) != f.default}
        return {name: value for name, value in values.items() if value != {}}


def list_recipes() -> dict[str, str]:
    """Return the names of the recipes in the package and a line about each."""
    return {name: read_recipe(name).about for name in _shipped()}


def read_recipe(name: str) -> Recipe:
    """Return a recipe of the package by its name, or one from a YAML file by its path."""
    path = _shipped().get(name)
    if path is None:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml"):
            raise ConfigError(f"There is no recipe {name!r}.", f"{nearest(name, _shipped())} Or give a .yaml file.")
    return make_recipe(read_settings(path), f"recipe {recipe_name(name)!r}")


def recipe_name(name: str) -> str:
    """Return the name of a recipe given by name or by path."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else name


def make_recipe(values: Any, owner: str) -> Recipe:
    """Return the recipe of these settings; unknown, missing and senseless ones are errors that say which."""
    recipe = build(Recipe, require_mapping(values, f"The {owner}"), owner)
    positive = ("epochs", "epoch_images", "batch_size", "lr", "shift", "grow_from")
    for name in (*positive, "held_out", "momentum", "weight_decay"):
        value = getattr(recipe, name)
        if value is not None and (value < 0 or (value == 0 and name in positive)):
            bound = "above 0" if name in positive else "at least 0"
            raise ConfigError(f"Setting {name!r} of the {owner} is {value}.", f"It must be {bound}.")
    if recipe.stop_at is not None and not recipe.held_out:
        raise ConfigError(f"The {owner} stops at a held-out accuracy, and holds nothing out.", "Set held_out.")
    return recipe


def _shipped() -> dict[str, Path]:
    folder = Path(str(resources.files("offsupport.training") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
