"""The theory as numbers: is a shift recoverable, by which theorem, and if not, which assumption fails by how much."""

from offsupport.theory.conditions import Condition, Verdict
from offsupport.theory.deep import ModelDiagnosis, diagnose_model
from offsupport.theory.diagnose import Diagnosis, diagnose
from offsupport.theory.identifiability import R2Table, accuracy, r2_table, spread_ratio
from offsupport.theory.ranking import RankCorrelation, rank_correlation

__all__ = [
    "Condition",
    "Diagnosis",
    "ModelDiagnosis",
    "R2Table",
    "RankCorrelation",
    "Verdict",
    "accuracy",
    "diagnose",
    "diagnose_model",
    "r2_table",
    "rank_correlation",
    "spread_ratio",
]
