"""One file per table or figure of the paper, and per table of our own that belongs beside them."""

from offsupport.paper import (
    ablation,
    guarantees,
    harder,
    kl_choice,
    sensitivity,
    table1,
    table2,
    table3,
    table4,
    table_a1,
    tuning,
)
from offsupport.paper.declare import TABLES, Claim, Options, Row, Table, cells_of, payload

__all__ = [
    "TABLES",
    "Claim",
    "Options",
    "Row",
    "Table",
    "ablation",
    "cells_of",
    "guarantees",
    "harder",
    "kl_choice",
    "payload",
    "sensitivity",
    "table1",
    "table2",
    "table3",
    "table4",
    "table_a1",
    "tuning",
]
