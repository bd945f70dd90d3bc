"""The theory as numbers: is a shift recoverable, by which theorem, and if not, which assumption fails by how much."""

from offsupport.core.moved import moved
from offsupport.theory.conditions import Condition, Verdict
from offsupport.theory.diagnose import Diagnosis, diagnose
from offsupport.theory.identifiability import R2Table, accuracy, r2_table, spread_ratio
from offsupport.theory.ranking import RankCorrelation, rank_correlation

__all__ = [
    "Condition",
    "Diagnosis",
    "R2Table",
    "RankCorrelation",
    "Verdict",
    "accuracy",
    "diagnose",
    "r2_table",
    "rank_correlation",
    "spread_ratio",
]

__getattr__ = moved(__name__, dict.fromkeys(("ModelDiagnosis", "diagnose_model"), "offsupport.diagnosis"))
