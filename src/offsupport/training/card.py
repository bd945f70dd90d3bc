"""What a finished run leaves: the weights, and a card that says where they come from and how good they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from offsupport import __version__
from offsupport.core.checkpoints import save_tensors, tensors_sha256
from offsupport.core.files import sha256_file, write_json
from offsupport.data import Dataset
from offsupport.functional import wilson
from offsupport.training.loop import Examples, Progress, accuracy
from offsupport.training.recipe import Recipe

WEIGHTS, CARD = "model.safetensors", "card.json"


def write_model(
    name: str, recipe: Recipe, run: Progress, train: Dataset, test: Dataset, seed: int, out: Path
) -> dict[str, Any]:
    """Write ``model.safetensors`` and ``card.json`` of a finished run, and return the card."""
    model = run.objective.model
    weights = model.state_dict()
    facts = {"network": recipe.network, "classes": len(train.classes), "normalization": recipe.dataset}
    save_tensors(out / WEIGHTS, weights, facts)
    pixels = torch.from_numpy(test.images(np.arange(len(test)))).permute(0, 3, 1, 2).contiguous()
    right = round(accuracy(model, Examples(pixels, torch.from_numpy(test.labels))) * len(test))
    card = {
        "name": Path(name).stem if name.endswith((".yaml", ".yml")) else name,
        "about": recipe.about,
        **facts,
        "recipe": recipe.settings(),
        "seed": seed,
        "command": f"offsupport train {name} --data DATA --out OUT" + (f" --seed {seed}" if seed else ""),
        "data": {"train_sha256": train.sha256, "test_sha256": test.sha256, "held_out": recipe.held_out},
        "test": {"accuracy": right / len(test), "ci95": list(wilson(right, len(test))), "n": len(test)},
        "epochs": run.epoch,
        "held_out_accuracy": run.log[-1].get("held_out_accuracy"),
        "seconds": round(sum(line["seconds"] for line in run.log), 1),
        "weights_sha256": tensors_sha256(weights),
        "file_sha256": sha256_file(out / WEIGHTS),
        "versions": {"offsupport": __version__, "torch": torch.__version__},
    }
    write_json(out / CARD, card)
    return card
