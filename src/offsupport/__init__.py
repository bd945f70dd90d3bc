"""offsupport makes a trained model right on samples outside its training support.

The names below are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offsupport.core.version import __version__ as __version__

_PUBLIC = {
    "OffsupportError": "offsupport.core.errors",
    "adapt": "offsupport.methods",
    "diagnose_model": "offsupport.diagnosis.network",
    "evaluate": "offsupport.evaluation",
    "list_methods": "offsupport.methods",
    "load_adapted": "offsupport.methods",
    "load_model": "offsupport.nn.loading",
    "register_table": "offsupport.studies.tables",
    "source_stats": "offsupport.methods",
}
_ROOMS = ("bench", "data", "functional", "latent", "methods", "nn", "testing", "theory")

if TYPE_CHECKING:
    from offsupport import bench as bench
    from offsupport import data as data
    from offsupport import functional as functional
    from offsupport import latent as latent
    from offsupport import methods as methods
    from offsupport import nn as nn
    from offsupport import testing as testing
    from offsupport import theory as theory
    from offsupport.core.errors import OffsupportError as OffsupportError
    from offsupport.diagnosis.network import diagnose_model as diagnose_model
    from offsupport.engine.registry import adapt as adapt
    from offsupport.engine.registry import list_methods as list_methods
    from offsupport.engine.registry import load_adapted as load_adapted
    from offsupport.engine.registry import source_stats as source_stats
    from offsupport.evaluation import evaluate as evaluate
    from offsupport.nn.loading import load_model as load_model
    from offsupport.studies.tables import register_table as register_table

__all__ = ["__version__", *_PUBLIC, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"offsupport.{name}")
    raise AttributeError(f"module 'offsupport' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
