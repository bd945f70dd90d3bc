"""Pure mathematics, without state."""

from offsupport.functional.contrastive import nt_xent
from offsupport.functional.entropy import as_rows, entropy, marginal_entropy, mutual_information
from offsupport.functional.intervals import wilson

__all__ = ["as_rows", "entropy", "marginal_entropy", "mutual_information", "nt_xent", "wilson"]
