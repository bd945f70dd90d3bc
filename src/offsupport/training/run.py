"""One training run from a recipe: data in, and a folder with checkpoint, log, weights and card out.

The folder is all there is of a run between two epochs: killed and started again, it goes on and ends with the bits of
one that was left alone.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offsupport import __version__, zoo
from offsupport.core.checkpoints import load_tensors, save_tensors, tensors_sha256
from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.core.files import folder_lock, read_json, require_folder, sha256_file, write_json, write_text
from offsupport.core.ownership import require_absent
from offsupport.core.seeds import derive_seed
from offsupport.core.weights import require_names, require_values
from offsupport.data import Dataset, load
from offsupport.functional import wilson
from offsupport.nn import build_network
from offsupport.training.loop import Run, begin, correct, epochs
from offsupport.training.objectives import Examples, Objective, make_objective
from offsupport.training.recipe import Recipe, read_recipe, recipe_name
from offsupport.training.team import Team

WEIGHTS, CARD = "model.safetensors", "card.json"
CHECKPOINT = "checkpoint.safetensors"
LOG, CURVES = "log.jsonl", "curves.svg"
ALONE = Team()
"""One process that does all the work."""


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
    if team.leads and not (out / CHECKPOINT).exists():
        require_absent(out, (WEIGHTS, CARD, LOG, CURVES), "the training")
    # One lock for the team: the others share the folder with the process that holds it.
    with folder_lock(out) if team.leads else contextlib.nullcontext():
        run = begin(recipe, _started(recipe, len(dataset.classes), seed, out), seed, team)
        resume(run, out, identity)
        team.wait()  # nobody writes the checkpoint before everybody has read it
        if run.epoch:
            advance(run.epoch, "done before")
        target = _target(recipe, out)
        for _ in epochs(recipe, run, *split(dataset, recipe.held_out), target, advance):
            if team.leads:
                save(run, out, identity)
                write_text(out / LOG, "".join(json.dumps(line) + "\n" for line in run.log))
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
    kept_back = held_out_rows(dataset, held_out)
    rest = np.setdiff1d(np.arange(len(dataset)), kept_back)
    return Examples.of(dataset, rest), Examples.of(dataset, kept_back)


def held_out_rows(dataset: Dataset, held_out: int) -> npt.NDArray[np.int64]:
    """Return the rows of a training set that no recipe that holds so many out trains on, ascending."""
    if held_out >= len(dataset):
        raise ConfigError(f"{held_out} of {len(dataset)} images are held out.", "Leave some to train on.")
    # By the data set's name and not the run's seed: models of several seeds are compared on the same held-out images.
    rows = np.random.default_rng(derive_seed("held out", dataset.name)).permutation(len(dataset))
    return np.sort(rows[:held_out]).astype(np.int64)


# The state of a run on disk after each epoch: weights, momentum, generator and log in one safetensors file.


_KINDS = {"momentum": "momentum_buffer", "first": "exp_avg", "second": "exp_avg_sq", "steps": "step"}
"""What optimisers remember of a parameter, by its name in the file."""


def save(run: Run, folder: Path, identity: dict[str, Any]) -> None:
    """Write where the run stands, whole or not at all.

    Args:
        run: The run.
        folder: Its folder.
        identity: What must be equal for the run to be continued: recipe, seed, data.
    """
    tensors = {f"objective.{name}": value for name, value in run.objective.state_dict().items()}
    for kind, key in _KINDS.items():
        tensors |= {f"{kind}.{name}": value for name, value in _optimizer_state(run, key).items()}
    tensors["generator"] = run.generator.get_state()
    save_tensors(folder / CHECKPOINT, tensors, {"identity": identity, "epoch": run.epoch, "log": run.log})


def resume(run: Run, folder: Path, identity: dict[str, Any]) -> None:
    """Bring a fresh run to where the checkpoint in ``folder`` stands; without one it stays at its start."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return
    tensors, manifest = load_tensors(path)
    known = manifest.get("identity")
    if not isinstance(known, dict) or not {"epoch", "log"} <= set(manifest):
        raise FileError(f"{path} is no checkpoint of a training run.", "Remove it to start at the beginning.")
    if known != identity:
        changed = [key for key in identity if known.get(key) != identity[key]]
        raise FileError(
            f"{folder} holds a run with another {' and another '.join(changed)}.",
            "Continue it with what it was begun with, or give another folder.",
        )
    weights, own = _under("objective.", tensors), run.objective.state_dict()
    require_names(weights, own, str(path), "Remove it to start at the beginning.")
    require_values(weights, own, str(path), "this run", "Remove it to start at the beginning.")
    run.objective.load_state_dict(weights)
    for kind, key in _KINDS.items():
        values = _under(f"{kind}.", tensors)
        for name, parameter in run.objective.named_parameters():
            if name in values:
                # It lies in memory as its parameter does (channels last or not): kernels round by layout.
                like = parameter if values[name].shape == parameter.shape else values[name]
                run.optimizer.state[parameter][key] = torch.empty_like(like).copy_(values[name])
    run.generator.set_state(tensors["generator"])
    run.epoch, run.log = manifest["epoch"], manifest["log"]


def _optimizer_state(run: Run, key: str) -> dict[str, Tensor]:
    state = run.optimizer.state
    return {name: state[p][key] for name, p in run.objective.named_parameters() if key in state.get(p, {})}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


# What a finished run leaves: the weights, and a card that says where they come from and how good they are.


def write_model(name: str, recipe: Recipe, run: Run, train: Dataset, test: Dataset, seed: int, out: Path) -> None:
    """Write ``model.safetensors`` and ``card.json`` of a finished run: whoever finds the card finds its weights.

    Args:
        name: The recipe as it was given.
        recipe: Its settings.
        run: The finished run.
        train: What was trained on.
        test: What is measured on, once, now.
        seed: Of the run.
        out: Folder of the run.
    """
    weights = run.objective.model.state_dict()
    facts: dict[str, Any] = {"network": recipe.network, "classes": len(train.classes), "normalization": recipe.dataset}
    facts |= run.objective.facts()
    save_tensors(out / WEIGHTS, weights, facts)  # before the card, which says that they are there
    card = {
        "name": recipe_name(name),
        "about": recipe.about,
        **facts,
        "recipe": recipe.settings(),
        "seed": seed,
        "command": f"offsupport train {name} --data DATA --out OUT --seed {seed}",
        "threads": torch.get_num_threads(),
        "processes": run.team.size,
        "data": {
            "train_sha256": train.sha256,
            "test_sha256": test.sha256,
            "held_out": recipe.held_out,
            "trained_on": len(train) - recipe.held_out,
        },
        "test": _measured(run, test) if run.objective.classifies else None,
        "held_out_accuracy": run.log[-1].get("held_out_accuracy"),
        "epochs": run.epoch,
        "seconds": round(sum(line["seconds"] for line in run.log), 1),
        "log": run.log,
        "weights_sha256": tensors_sha256(weights),
        "file_sha256": sha256_file(out / WEIGHTS),
        "versions": {"offsupport": __version__, "torch": torch.__version__},
    }
    write_json(out / CARD, card)


def _measured(run: Run, test: Dataset) -> dict[str, Any]:
    right, n = correct(run.objective.model, Examples.of(test)), len(test)
    return {"accuracy": right / n, "ci95": list(wilson(right, n)), "n": n}
