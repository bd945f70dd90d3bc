"""The fifteen standard and four extra image corruptions of Hendrycks & Dietterich (ICLR 2019), batched and seeded."""

from offsupport.data.corruptions import blur, digital, extra, noise, weather  # registers them
from offsupport.data.corruptions.apply import corrupt
from offsupport.data.corruptions.catalogue import ALL, CORRUPTIONS, EXTRA, GROUPS, STANDARD
from offsupport.data.corruptions.parameters import SETS, max_severity, parameter_set
from offsupport.data.corruptions.sheet import contact_sheet

__all__ = [
    "ALL",
    "CORRUPTIONS",
    "EXTRA",
    "GROUPS",
    "SETS",
    "STANDARD",
    "blur",
    "contact_sheet",
    "corrupt",
    "digital",
    "extra",
    "max_severity",
    "noise",
    "parameter_set",
    "weather",
]
