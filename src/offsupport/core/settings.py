"""Settings in YAML files: plain values only, never code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from offsupport.core.errors import ConfigError, FileError

_EXPONENT = re.compile(r"[+-]?\d+[eE][+-]?\d+")


def read_settings(path: Path | str) -> dict[str, Any]:
    """Read a YAML file of named settings; runs no code. What is no such file is an error that names it."""
    import yaml

    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no file {path}.", "Check the path.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{path} is not YAML ({error}).", "Write one setting per line: `seeds: 3`.") from error
    return require_mapping(values, str(path))


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
