"""One file per table or figure of the paper."""

from offsupport.paper import table1, table2, table3, table4, table_a1
from offsupport.paper.declare import TABLES, Claim, Options, Row, Table, cells_of, payload

__all__ = [
    "TABLES",
    "Claim",
    "Options",
    "Row",
    "Table",
    "cells_of",
    "payload",
    "table1",
    "table2",
    "table3",
    "table4",
    "table_a1",
]
