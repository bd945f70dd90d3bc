"""Pure mathematics, without state."""

from offsupport.functional.alignment import coral, mean_and_covariance, mean_gap
from offsupport.functional.class_moments import symmetric_diagonal_kl, update_class_moments
from offsupport.functional.contrastive import nt_xent
from offsupport.functional.distillation import distillation_loss, mean_prediction, self_training_loss
from offsupport.functional.entropy import as_rows, entropy, marginal_entropy, mutual_information
from offsupport.functional.gaussian import Moments, gaussian_kl, symmetric_gaussian_kl, update_moments
from offsupport.functional.intervals import wilson
from offsupport.functional.sparsity import effective_rank, soft_threshold

__all__ = [
    "Moments",
    "as_rows",
    "coral",
    "distillation_loss",
    "effective_rank",
    "entropy",
    "gaussian_kl",
    "marginal_entropy",
    "mean_and_covariance",
    "mean_gap",
    "mean_prediction",
    "mutual_information",
    "nt_xent",
    "self_training_loss",
    "soft_threshold",
    "symmetric_diagonal_kl",
    "symmetric_gaussian_kl",
    "update_class_moments",
    "update_moments",
    "wilson",
]
