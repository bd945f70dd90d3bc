"""One file per table or figure of the paper."""

from offsupport.studies.paper import (
    fig3,
    table1,
    table2,
    table3,
    table4,
    table_a1,
    table_a2,
    table_a3,
    table_a4,
)

__all__ = ["fig3", "table1", "table2", "table3", "table4", "table_a1", "table_a2", "table_a3", "table_a4"]
