"""What cells compute, and one file per table or figure: those of the paper, and ours that belong beside them.

The names below are what a table of your own is made of.
"""

# The tables of the paper register first, so that lists begin with them.
from offsupport.studies import paper  # isort: split

from offsupport.results.rows import Claim, Listing, Measured, Row, at_least, below, within
from offsupport.studies import ours
from offsupport.studies.adaptation import AdaptConfig
from offsupport.studies.episodes import EpisodeConfig
from offsupport.studies.errors import below_claims, below_each, difference, error_rows, estimate, parts_of, row_name
from offsupport.studies.grids import expand
from offsupport.studies.guarantee_runs import GuaranteeConfig
from offsupport.studies.latent_runs import LatentConfig, LikelihoodConfig, RadiusConfig
from offsupport.studies.models import register_model
from offsupport.studies.tables import TABLES, Request, Table, TableOptions, register_table

__all__ = [
    "TABLES",
    "AdaptConfig",
    "Claim",
    "EpisodeConfig",
    "GuaranteeConfig",
    "LatentConfig",
    "LikelihoodConfig",
    "Listing",
    "Measured",
    "RadiusConfig",
    "Request",
    "Row",
    "Table",
    "TableOptions",
    "at_least",
    "below",
    "below_claims",
    "below_each",
    "difference",
    "error_rows",
    "estimate",
    "expand",
    "ours",
    "paper",
    "parts_of",
    "register_model",
    "register_table",
    "row_name",
    "within",
]
