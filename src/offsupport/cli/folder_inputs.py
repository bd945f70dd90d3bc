"""What ``offsupport adapt`` is given: a model, images in an order, source images, names of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offsupport import zoo
from offsupport.cli.image_files import ImageFiles, find_images
from offsupport.core.errors import ConfigError, DataMissingError
from offsupport.core.seeds import derive_seed
from offsupport.data.folders import sub_folders
from offsupport.methods.registry import METHODS

SOURCE_IMAGES = 2000
"""Source statistics are taken from so many images at most, as in the bench."""
OWN_OPTIONS = {"seed": "--seed", "preset": "--preset", "source": "--source"}
"""What belongs to an option of its own and not behind --hyper."""
NEEDS_PYTHON = ("logits", "inplace")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for; the fields are the options of the verb, ``folder`` is where the predictions go."""

    model: str
    images: Path
    method: str
    batch_size: int
    hyper: Mapping[str, Any]
    preset: str | None
    source: Path | None
    size: int | None
    network: str | None
    normalization: str | None
    classes: Path | None
    shuffle: bool
    episodic: bool
    seed: int
    threads: int
    folder: Path


def load(request: Request) -> nn.Module:
    """Return the source model by any of its names."""
    if request.network is None and request.normalization is None:
        from offsupport.bench.models import load_model

        return load_model(request.model, request.folder)
    if not request.model.startswith("file:"):
        raise ConfigError(
            f"{request.model} says itself which network it is.", "Leave --network and --normalization out."
        )
    from offsupport.nn.loading import load_model as load_file

    return load_file(request.model, network=request.network, normalization=request.normalization)


def check_request(request: Request) -> None:
    """Refuse what cannot work before anything is loaded."""
    info = METHODS[request.method].info
    if info.source == "required" and request.source is None:
        raise ConfigError(
            f"The method {request.method!r} needs to know the source data.",
            "Give a folder of images the model was trained on: --source DIR.",
        )
    for name in request.hyper:
        if name in OWN_OPTIONS:
            raise ConfigError(f"--hyper cannot set {name!r}.", f"Use {OWN_OPTIONS[name]}.")
        if name in NEEDS_PYTHON:
            raise ConfigError(f"--hyper cannot set {name!r}.", "Use offsupport.adapt in Python.")


def target_files(request: Request) -> ImageFiles:
    """Return the images to predict, sorted or in an order drawn from the seed."""
    files = find_images(request.images)
    ordered = _shuffled(files, request.seed, "images") if request.shuffle else files
    return ImageFiles(request.images, ordered, request.size, _expected_side(request.model))


def source_files(request: Request) -> ImageFiles | None:
    """Return source images in a random order, at most as many as statistics need."""
    if request.source is None:
        return None
    files = _shuffled(find_images(request.source), request.seed, "source")[:SOURCE_IMAGES]
    return ImageFiles(request.source, files, request.size, _expected_side(request.model))


def class_names(request: Request) -> tuple[list[str], bool]:
    """Return the names of the classes, and whether the user gave them; else they are those of the source's folders."""
    if request.classes is None:
        return (sub_folders(request.source) if request.source is not None else []), False
    path = request.classes
    if not path.is_file():
        raise DataMissingError(f"There is no file {path}.", "Give a text file with a name per line: --classes FILE.")
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()], True
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file in UTF-8 ({error}).", "Write one class name per line.") from error


def _shuffled(files: Sequence[str], seed: int, what: str) -> list[str]:
    generator = torch.Generator().manual_seed(derive_seed("adapt", what, seed))
    return [files[row] for row in torch.randperm(len(files), generator=generator).tolist()]


def _expected_side(model: str) -> int | None:
    """Return the side of the images a model of ours was trained on; None where it is not known."""
    kind, _, name = model.partition(":")
    data = zoo.card(name.partition("@")[0])["recipe"]["dataset"] if kind == "zoo" else kind.partition("-")[0]
    return 32 if data in ("digits", "cifar10", "cifar100") else None
