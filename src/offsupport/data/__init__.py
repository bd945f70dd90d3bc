"""Data sets in their official layouts, corruptions of them, and streams of batches.

The names below are loaded when first used: readers and corruptions work without torch, so the processes that make and
check data start fast and stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offsupport.data.catalog import list_datasets, load, register_dataset
    from offsupport.data.corruptions import (
        ALL,
        EXTRA,
        GROUPS,
        STANDARD,
        corrupt,
        list_corruptions,
        register_corruption,
    )
    from offsupport.data.dataset import Arrays, Dataset
    from offsupport.data.protocols import PROTOCOLS, Protocol, list_protocols
    from offsupport.data.sheet import contact_sheet
    from offsupport.data.spec import StreamSpec
    from offsupport.data.streams import Batch, Stream, stream, stream_arrays

_MODULES = {
    "catalog": ("list_datasets", "load", "register_dataset"),
    "corruptions": ("ALL", "EXTRA", "GROUPS", "STANDARD", "corrupt", "list_corruptions", "register_corruption"),
    "dataset": ("Arrays", "Dataset"),
    "protocols": ("PROTOCOLS", "Protocol", "list_protocols"),
    "spec": ("StreamSpec",),
    "streams": ("Batch", "Stream", "stream", "stream_arrays"),
    "sheet": ("contact_sheet",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ALL",
    "EXTRA",
    "GROUPS",
    "PROTOCOLS",
    "STANDARD",
    "Arrays",
    "Batch",
    "Dataset",
    "Protocol",
    "Stream",
    "StreamSpec",
    "contact_sheet",
    "corrupt",
    "list_corruptions",
    "list_datasets",
    "list_protocols",
    "load",
    "register_corruption",
    "register_dataset",
    "stream",
    "stream_arrays",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'offsupport.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"offsupport.data.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
