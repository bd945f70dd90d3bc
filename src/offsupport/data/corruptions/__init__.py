"""The fifteen standard and four extra image corruptions of Hendrycks & Dietterich (ICLR 2019), batched and seeded."""

from offsupport.core.moved import moved
from offsupport.data.corruptions import blur, digital, extra, noise, weather  # registers them
from offsupport.data.corruptions.registry import (
    ALL,
    CORRUPTIONS,
    EXTRA,
    GROUPS,
    SETS,
    STANDARD,
    corrupt,
    max_severity,
    parameter_set,
)

__all__ = [
    "ALL",
    "CORRUPTIONS",
    "EXTRA",
    "GROUPS",
    "SETS",
    "STANDARD",
    "blur",
    "corrupt",
    "digital",
    "extra",
    "max_severity",
    "noise",
    "parameter_set",
    "weather",
]

__getattr__ = moved(__name__, {"contact_sheet": "offsupport.data"})
