"""Table 2: test-time adaptation methods on common corruptions at severity 5, online."""

from __future__ import annotations

from offsupport.bench.cell import Cell
from offsupport.bench.grid import expand
from offsupport.data import STANDARD
from offsupport.paper.declare import TABLES, Options, Table
from offsupport.paper.errors import below_claims, error_rows

METHODS = ("source", "bn", "tent", "shot", "eata", "sar")
_COLUMNS = ("cifar10-c/avg", "cifar100-c/avg", "imagenet-c/avg")
_PRINTED = {
    "source": (29.1, 60.4, 81.8),
    "bn": (15.6, 43.7, 67.7),
    "tent": (14.1, 39.0, 57.4),
    "shot": (13.9, 39.2, 68.7),
    "tttpp": (15.8, 44.4, 59.3),
    "ttac": (13.4, 41.7, 58.7),
    "tesla-s": (12.1, 37.3, 53.1),
    "tesla-s+sc": (11.7, 37.0, 50.9),
    "tesla": (12.5, 38.2, 55.0),
    "tesla+sc": (12.1, 38.0, 54.5),
}
PRINTED = {
    (method, column): value for method in _PRINTED for column, value in zip(_COLUMNS, _PRINTED[method], strict=True)
}
"""Average error in percent; they stand only beside columns of the same data."""
CLAIMS = (("bn", "source"), ("tent", "bn"), ("shot", "bn"))


def grid(scale: str, options: Options) -> list[Cell]:
    """Return the cells; the embedded digits are all that ``smoke`` needs."""
    axes = {
        "method": options.methods or METHODS,
        "corruption": STANDARD,
        "seed": range(options.seeds or 1),
    }
    return expand(axes, dataset="digits-c", severity=5, protocol="online", model="digits-small", batch_size=128)


TABLES.register("table2")(
    Table(
        name="table2",
        title="Test-time adaptation methods under common corruptions (severity 5, online)",
        scales={"smoke": "all fifteen corruptions of the embedded digits, a small network trained on the spot"},
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=lambda records: error_rows(records, PRINTED),
        claims=lambda records: below_claims(records, CLAIMS),
    )
)
