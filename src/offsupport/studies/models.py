"""Source models by name: trained once per run folder and kept there, of a package, or of code that was allowed."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from offsupport import zoo
from offsupport.core.errors import ConfigError, DataMissingError, FileError, ModelError, OffsupportError, nearest
from offsupport.core.files import file_lock, is_file, set_aside, sha256_file
from offsupport.core.interrupts import Stopped
from offsupport.core.progress import progress
from offsupport.core.registry import Registry, same_definition

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class BuiltIn:
    """A model this package can make by itself.

    Args:
        about: One line for people.
        network: Returns the untrained network.
        train: Returns the trained one.
        kept: Whether its weights are kept in the run folder once they are trained; else it is made where it is needed.
    """

    about: str
    network: Callable[[], nn.Module]
    train: Callable[[], nn.Module]
    kept: bool = True


MODELS: Registry[BuiltIn] = Registry("model", group="offsupport.models")
M = TypeVar("M", bound="Callable[[], nn.Module]")
PIN = 12
"""Hexadecimal digits of a hash in a pinned name."""
_PINNED = re.compile(rf"@[0-9a-f]{{{PIN}}}\Z")


def register_model(name: str, about: str = "") -> Callable[[M], M]:
    """Return a decorator that makes a function without arguments a model by name, for grids and the command line.

    A package makes its models known by an entry point: in the group ``offsupport.models``, the model's name, and the
    module that calls this. Files name models of others in no other way.

    Args:
        name: What it is called: letters, digits, ``_``, ``-`` and ``.``.
        about: One line for ``offsupport list models``.

    Example:
        >>> from torch import nn
        >>> @register_model("always-seven")
        ... def always_seven():
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
        >>> "always-seven" in MODELS
        True
    """
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise ConfigError(f"{name!r} cannot be the name of a model.", "Use letters, digits, _, - and a point.")

    def store(function: M) -> M:
        earlier = MODELS.registered().get(name)
        again = earlier is not None and same_definition(earlier.train, function)
        MODELS.register(name, replace=again)(BuiltIn(about, function, function, kept=False))
        return function

    return store


def pinned(name: str) -> str:
    """Return the name with the hash of its weights (``zoo:NAME@1f2e3d4c5b6a``), so that results name their weights."""
    kind, _, rest = name.partition(":")
    if kind not in ("zoo", "file", "pip") or unpinned(name) != name:
        return name
    if kind == "zoo":
        _require_trained(rest)
        return f"{name}@{zoo.card(rest)['file_sha256'][:PIN]}"
    if kind == "pip":
        from offsupport.nn.loading import package_weights

        return f"{name}@{sha256_file(package_weights(rest))[:PIN]}"
    if not Path(rest).is_file():
        raise DataMissingError(f"There are no weights at {rest}.", "Check the path.")
    return f"{name}@{sha256_file(rest)[:PIN]}"


def unpinned(name: str) -> str:
    """Return the name without the hash of its weights, if it has one; the path of a file may hold an ``@`` itself."""
    return _PINNED.sub("", name)


def _require_trained(name: str) -> None:
    """Say how to make a model that has a recipe and is not in the zoo yet."""
    from offsupport.training.recipe import list_recipes

    if name not in zoo.names() and name in list_recipes():
        raise DataMissingError(
            f"The zoo has no {name} yet.", f"Train it: offsupport train {name} --data DATA --out {zoo.folder(name)}"
        )


def source_model(name: str, folder: Path, code: Collection[str] = frozenset()) -> nn.Module:
    """Return the source model called ``name``, ready to predict.

    Args:
        name: One of :data:`MODELS`, ``zoo:NAME``, ``file:PATH``, ``pip:NAME``, ``timm:NAME``, or ``module:function``
            that returns a model. A pinned name is refused where the weights are others by now.
        folder: The run folder; what is trained is kept in its ``models``, so that all cells share the same weights.
        code: The names ``module:function`` that may be imported and called; any other is refused. A name that comes
            from a file is never put here.
    """
    from offsupport.nn.loading import MODEL_PREFIXES, load_model

    if name.startswith(MODEL_PREFIXES):
        plain = unpinned(name)
        if plain != name and pinned(plain) != name:
            raise ModelError(f"The weights of {plain} have changed: this asks for {name}.", "Begin a new run.")
        return load_model(plain)
    check_name(name, code)
    if ":" not in name:
        found = MODELS[name]
        return _kept(found, folder / "models" / f"{name}.safetensors") if found.kept else _made_by(found.train, name)
    return _made_by(_imported(name), name)


def check_name(name: str, code: Collection[str] = frozenset()) -> None:
    """Refuse a name that no model can have, before anything is loaded: see :func:`source_model`."""
    from offsupport.nn.loading import MODEL_PREFIXES, as_file

    if name.startswith(MODEL_PREFIXES) or name in MODELS or name in code:
        return
    if ":" in name:
        raise ConfigError(
            f"The model {name!r} is code, and code runs only if you name it and allow it.",
            f"Write file:{name} for that file." if is_file(Path(name)) else f"Add: --model {name} --allow-code",
        )
    others = "zoo:NAME, file:PATH, pip:NAME, timm:NAME, module:function with --allow-code"
    forms = f"{nearest(name, MODELS)} Other models: {others}."
    raise ConfigError(f"Unknown model {name!r}.", as_file(name) or forms)


def _imported(name: str) -> Callable[[], Any]:
    """Return the function ``module:function``, which somebody has allowed; modules of the working folder count."""
    module, _, function = name.partition(":")
    if str(Path.cwd()) not in sys.path:  # a command's path begins with its own folder, not with the user's
        sys.path.insert(0, str(Path.cwd()))
    try:
        make: Callable[[], Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"There is no model {name!r} ({error}).", "Write it as package.module:name.") from error
    return make


def _made_by(make: Callable[[], Any], name: str) -> nn.Module:
    """Return the model that a function of somebody else's makes."""
    from torch import nn

    try:
        model = make()
    except (OffsupportError, MemoryError, Stopped):
        raise
    except (Exception, SystemExit) as error:  # code of somebody else's may raise anything, or end the program
        raise ModelError(
            f"{name} was called without arguments and made no model ({type(error).__name__}: {error}).",
            "Name a function that takes none and returns a torch.nn.Module.",
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} returned {type(model).__name__}.", "It must return a torch.nn.Module.")
    return model.eval()


def _kept(source: BuiltIn, path: Path) -> nn.Module:
    """Load the weights in ``path``; the first to come trains them while the others wait."""
    from offsupport.core.checkpoints import load_tensors, save_tensors
    from offsupport.core.weights import require_values

    with file_lock(path):
        with contextlib.suppress(FileError, RuntimeError):  # absent, damaged or of another network: train
            weights, _ = load_tensors(path)
            network = source.network()
            require_values(weights, network.state_dict(), str(path), "this network", "Remove it.")
            network.load_state_dict(weights)
            return network.eval()
        weights = source.train().state_dict()
        set_aside(path)  # damaged, or somebody's file that is called as ours is
        save_tensors(path, weights, {})
    return _kept(source, path)


def _network(recipe: str) -> nn.Module:
    from offsupport.training.digits import CLASSES
    from offsupport.training.recipe import read_recipe
    from offsupport.training.run import fresh_network

    return fresh_network(read_recipe(recipe), CLASSES)


def _trained(recipe: str, seed: int = 0) -> nn.Module:
    import torch

    from offsupport.training import read_recipe, train_on_the_spot

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the weights must not depend on who happens to train them
    try:
        with progress(f"Training {recipe}", read_recipe(recipe).epochs) as advance:
            return train_on_the_spot(recipe, seed, advance)
    finally:
        torch.set_num_threads(threads)


_ON_THE_SPOT = {
    "digits-small": "a small residual network",
    "digits-small-early": "the same stopped early, as accurate as digits-moco",
    "digits-moco": "the same with a linear classifier on features learnt without labels",
    "digits-mae-joint": "a small masked autoencoder trained to reconstruct and classify",
    "digits-mae-finetune": "a small masked autoencoder fine-tuned to classify",
}
for _name, _about in _ON_THE_SPOT.items():
    _sentence = f"{_about}, trained on the embedded digits on the spot"
    MODELS.register(_name)(BuiltIn(_sentence, partial(_network, _name), partial(_trained, _name)))


def _of_zoo(name: str) -> nn.Module:
    from offsupport.nn.loading import load_model

    return load_model(f"zoo:{name}")


_same = partial(_of_zoo, "digits-mae")
# The name from before the zoo held it; a cell that says zoo:digits-mae also says which weights.
MODELS.register("digits-mae")(BuiltIn("the same as zoo:digits-mae", _same, _same, kept=False))
for _seed in (1, 2):
    _sentence = f"zoo:digits-mae with seed {_seed}, trained on the embedded digits on the spot"
    _made = BuiltIn(_sentence, partial(_network, "digits-mae"), partial(_trained, "digits-mae", _seed))
    MODELS.register(f"digits-mae-seed{_seed}")(_made)
