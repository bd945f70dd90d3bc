"""One file per table or figure of the paper."""

from offsupport.paper import table2
from offsupport.paper.declare import TABLES, Claim, Options, Row, Table, cells_of, payload

__all__ = ["TABLES", "Claim", "Options", "Row", "Table", "cells_of", "payload", "table2"]
