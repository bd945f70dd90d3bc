"""Data sets in their official layouts, corruptions of them, and streams of batches.

The corruptions are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offsupport.data.catalog import list_datasets, load
from offsupport.data.compose import stream, stream_arrays
from offsupport.data.dataset import Arrays, Dataset
from offsupport.data.streams import Batch, Stream

if TYPE_CHECKING:
    from offsupport.data.corruptions import ALL, EXTRA, GROUPS, STANDARD, contact_sheet, corrupt

__all__ = [
    "ALL",
    "EXTRA",
    "GROUPS",
    "STANDARD",
    "Arrays",
    "Batch",
    "Dataset",
    "Stream",
    "contact_sheet",
    "corrupt",
    "list_datasets",
    "load",
    "stream",
    "stream_arrays",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("offsupport.data.corruptions"), name)
    raise AttributeError(f"module 'offsupport.data' has no attribute {name!r}")
