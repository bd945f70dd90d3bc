"""The networks of the paper, for the scale ``paper``: trained by recipe, fetched by timm, or brought by the user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offsupport.core.errors import DataMissingError

BROUGHT = Path("weights")
"""Where weights that no recipe makes are looked for, from the folder the command runs in."""
TORCHVISION = "timm:resnet50.tv_in1k"
"""ResNet-50 on ImageNet with the first weights torchvision published, which the paper's code loads."""


@dataclass(frozen=True)
class Setting:
    """One data set of Table 2.

    Args:
        preset: Its published hyper-parameters.
        recipe: The recipe that makes its source model; None for torchvision's.
        source_images: Training images that source statistics are made of.
    """

    preset: str
    recipe: str | None
    source_images: int


SETTINGS = {
    "cifar10-c": Setting("cifar10", "cifar10-resnet50-joint", 50_000),
    "cifar100-c": Setting("cifar100", "cifar100-resnet50-joint", 50_000),
    "imagenet-c": Setting("imagenet", None, 50_000),
}


def fixed_settings(dataset: str) -> dict[str, Any]:
    """Return what all cells on a data set share: its network, its preset, a GPU."""
    found = SETTINGS[dataset]
    return {
        "dataset": dataset,
        "preset": found.preset,
        "model": TORCHVISION if found.recipe is None else trained(found.recipe),
        "source_images": found.source_images,
        "device": "cuda",
    }


def trained(recipe: str) -> str:
    """Return the name of the model that a recipe leaves in its default folder, if it is there."""
    path = Path("runs/train") / recipe / "model.safetensors"
    return _required(path, f"Train them: offsupport train {recipe} --data DATA --device cuda")


def brought(name: str, what: str) -> str:
    """Return the name of a model whose weights the user brings, if they are there.

    Args:
        name: Name of the file in :data:`BROUGHT`, without its suffix.
        what: What it must hold.
    """
    return _required(BROUGHT / f"{name}.safetensors", f"Put {what} there, as docs/scales.md shows.")


def _required(path: Path, remedy: str) -> str:
    if not path.is_file():
        raise DataMissingError(f"There are no weights at {path}.", remedy)
    return f"file:{path}"
