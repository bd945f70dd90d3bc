"""One training run from a recipe: data in, and a folder with checkpoint, log, weights and card out."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from offsupport import zoo
from offsupport.core.checkpoints import load_tensors
from offsupport.core.errors import ConfigError, DataMissingError
from offsupport.core.files import folder_lock, read_json, require_folder, write_text
from offsupport.core.seeds import derive_seed
from offsupport.data import Dataset, load
from offsupport.nn import build_network
from offsupport.training import checkpoint
from offsupport.training.card import CARD, WEIGHTS, write_model
from offsupport.training.loop import Examples, begin, epochs
from offsupport.training.objectives import Objective, make_objective
from offsupport.training.recipe import Recipe, read_recipe, recipe_name
from offsupport.training.team import Team

ALONE = Team()


def train(
    name: str,
    data: Path | str | None = None,
    out: Path | str | None = None,
    seed: int = 0,
    team: Team = ALONE,
    advance: Callable[..., None] = lambda *_: None,
) -> dict[str, Any]:
    """Train what a recipe says, or go on where the run in ``out`` stands, and return the card of the result.

    Args:
        name: Name of a recipe of the package, or path of a YAML file.
        data: Folder of the data; ``digits`` needs none.
        out: The run's folder; ``runs/train/NAME`` by default.
        seed: Of initialisation, order and views.
        team: The processes that share the work.
        advance: Called with the number of epochs done since the last call, and a few words.
    """
    recipe, out = read_recipe(name), require_folder(out or default_folder(name))
    if recipe.batch_size % team.size:
        raise ConfigError(
            f"A batch of {recipe.batch_size} cannot be shared by {team.size} processes.",
            "Start a number that divides it.",
        )
    dataset = load(recipe.dataset, data, split="train")
    identity = {"recipe": recipe.settings(), "seed": seed, "data": dataset.sha256}
    with folder_lock(out) if team.leads else contextlib.nullcontext():
        run = begin(recipe, _started(recipe, len(dataset.classes), seed, out), seed, team)
        checkpoint.resume(run, out, identity)
        team.wait()
        if run.epoch:
            advance(run.epoch, "done before")
        target = _target(recipe, out)
        for _ in epochs(recipe, run, *split(dataset, recipe.held_out), target, advance):
            if team.leads:
                checkpoint.save(run, out, identity)
                write_text(out / "log.jsonl", "".join(json.dumps(line) + "\n" for line in run.log))
        if team.leads:
            write_model(name, recipe, run, dataset, load(recipe.dataset, data), seed, out)
        team.wait()
    card: dict[str, Any] = read_json(out / CARD)
    return card


def default_folder(name: str) -> Path:
    """Return where a recipe is trained unless told otherwise; recipes that start from others look beside it."""
    return Path("runs/train") / recipe_name(name)


def fresh_objective(recipe: Recipe, classes: int, seed: int) -> Objective:
    """Return the objective of a recipe around a fresh network; the caller's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(f"{recipe.dataset} model", seed))
        return make_objective(recipe.objective, fresh_network(recipe, classes), recipe.options)


def fresh_network(recipe: Recipe, classes: int) -> nn.Module:
    """Return the untrained network of a recipe."""
    return build_network(recipe.network, classes, recipe.dataset)


def _started(recipe: Recipe, classes: int, seed: int, out: Path) -> Objective:
    """Return the objective at the beginning of a run, with the weights of the recipe it starts from."""
    objective = fresh_objective(recipe, classes, seed)
    if recipe.start is not None:
        weights, _ = load_tensors(find_result(recipe.start, out) / WEIGHTS)
        objective.start_from(weights)
    return objective


def _target(recipe: Recipe, out: Path) -> float:
    """Return the held-out accuracy a run ends at."""
    if not isinstance(recipe.stop_at, str):
        return math.inf if recipe.stop_at is None else recipe.stop_at
    accuracy = read_json(find_result(recipe.stop_at, out) / CARD)["held_out_accuracy"]
    if accuracy is None:
        raise ConfigError(f"{recipe.stop_at} has no held-out accuracy to stop at.", "Name a classifier's recipe.")
    return float(accuracy)


def find_result(name: str, out: Path) -> Path:
    """Return the folder of another recipe's result: its run beside the folder ``out``, or else in the zoo."""
    places = [out.parent / name, zoo.folder(name)]
    for folder in places:
        if (folder / CARD).is_file():
            return folder
    raise DataMissingError(
        f"This recipe builds on {name}, which is neither in the zoo nor at {places[0]}.",
        f"Train it first: offsupport train {name} --out {places[0]}",
    )


def split(dataset: Dataset, held_out: int) -> tuple[Examples, Examples]:
    """Return what is trained on, and the held-out rest: the same images for every recipe on this data."""
    if held_out >= len(dataset):
        raise ConfigError(f"{held_out} of {len(dataset)} images are held out.", "Leave some to train on.")
    rows = np.random.default_rng(derive_seed("held out", dataset.name)).permutation(len(dataset))
    return Examples.of(dataset, np.sort(rows[held_out:])), Examples.of(dataset, np.sort(rows[:held_out]))
