"""One file per table of our own that belongs beside the paper's."""

from offsupport.studies.ours import ablation, few, guarantees, harder, kl_choice, sensitivity, tuning, tuning_mae

__all__ = ["ablation", "few", "guarantees", "harder", "kl_choice", "sensitivity", "tuning", "tuning_mae"]
