"""The fifteen standard and four extra image corruptions of Hendrycks & Dietterich (ICLR 2019), batched and seeded."""

from offsupport.data.corruptions import blur, digital, noise  # registers them
from offsupport.data.corruptions.catalogue import ALL, CORRUPTIONS, EXTRA, GROUPS, STANDARD
from offsupport.data.corruptions.corrupt import corrupt
from offsupport.data.corruptions.parameters import SETS, max_severity, parameter_set

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
    "max_severity",
    "noise",
    "parameter_set",
]
