"""What every method shares: the ritual of a batch, its state, statistics, source statistics, +SC and the registry."""

from offsupport.engine import sparsity as sparsity  # makes names that end in +sc known
from offsupport.engine.adapter import Adapter
from offsupport.engine.config import BatchConfig, MethodConfig, MethodInfo, Options, StepConfig
from offsupport.engine.registry import METHODS, adapt, list_methods, load_adapted, register_method
from offsupport.engine.source_stats import SourceStats

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
]
