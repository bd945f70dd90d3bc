"""Hyper-parameters for narrow networks on CIFAR-10, where those published for wide ones are not the best.

They were chosen by ``offsupport reproduce tuning --scale small``: on the zoo's ResNet-18 of width 16 and the four extra
corruptions, four candidates for each method. A method that is not here keeps its published ones, and under the sparsity
constraint those of the method it constrains.
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
    "tesla+sc": {},
    "tesla-s+sc": {},
}
"""What the preset for narrow networks changes in the published one, by method."""


def with_narrow(name: str, presets: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the presets of a method with the one for narrow networks, where there is one for CIFAR-10."""
    if PUBLISHED not in presets:
        return dict(presets)
    plain = name.partition("+sc")[0]
    return {**presets, NARROW: presets[PUBLISHED] | CHOSEN.get(name, CHOSEN.get(plain, {}))}
