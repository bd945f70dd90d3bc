"""Hyper-parameters for narrow networks on CIFAR-10, where those published for wide ones are not the best.

They were chosen by ``offsupport reproduce tuning --scale small``: on the zoo's ResNet-18 of width 16 and the four extra
corruptions, four candidates for each method. A method that is not here keeps its published ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PUBLISHED, NARROW = "cifar10", "cifar10-small"
CHOSEN: dict[str, dict[str, Any]] = {
    "tent": {"lr": 3e-3},
    "shot": {"lr": 1e-2},
    "eata": {"lr": 3e-3},
    "sar": {"lr": 0.1},
    "tttpp": {"lr": 3.3e-3},
    "tesla": {"lr": 3e-3},
    "tesla-s": {"lr": 3e-3},
}
"""What the preset for narrow networks changes in the published one, by method."""


def with_narrow(method: str, presets: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the presets of a method with the one for narrow networks."""
    return {**presets, NARROW: presets.get(PUBLISHED, {}) | CHOSEN.get(method, {})}
