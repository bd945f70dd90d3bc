"""Grids of cells: what to run, where the results live, who runs them. What a cell computes, its kind knows."""

from offsupport.bench.cell import KINDS, Cell, Effort, Kind, Outcome, Place
from offsupport.bench.executor import Executor, Here, Job, Local, Summary, run_cells
from offsupport.bench.runs import Run, Status, run_grid
from offsupport.bench.store import Invalid, Record, Store
from offsupport.bench.verify import compare, verify
from offsupport.core.moved import moved

__all__ = [
    "KINDS",
    "Cell",
    "Effort",
    "Executor",
    "Here",
    "Invalid",
    "Job",
    "Kind",
    "Local",
    "Outcome",
    "Place",
    "Record",
    "Run",
    "Status",
    "Store",
    "Summary",
    "compare",
    "run_cells",
    "run_grid",
    "verify",
]

_CONFIGS = ("AdaptConfig", "EpisodeConfig", "GuaranteeConfig", "LatentConfig", "LikelihoodConfig", "RadiusConfig")
__getattr__ = moved(__name__, dict.fromkeys((*_CONFIGS, "expand"), "offsupport.studies"))
