"""Frozen, keyword-only configurations with strict keys and simple type checks."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from offsupport.core.errors import ConfigError, nearest

C = TypeVar("C")
_WORDS: dict[Any, str] = {
    type(None): "None",
    float: "a number",
    int: "an integer",
    str: "text",
    bool: "true or false",
}
_WORDS |= {Callable: "a function", dict: "a mapping", list: "a list"}


def build(cls: type[C], values: Mapping[str, Any], owner: str, beside: Iterable[str] = ()) -> C:
    """Make the dataclass ``cls`` from ``values``; unknown keys and wrong types are errors that say what is allowed.

    Args:
        cls: A dataclass.
        values: Field values by name.
        owner: Whose configuration it is, for the message ("method 'tent'").
        beside: Names that the caller takes beside these, which a misspelt one may have meant.
    """
    hints = _hints(typing.cast("Any", cls))
    names = [field.name for field in dataclasses.fields(typing.cast("Any", cls))]
    for name, value in values.items():
        if name not in names:
            what = "hyper-parameter" if owner.startswith("method") else "setting"
            raise ConfigError(f"Unknown {what} {name!r} for {owner}.", nearest(name, names, beside))
        if not _fits(value, hints[name]):
            raise ConfigError(
                f"Hyper-parameter {name!r} of {owner} is {value!r}.", f"It must be {_describe(hints[name])}."
            )
    missing = [field.name for field in _required(cls) if field.name not in values]
    if missing:
        raise ConfigError(f"{owner[:1].upper()}{owner[1:]} does not say {', '.join(missing)}.", "Add what is missing.")
    return cls(**{name: _widen(value, hints[name]) for name, value in values.items()})


@functools.lru_cache(maxsize=256)
def _hints(cls: type[Any]) -> dict[str, Any]:
    """The types of the fields; working them out takes a thousand times as long as looking one up."""
    return typing.get_type_hints(cls)


def _required(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.default is field.default_factory]


def to_dict(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration as plain JSON values."""
    return dataclasses.asdict(config)


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            if value in typing.get_args(option):
                return True
        elif option is float:
            # True is an int to Python, but a learning rate of True is a mistake; so are NaN and infinity.
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                return True
        elif option is int:
            if isinstance(value, int) and not isinstance(value, bool):
                return True
        elif isinstance(value, typing.get_origin(option) or option):
            return True
    return False


def _widen(value: Any, hint: Any) -> Any:
    """An int given where only a float is declared becomes one, so that 1 and 1.0 are the same configuration."""
    options = _options(hint)
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_int and float in options and int not in options else value


def _describe(hint: Any) -> str:
    words = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            words += [repr(choice) for choice in typing.get_args(option)]
        else:
            words.append(_WORDS.get(typing.get_origin(option) or option, f"of type {option}"))
    return " or ".join(words)
