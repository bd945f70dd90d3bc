"""Small reference models that ship with the package: a folder each, with weights and a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offsupport.core.errors import ConfigError, FileError, nearest
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
        raise ConfigError(f"The zoo has no model {name!r}.", _nearest(name))
    path = folder(name) / "card.json"
    found: dict[str, Any] = read_json(path)
    if not _is_card(found):
        raise FileError(f"{path} is not the card of a model.", "Install offsupport again, or train the model again.")
    return found


def _nearest(name: str) -> str:
    """Return a remedy that names the best of the models that ``name`` could be short for, or else the nearest."""
    longer = [each for each in names() if each.startswith(name.lower())]
    if not longer:
        return nearest(name, names())
    best = max(longer, key=lambda each: (card(each).get("test") or {}).get("accuracy", 0.0))
    return f"Did you mean {best!r}?"


def _is_card(found: Any) -> bool:
    """Whether everything is there that is read of a card, as the kind of value it is read as."""
    if not isinstance(found, dict):
        return False
    recipe, test = found.get("recipe"), found.get("test")
    words = all(isinstance(found.get(key), str) for key in ("name", "about", "file_sha256"))
    trained = isinstance(recipe, dict) and isinstance(recipe.get("dataset"), str)
    # A network that classifies nothing has no accuracy.
    measured = test is None or (isinstance(test, dict) and type(test.get("accuracy")) in (int, float))
    return words and trained and measured
