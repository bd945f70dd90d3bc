"""Test-time adaptation methods: one file each, on the engine they share."""

# Importing a method's file registers it; the order here is the order of `list_methods`.
from offsupport.methods import source, bn, tent, shot, memo, eata, sar, ttac, tttpp, tesla, mae_ttt  # noqa: F401, I001
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
    register,
)
from offsupport.engine.registry import source_stats

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
    "register",
    "source_stats",
]
