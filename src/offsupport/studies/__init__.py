"""What cells compute, and one file per table or figure: those of the paper, and ours that belong beside them."""

from offsupport.studies import ours, paper
from offsupport.studies.adaptation import AdaptConfig, expand
from offsupport.studies.episodes import EpisodeConfig
from offsupport.studies.guarantee_runs import GuaranteeConfig
from offsupport.studies.latent_runs import LatentConfig, LikelihoodConfig, RadiusConfig
from offsupport.studies.tables import TABLES, Claim, Options, Row, Table, cells_of, payload

__all__ = [
    "TABLES",
    "AdaptConfig",
    "Claim",
    "EpisodeConfig",
    "GuaranteeConfig",
    "LatentConfig",
    "LikelihoodConfig",
    "Options",
    "RadiusConfig",
    "Row",
    "Table",
    "cells_of",
    "expand",
    "ours",
    "paper",
    "payload",
]
