"""Grids of cells: what to run, where the results live, who runs them."""

from offsupport.bench.adapt_cell import AdaptConfig
from offsupport.bench.cell import KINDS, Cell, Kind, Outcome, Place
from offsupport.bench.episode_cell import EpisodeConfig
from offsupport.bench.executor import Executor, Job, Summary, run_cells
from offsupport.bench.grid import expand
from offsupport.bench.guarantee_cell import GuaranteeConfig
from offsupport.bench.latent_cell import LatentConfig
from offsupport.bench.likelihood_cell import LikelihoodConfig
from offsupport.bench.local import Local
from offsupport.bench.radius_cell import RadiusConfig
from offsupport.bench.store import Invalid, Record, Store

__all__ = [
    "KINDS",
    "AdaptConfig",
    "Cell",
    "EpisodeConfig",
    "Executor",
    "GuaranteeConfig",
    "Invalid",
    "Job",
    "Kind",
    "LatentConfig",
    "LikelihoodConfig",
    "Local",
    "Outcome",
    "Place",
    "RadiusConfig",
    "Record",
    "Store",
    "Summary",
    "expand",
    "run_cells",
]
