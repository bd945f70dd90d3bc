"""A source model, and what is known about it before it is loaded: which images it takes, and which are usual for it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn

import offsupport
from offsupport import zoo
from offsupport.core.errors import (
    ConfigError,
    InputError,
    ModelError,
    OffsupportError,
    ShapeError,
    Spelling,
    as_keyword,
)
from offsupport.data import load
from offsupport.data.folders import CROP, RESIZE, imagenet_class_names
from offsupport.nn.loading import load_model

IMAGENET = "imagenet"
PACKAGE = Path(offsupport.__file__).parent
"""Where our own code is."""
_SIDES = {"digits": 32, "cifar10": 32, "cifar100": 32, "tiny100": 32, IMAGENET: CROP}
"""Side of the images of the data sets that models of ours are trained on."""
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CLASSES = {"digits": tuple("0123456789"), "cifar10": _CIFAR10}
"""Names of their classes, in the order of their numbers."""
_EMBEDDED = "digits"
"""The data set inside the package; any other one has to be given."""


@dataclass(frozen=True)
class SourceModel:
    """A model by name.

    Loading can mean training for a minute, so that folders and sizes are checked before ``load`` is called.

    Args:
        name: What results call it.
        load: Returns the network, ready to predict.
        data: Name of the data set it was trained on; None where that is not known.
    """

    name: str
    load: Callable[[], nn.Module]
    data: str | None = None

    @property
    def side(self) -> int | None:
        """Side of the only images that are right for it; None where that is not known."""
        return _SIDES.get(self.data) if self.data is not None else None

    @property
    def cut(self) -> tuple[int, int] | None:
        """What photographs are brought to for it (shorter side, then side of the centred square); None: as they are."""
        return (RESIZE, CROP) if self.data == IMAGENET else None

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes of the data it was trained on; none where they are not known."""
        if self.data == IMAGENET:
            return [names[1] for names in imagenet_class_names()]
        return _CLASSES.get(self.data or "", ())

    @property
    def class_synonyms(self) -> Sequence[Sequence[str]]:
        """All names that each class goes by, where it has several."""
        return imagenet_class_names() if self.data == IMAGENET else ()

    @property
    def brings_images(self) -> bool:
        """Whether images it was trained on are embedded in this package."""
        return self.data == _EMBEDDED

    def usual_images(self, most: int, spell: Spelling = as_keyword) -> Tensor:
        """Return at most so many images it was trained on, where those are embedded; ask for a folder otherwise."""
        if not self.brings_images:
            raise ConfigError(
                "What is usual for this network is not known.",
                f"Give a folder of images it was trained on: {spell('source', 'DIR')}.",
            )
        digits = load(_EMBEDDED, split="train")
        return digits.tensor(np.arange(min(len(digits), most)))


def trained_on(name: str) -> str | None:
    """Return the data set a model was trained on, as far as its name tells; None where it does not."""
    # Models that are trained on the spot are called after their data; files and functions may be called anything.
    kind, colon, rest = name.partition(":")
    if kind == "zoo":
        dataset: str = zoo.card(rest.partition("@")[0])["recipe"]["dataset"]
        return dataset
    if kind == "pip":
        return IMAGENET
    data = name.partition("-")[0]
    return data if not colon and data in _SIDES else None


def as_source_model(model: nn.Module | str | SourceModel) -> SourceModel:
    """Return a network, or a name of :func:`~offsupport.nn.loading.load_model`, with what is known about it."""
    if isinstance(model, SourceModel):
        return model
    if isinstance(model, str):
        return SourceModel(model, partial(load_model, model), trained_on(model))
    return SourceModel(type(model).__name__, lambda: model)


def logits_of(ask: Callable[[Tensor], Tensor], x: Tensor, spell: Spelling) -> Tensor:
    """Return what a model says of images; one that cannot take them, or fails by itself, is named with a remedy."""
    try:
        return ask(x)
    except (RuntimeError, ValueError, AssertionError, ShapeError) as error:
        why = str(error.__cause__ or error).strip().partition("\n")[0]
        raise InputError(
            f"The model does not take colour images of {x.shape[3]}x{x.shape[2]} ({why}).",
            f"Give the size it was made for: {spell('size', 'N')}.",
        ) from error
    except OffsupportError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if Path(last.filename).is_relative_to(PACKAGE):
            raise  # ours, and nobody else's
        raise ModelError(
            f"The model's own code failed in line {last.lineno} of {Path(last.filename).name} "
            f"({type(error).__name__}: {error}).",
            "Repair it: it must take a batch of images and return logits.",
        ) from error
