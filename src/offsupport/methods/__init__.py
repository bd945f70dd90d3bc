"""Test-time adaptation methods: one file each, one base class."""

# Importing a method's file registers it; the order here is the order of `list_methods`.
from offsupport.methods import source, bn, tent, shot, memo, eata, sar, ttac, tttpp, tesla, tesla_s  # noqa: F401, I001
from offsupport.methods import mae_ttt, mae_ttt_em  # noqa: F401
from offsupport.methods.adapter import Adapter
from offsupport.methods.config import BatchConfig, MethodConfig, MethodInfo, Options, StepConfig
from offsupport.methods.factory import adapt, list_methods, load_adapted
from offsupport.methods.registry import METHODS, register
from offsupport.methods.source_stats import SourceStats

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
]
