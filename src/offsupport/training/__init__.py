"""Source models and how they are trained."""

from offsupport.training.digits import digits_model
from offsupport.training.supervised import train_classifier

__all__ = ["digits_model", "train_classifier"]
