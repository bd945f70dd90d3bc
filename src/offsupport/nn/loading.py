"""Source models by name: from the zoo of the package, from a file of weights, or from timm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offsupport import zoo
from offsupport.core.errors import ConfigError, FileError, ModelError
from offsupport.core.weights import read_weights
from offsupport.nn.architectures import build_network
from offsupport.nn.mae_weights import classes_of, load_weights, our_names
from offsupport.nn.normalized import IMAGENET_MEAN, IMAGENET_STD, Normalized
from offsupport.nn.projected import WithProjection, projection_head

KINDS = ("zoo:", "file:", "timm:")
_PREFIX = re.compile(r"^(?:(?:module|model|_orig_mod|encoder|backbone|ext|net)\.)+")
_CLASSIFIERS = ("fc", "linear", "classifier", "head")


def load_model(name: str, *, network: str | None = None, normalization: str | None = None) -> nn.Module:
    """Return a source model, ready to predict: images in [0, 1] to logits.

    Args:
        name: ``zoo:NAME`` (see ``offsupport list models``), ``file:PATH`` or ``timm:NAME``.
        network: For a file that does not say it: the architecture, as in :func:`~offsupport.nn.build_network`.
        normalization: For such a file: the data it was trained on (``cifar10``, ``cifar100``, ``imagenet``).
    """
    kind, _, rest = name.partition(":")
    if f"{kind}:" not in KINDS or not rest:
        raise ConfigError(
            f"{name!r} names no model.",
            f"Write file:{name} for that file." if Path(name).exists() else "Write zoo:NAME, file:PATH or timm:NAME.",
        )
    if kind == "timm":
        return _from_timm(rest)
    path = Path(rest)
    if kind == "zoo":
        zoo.card(rest)  # refuses unknown names
        path = zoo.folder(rest) / "model.safetensors"
    return _from_file(path, network, normalization)


def _from_file(path: Path, network: str | None, normalization: str | None) -> nn.Module:
    weights, manifest = read_weights(path)
    network = network or manifest.get("network")
    normalization = normalization or manifest.get("normalization")
    if network is None or normalization is None:
        raise ModelError(
            f"{path} does not say which network its weights belong to.",
            'Say it: load_model("file:...", network="resnet50", normalization="cifar10").',
        )
    if network.startswith("mae-"):
        named = our_names(weights)
        model = build_network(network, classes_of(named, path), normalization)
        load_weights(model.get_submodule("model"), named, str(path))  # type: ignore[arg-type]
        return model.eval()
    body, head = split_layout(weights)
    if "fc.bias" not in body:
        raise FileError(f"{path} holds no classifier ({', '.join(_CLASSIFIERS)}).", "Take weights saved with theirs.")
    model = build_network(network, len(body["fc.bias"]), normalization)
    _fill(model.get_submodule("model"), body, path, network)
    # Convolutions on a CPU run up to twice as fast with the channels last (``benchmarks/layout.py``).
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not head:
        return model.eval()
    width, features = head["2.weight"].shape
    projection = projection_head(features, width)
    _fill(projection, head, path, "projection head")
    return WithProjection(model, projection).eval()


def split_layout(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Give weights the names of our networks, and return those of the classifier and those of a projection head.

    Understands the prefixes of wrappers (``module.``, ``model.``, ``encoder.``), the layouts of SupCon, TTT++ and TeSLA
    (``encoder.*`` or ``ext.*``, ``fc.*`` or ``head.fc.*``, projection in ``head.0``, ``head.2``), and our own.
    """
    body: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for key, value in weights.items():
        name = _PREFIX.sub("", key).replace(".shortcut.", ".downsample.")
        layer, _, rest = name.partition(".")
        if layer in ("head", "projection") and rest[:2] in ("0.", "2."):
            head[rest] = value
        elif rest.removeprefix("fc.") in ("weight", "bias") and layer in _CLASSIFIERS:
            body[f"fc.{rest.removeprefix('fc.')}"] = value
        else:
            body[name] = value
    return body, head


def _fill(module: nn.Module, weights: dict[str, Tensor], path: Path, what: str) -> None:
    """Load weights that must fit; what does not is said by name."""
    own = module.state_dict()
    # Old files do not count the batches their averages were taken over; nothing depends on it.
    weights = {**{name: own[name] for name in own if name.endswith("num_batches_tracked")}, **weights}
    for problem, names in (
        ("lacks", [name for name in own if name not in weights]),
        ("also holds", [name for name in weights if name not in own]),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise FileError(f"{path} {problem} {names[0]}{more}.", f"It must hold the weights of {what}.")
    for name, value in own.items():
        if weights[name].shape != value.shape:
            raise FileError(
                f"{path} holds {name} of shape {tuple(weights[name].shape)}, and {what} has {tuple(value.shape)}.",
                "Name the network these weights belong to.",
            )
    module.load_state_dict(weights)


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
