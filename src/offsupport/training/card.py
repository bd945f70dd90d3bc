"""What a finished run leaves: the weights, and a card that says where they come from and how good they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from offsupport import __version__
from offsupport.core.checkpoints import save_tensors, tensors_sha256
from offsupport.core.files import sha256_file, write_json
from offsupport.data import Dataset
from offsupport.functional import wilson
from offsupport.training.loop import Examples, Run, correct
from offsupport.training.recipe import Recipe, recipe_name

WEIGHTS, CARD = "model.safetensors", "card.json"


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
    facts = {"network": recipe.network, "classes": len(train.classes), "normalization": recipe.dataset}
    save_tensors(out / WEIGHTS, weights, facts)
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
