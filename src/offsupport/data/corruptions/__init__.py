"""Image corruptions, batched and seeded: the nineteen of Hendrycks & Dietterich (ICLR 2019), and anybody's own."""

from typing import Any

from offsupport.core.moved import moved
from offsupport.data.corruptions import blur, digital, extra, noise, shapes, weather  # registers them
from offsupport.data.corruptions.registry import (
    CORRUPTIONS,
    GROUP_ORDER,
    SIDES,
    Corruption,
    corrupt,
    list_corruptions,
    max_severity,
    parameter_set,
    register_corruption,
)

# The published lists are made of the five published groups: neither ours beyond them nor what other packages register
# ever enters an average that carries the published name.
_PUBLISHED = CORRUPTIONS.registered()

GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(name for name, found in _PUBLISHED.items() if found.group == group) for group in GROUP_ORDER
}
"""The published corruptions by kind; "extra" is for validation and takes no part in published averages."""

EXTRA = GROUPS["extra"]
STANDARD = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)
ALL = STANDARD + EXTRA

SETS: dict[int, dict[str, list[tuple[Any, ...]]]] = {
    side: {name: list(_PUBLISHED[name].rows[side]) for name in ALL} for side in SIDES
}
"""The published constants: by the side length they are for, by corruption, by severity."""

__all__ = [
    "ALL",
    "CORRUPTIONS",
    "EXTRA",
    "GROUPS",
    "SETS",
    "STANDARD",
    "Corruption",
    "blur",
    "corrupt",
    "digital",
    "extra",
    "list_corruptions",
    "max_severity",
    "noise",
    "parameter_set",
    "register_corruption",
    "shapes",
    "weather",
]

__getattr__ = moved(__name__, {"contact_sheet": "offsupport.data"})
