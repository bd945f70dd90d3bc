"""The theory as numbers: is a shift recoverable, by which theorem, and if not, which assumption fails by how much."""

from offsupport.theory.conditions import Condition, Verdict
from offsupport.theory.diagnose import Diagnosis, diagnose
from offsupport.theory.identifiability import R2Table, accuracy, r2_table, spread_ratio

__all__ = ["Condition", "Diagnosis", "R2Table", "Verdict", "accuracy", "diagnose", "r2_table", "spread_ratio"]
