"""Public names that have moved: they keep working for one version, and say where they are now."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved(room: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` for names that now live elsewhere.

    Args:
        room: The module they were in.
        names: Where each one is now, by name.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        warnings.warn(
            f"{room}.{name} has moved: import it from {names[name]}. The old place goes with version 0.4.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(names[name]), name)

    return find
