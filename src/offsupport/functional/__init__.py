"""Pure mathematics, without state."""

from offsupport.functional.contrastive import nt_xent
from offsupport.functional.entropy import as_rows, entropy, marginal_entropy, mutual_information
from offsupport.functional.gaussian import Moments, gaussian_kl, symmetric_gaussian_kl, update_moments
from offsupport.functional.intervals import wilson

__all__ = [
    "Moments",
    "as_rows",
    "entropy",
    "gaussian_kl",
    "marginal_entropy",
    "mutual_information",
    "nt_xent",
    "symmetric_gaussian_kl",
    "update_moments",
    "wilson",
]
