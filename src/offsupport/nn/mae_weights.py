"""Masked autoencoders from files: our own, and public checkpoints in the layout of He et al.; no code is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from offsupport.core.errors import FileError
from offsupport.core.weights import read_weights
from offsupport.nn.mae import MaskedAutoencoder, mae
from offsupport.nn.mae_head import Head

_DECODER = ("decoder", "mask_token")
_CLASSIFIER = "classifier."
_OTHER = "Is it another network, or one of another size?"


def load_mae(path: Path | str, size: str = "tiny/4", classes: int | None = None, **changes: Any) -> MaskedAutoencoder:
    """Return a masked autoencoder with the weights of a file: safetensors, or a ``.pth`` of tensors.

    Args:
        path: The file. A classifier in it is loaded too, whatever its kind and number of classes.
        size: Its shape, one of ``vit-l/16``, ``vit-b/16``, ``tiny/4``.
        classes: Make an untrained classifier of so many classes where the file holds none.
        **changes: As in :func:`~offsupport.nn.mae.mae`; ``head`` is the kind of an untrained classifier.
    """
    weights = our_names(read_weights(path)[0])
    found = _classifier(weights)
    head: Head = changes.pop("head", "vit")
    model = mae(size, found[1] if found else classes, found[0] if found else head, **changes)
    load_weights(model, weights, str(path))
    return model


def load_weights(model: MaskedAutoencoder, weights: Mapping[str, Tensor], where: str) -> None:
    """Put weights into an autoencoder; a classifier that they lack keeps its values, anything else is an error."""
    own = model.state_dict()
    # Old files do not count the batches of running statistics; nothing depends on it.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    encoder = [name for name in missing if not name.startswith((*_DECODER, _CLASSIFIER))]
    if encoder:
        raise FileError(
            f"{where} is not a masked autoencoder of this size: {len(encoder)} tensors of the encoder are missing, "
            f"the first is {encoder[0]}.",
            _OTHER,
        )
    decoder = [name for name in missing if name.startswith(_DECODER)]
    if decoder:
        raise FileError(
            f"{where} holds no decoder, so nothing can be reconstructed: {len(decoder)} tensors are missing, "
            f"the first is {decoder[0]}.",
            "Take a checkpoint saved with its decoder, or make one: offsupport train cifar10-mae-tiny-encoder.",
        )
    classifier = [name for name in missing if name.startswith(_CLASSIFIER)]
    if classifier and any(name in weights for name in own if name.startswith(_CLASSIFIER)):
        raise FileError(
            f"{where} holds part of a classifier: {len(classifier)} tensors are missing, the first is {classifier[0]}.",
            "Take a file with all of it, or one with none of it and train a new one.",
        )
    for name in own:
        if name in weights and weights[name].shape != own[name].shape:
            raise FileError(
                f"{where} holds {name} of shape {tuple(weights[name].shape)}, and this network has "
                f"{tuple(own[name].shape)}.",
                "Choose the size and the patch it was trained with.",
            )
    unknown = [name for name in weights if name not in own]
    if unknown:
        raise FileError(f"{where} holds {unknown[0]}, which this network does not have.", _OTHER)
    model.load_state_dict({**own, **weights})


def our_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo the prefixes of wrappers; the head of a published linear probe is our classifier."""
    return {_our_name(name): tensor for name, tensor in weights.items()}


def _our_name(name: str) -> str:
    for prefix in ("module.", "model."):
        name = name.removeprefix(prefix)
    return f"classifier.{name.removeprefix('head.')}" if name.startswith("head.") else name


def _classifier(weights: Mapping[str, Tensor]) -> tuple[Head, int] | None:
    """Return kind and number of classes of the classifier among the weights."""
    kinds: dict[str, Head] = {"classifier.head": "vit", "classifier.1": "linear"}
    last = {f"{layer}.{tensor}": kind for layer, kind in kinds.items() for tensor in ("bias", "weight")}
    return next(((kind, len(weights[name])) for name, kind in last.items() if name in weights), None)


def classes_of(weights: Mapping[str, Tensor], path: Path | str) -> int:
    """Return the number of classes of the classifier among the weights; without one nothing can be predicted."""
    found = _classifier(weights)
    if found is None and "cls_token" not in weights:
        raise FileError(f"{path} is not a masked autoencoder: there is no cls_token in it.", _OTHER)
    if found is None:
        raise FileError(
            f"{path} holds no classifier.", "Train one on its frozen encoder: offsupport train cifar10-mae-tiny."
        )
    return found[1]
