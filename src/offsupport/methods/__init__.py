"""Test-time adaptation methods: one file each, on the engine they share."""

import importlib
import pkgutil
import warnings
from typing import Any

from offsupport.engine import (
    METHODS,
    Adapter,
    BatchConfig,
    MethodConfig,
    MethodInfo,
    Options,
    SourceStats,
    StepConfig,
    adapt,
    list_methods,
    load_adapted,
    register_method,
)
from offsupport.engine.registry import source_stats

# Importing a method's file registers it, and every file here is one: a new method is a new file and nothing else. The
# order of import is the order of `list_methods`, from the simple to the involved; what is not named comes last.
_ORDER = ("auto", "minimal", "source", "bn", "tent", "shot", "memo", "eata", "sar", "ttac", "tttpp", "tesla", "mae_ttt")
_files = {module.name for module in pkgutil.iter_modules(__path__)}
for _name in (*_ORDER, *sorted(_files - set(_ORDER))):
    importlib.import_module(f"{__name__}.{_name}")

__all__ = [
    "METHODS",
    "Adapter",
    "BatchConfig",
    "MethodConfig",
    "MethodInfo",
    "Options",
    "SourceStats",
    "StepConfig",
    "adapt",
    "list_methods",
    "load_adapted",
    "register_method",
    "source_stats",
]


def __getattr__(name: str) -> Any:
    if name == "register":
        warnings.warn(
            "offsupport.methods.register is now offsupport.register_method. The old name goes with version 0.4.",
            DeprecationWarning,
            stacklevel=2,
        )
        return register_method
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
