"""Pure mathematics, without state."""

from offsupport.functional.contrastive import nt_xent
from offsupport.functional.distillation import distillation_loss, mean_prediction, self_training_loss
from offsupport.functional.entropy import as_rows, entropy, marginal_entropy, mutual_information
from offsupport.functional.gaussian import Moments, gaussian_kl, symmetric_gaussian_kl, update_moments
from offsupport.functional.intervals import wilson

__all__ = [
    "Moments",
    "as_rows",
    "distillation_loss",
    "entropy",
    "gaussian_kl",
    "marginal_entropy",
    "mean_prediction",
    "mutual_information",
    "nt_xent",
    "self_training_loss",
    "symmetric_gaussian_kl",
    "update_moments",
    "wilson",
]
