"""One training run from a recipe: data in, and a folder with checkpoint, log, weights and card out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from offsupport.core.files import folder_lock, require_folder, write_text
from offsupport.core.seeds import derive_seed
from offsupport.data import Dataset, load
from offsupport.nn.architectures import build_network
from offsupport.training import checkpoint
from offsupport.training.card import write_model
from offsupport.training.loop import Examples, begin, epochs
from offsupport.training.objectives import Objective, Supervised
from offsupport.training.recipe import Recipe, read_recipe


def train(
    name: str,
    data: Path | str | None,
    out: Path | str,
    seed: int = 0,
    advance: Callable[..., None] = lambda: None,
) -> dict[str, Any]:
    """Train what a recipe says, or go on where the run in ``out`` stands, and return the card of the result.

    Args:
        name: Name of a recipe of the package, or path of a YAML file.
        data: Folder of the data; ``digits`` needs none.
        out: The run's folder.
        seed: Of initialisation, order and views.
        advance: Called after each epoch.
    """
    recipe, out = read_recipe(name), require_folder(out)
    dataset = load(recipe.dataset, data, split="train")
    identity = {"recipe": recipe.settings(), "seed": seed, "data": dataset.sha256}
    with folder_lock(out):
        run = begin(recipe, make_objective(recipe, len(dataset.classes), seed), seed)
        checkpoint.resume(run, out, identity)
        for _ in range(run.epoch):
            advance()
        for line in epochs(recipe, run, *split(dataset, recipe.held_out), advance=advance):
            checkpoint.save(run, out, identity)
            write_text(out / "log.jsonl", "".join(json.dumps(each) + "\n" for each in run.log))
        return write_model(name, recipe, run, dataset, load(recipe.dataset, data), seed, out)


def make_objective(recipe: Recipe, classes: int, seed: int) -> Objective:
    """Return the objective of a recipe around a fresh network; the caller's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(f"{recipe.dataset} model", seed))
        return Supervised(fresh_network(recipe, classes))


def fresh_network(recipe: Recipe, classes: int) -> nn.Module:
    """Return the untrained network of a recipe."""
    return build_network(recipe.network, classes, recipe.dataset)


def split(dataset: Dataset, held_out: int) -> tuple[Examples, Examples]:
    """Return what is trained on, and the held-out rest: the same images for every recipe on this data."""
    rows = np.arange(len(dataset))
    if held_out:
        rows = np.random.default_rng(derive_seed("held out", dataset.name)).permutation(len(dataset))
    return examples(dataset, np.sort(rows[held_out:])), examples(dataset, np.sort(rows[:held_out]))


def examples(dataset: Dataset, rows: np.ndarray[Any, Any]) -> Examples:
    """Return rows of a data set as tensors in memory."""
    pixels = torch.from_numpy(dataset.images(rows)).permute(0, 3, 1, 2).contiguous()
    return Examples(pixels, torch.from_numpy(dataset.labels[rows]))
