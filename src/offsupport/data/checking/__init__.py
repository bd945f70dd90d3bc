"""What a data folder holds, what is missing, what is damaged."""

from offsupport.data.checking.check import check, draw_findings
from offsupport.data.checking.finding import Finding

__all__ = ["Finding", "check", "draw_findings"]
