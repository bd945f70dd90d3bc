"""Grids: every combination of the options given, as cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from offsupport.bench.adapt_cell import AdaptConfig
from offsupport.bench.cell import Cell
from offsupport.core.config import build


def expand(axes: Mapping[str, Sequence[Any]], **fixed: Any) -> list[Cell]:
    """Return the adaptation cells of every combination of ``axes``, the last axis running fastest, none twice.

    Args:
        axes: Values by field of :class:`~offsupport.bench.adapt_cell.AdaptConfig`.
        **fixed: Fields that are the same everywhere.

    Example:
        >>> len(expand({"method": ["source", "bn"], "corruption": ["fog", "snow"]}, dataset="digits-c"))
        4
    """
    combinations = itertools.product(*axes.values())
    settings = (dict(zip(axes, values, strict=True)) for values in combinations)
    cells = (build(AdaptConfig, {**fixed, **chosen}, "a grid").cell() for chosen in settings)
    return list(dict.fromkeys(cells))
