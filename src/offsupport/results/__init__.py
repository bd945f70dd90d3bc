"""What came out, with types: rows, claims, intervals, and which images were right."""

from offsupport.results.intervals import Estimate, bootstrap, difference_estimate, mean_estimate
from offsupport.results.rows import (
    Claim,
    Evidence,
    Listing,
    Measured,
    Row,
    Verdict,
    at_least,
    below,
    negated,
    shifted,
    within,
)

__all__ = [
    "Claim",
    "Estimate",
    "Evidence",
    "Listing",
    "Measured",
    "Row",
    "Verdict",
    "at_least",
    "below",
    "bootstrap",
    "difference_estimate",
    "mean_estimate",
    "negated",
    "shifted",
    "within",
]
