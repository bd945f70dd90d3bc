"""Small reference models that ship with the package: a folder each, with weights and a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offsupport.core.errors import ConfigError, nearest
from offsupport.core.files import read_json

_ROOT = Path(__file__).parent


def names() -> list[str]:
    """Return the names of the models."""
    # By the card, which training writes last: a folder without one is not finished.
    return sorted(path.parent.name for path in _ROOT.glob("*/card.json"))


def folder(name: str) -> Path:
    """Return the folder of a model, which need not exist."""
    return _ROOT / name


def card(name: str) -> dict[str, Any]:
    """Return what is known about a model: recipe, seed, command, data, accuracy and hashes."""
    if name not in names():
        raise ConfigError(f"The zoo has no model {name!r}.", nearest(name, names()))
    found: dict[str, Any] = read_json(folder(name) / "card.json")
    return found
