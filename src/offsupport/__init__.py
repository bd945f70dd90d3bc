"""offsupport makes a trained model right on samples outside its training support.

The names below are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offsupport.core.moved import find_old_modules
from offsupport.core.version import __version__ as __version__

find_old_modules()

_PUBLIC = {
    "OffsupportError": "offsupport.core.errors",
    "adapt": "offsupport.methods",
    "adapt_folder": "offsupport.serving",
    "diagnose_model": "offsupport.diagnosis.network",
    "evaluate": "offsupport.evaluation",
    "list_methods": "offsupport.methods",
    "load_adapted": "offsupport.methods",
    "load_model": "offsupport.nn.loading",
    "register_corruption": "offsupport.data.corruptions",
    "register_dataset": "offsupport.data.catalog",
    "register_method": "offsupport.methods",
    "register_model": "offsupport.studies",
    "register_table": "offsupport.studies",
    "source_stats": "offsupport.methods",
}
_ROOMS = (
    "bench",
    "data",
    "diagnosis",
    "functional",
    "latent",
    "methods",
    "monitor",
    "nn",
    "results",
    "serving",
    "studies",
    "testing",
    "theory",
)

if TYPE_CHECKING:
    from offsupport import bench as bench
    from offsupport import data as data
    from offsupport import diagnosis as diagnosis
    from offsupport import functional as functional
    from offsupport import latent as latent
    from offsupport import methods as methods
    from offsupport import monitor as monitor
    from offsupport import nn as nn
    from offsupport import results as results
    from offsupport import serving as serving
    from offsupport import studies as studies
    from offsupport import testing as testing
    from offsupport import theory as theory
    from offsupport.core.errors import OffsupportError as OffsupportError
    from offsupport.data.catalog import register_dataset as register_dataset
    from offsupport.data.corruptions.registry import register_corruption as register_corruption
    from offsupport.diagnosis.network import diagnose_model as diagnose_model
    from offsupport.engine.registry import adapt as adapt
    from offsupport.engine.registry import list_methods as list_methods
    from offsupport.engine.registry import load_adapted as load_adapted
    from offsupport.engine.registry import register_method as register_method
    from offsupport.engine.registry import source_stats as source_stats
    from offsupport.evaluation import evaluate as evaluate
    from offsupport.nn.loading import load_model as load_model
    from offsupport.serving.folder import adapt_folder as adapt_folder
    from offsupport.studies.models import register_model as register_model
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
