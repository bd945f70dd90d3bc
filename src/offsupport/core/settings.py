"""Settings in YAML files: plain values only, never code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsupport.core.errors import ConfigError, FileError

if TYPE_CHECKING:
    import yaml

_EXPONENT = re.compile(r"[+-]?\d+[eE][+-]?\d+")
MOST_BYTES = 200_000
"""Larger files are not read: the longest recipe anybody has written is a hundredth of it."""
MOST_DEPTH = 32
"""Lists and mappings inside each other."""
MOST_VALUES = 10_000
"""Values of a file once its aliases are written out: a few lines of aliases of aliases can stand for billions."""


def read_settings(path: Path | str) -> dict[str, Any]:
    """Read a YAML file of named settings; runs no code. What is no such file is an error that names it."""
    import yaml

    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no file {path}.", "Check the path.")
    if path.stat().st_size > MOST_BYTES:
        raise FileError(f"{path} is larger than {MOST_BYTES // 1000} kB.", "Settings are a few lines.")
    try:
        text = path.read_text(encoding="utf-8")
        _require_small(text, str(path))
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # the latter of dates that no calendar has, and endless numbers
        raise FileError(f"{path} is not YAML ({error}).", "Write one setting per line: `seeds: 3`.") from error
    return require_mapping(values, str(path))


def _require_small(text: str, owner: str) -> None:
    """Refuse what would take minutes or all memory to build, before anything is built."""
    import yaml

    depth = 0
    for count, event in enumerate(yaml.parse(text, yaml.SafeLoader)):  # one at a time: nothing of the file is kept
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise FileError(f"{owner} is nested more than {MOST_DEPTH} deep.", "Settings need two or three levels.")
        if count > MOST_VALUES:
            raise FileError(f"{owner} has more than {MOST_VALUES:,} values.", "Settings need a few dozen.")
        if isinstance(event, yaml.ScalarEvent):
            event.value.encode()  # an escape can write half a surrogate pair, which no file could hold: a ValueError
    root = yaml.compose(text, yaml.SafeLoader)
    if root is not None and _written_out(root, owner, {}) > MOST_VALUES:
        raise FileError(
            f"{owner} stands for more than {MOST_VALUES:,} values once its aliases are written out.",
            "Write out what you need, without aliases of aliases.",
        )


def _written_out(node: yaml.Node, owner: str, known: dict[int, int]) -> int:
    """Count the values below a node, aliases as often as they are used; each node is looked at once."""
    if id(node) not in known:
        known[id(node)] = 0  # in hand: who comes back here stands inside of itself
        pairs = node.value if isinstance(node.value, list) else []
        parts = [part for pair in pairs for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_written_out(part, owner, known) for part in parts)
    elif not known[id(node)]:
        raise FileError(f"{owner} has an alias inside of what it stands for.", "Write out what you need.")
    return known[id(node)]


def require_mapping(values: Any, owner: str) -> dict[str, Any]:
    """Return ``values`` with numbers as people write them, if they are settings by name."""
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"{owner} is not a mapping of settings.", "Write one setting per line: `seeds: 3`.")
    found: dict[str, Any] = _numbers(values)
    return found


def _numbers(value: Any) -> Any:
    """YAML 1.1 takes 1e-3 for a word, because it has no point; people do not."""
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
