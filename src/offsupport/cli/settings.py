"""Settings typed on the command line as ``name=value``, and the permission to run code that is named there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from offsupport.core.errors import ConfigError
from offsupport.core.registry import names_code

AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let module:function that you name run; modules of this folder count.")
]
"""For every verb that takes a model by name: what a file names never runs, with or without it."""


def allowed(names: Iterable[str], allow_code: bool) -> frozenset[str]:
    """Return those of the names a person typed that are code and may run."""
    return frozenset(filter(names_code, names)) if allow_code else frozenset()


_PYTHON_WORDS = {"True": True, "False": False, "None": None}


def parse_settings(texts: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """Return the settings by name; of one that is given twice, the last.

    Args:
        texts: Each ``name=value``; a value is JSON where it can be, else a Python constant or number, else a word.
        option: The option they were given to, for the error.
        example: What one looks like, for the remedy.

    Example:
        >>> parse_settings(["lr=1e-3", "optimizer=sgd", "gates=False"], "--hyper", "lr=1e-3")
        {'lr': 0.001, 'optimizer': 'sgd', 'gates': False}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"{option} got {text!r}.", f"Write name=value, for example {option} {example}.")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text in _PYTHON_WORDS:
        return _PYTHON_WORDS[text]
    # JSON first: it tells 1 from 1.0 and knows lists and null. What it does not know falls through to a word, so that
    # nobody has to quote optimizer=sgd twice for the shell.
    with contextlib.suppress(ValueError):
        return json.loads(text)
    with contextlib.suppress(ValueError):
        return float(text)  # .5, which JSON does not know
    return text
