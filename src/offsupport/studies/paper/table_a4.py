"""Table A4: the methods of Table 2 corruption by corruption; the same cells, so one run folder serves both."""

from __future__ import annotations

import dataclasses

from offsupport.bench.cell import Cell
from offsupport.data import STANDARD
from offsupport.studies.errors import below_each, error_rows
from offsupport.studies.paper import table2
from offsupport.studies.tables import Table, TableOptions, register_table

_PRINTED = """
cifar10-c
  bn       18.2 17.2 28.1 9.8 26.6 14.2 8.0 15.5 13.8 20.2 7.9 8.3 19.3 13.3 13.8 15.6
  tent     16.0 14.8 24.5 9.2 23.8 13.1 7.7 14.9 13.0 16.5 8.2 8.3 17.9 10.9 13.3 14.1
  shot     16.5 15.3 23.6 9.0 23.4 12.7 7.5 14.0 12.4 16.1 7.5 8.0 17.4 12.5 13.1 13.9
  tttpp    18.0 17.1 30.8 10.4 29.9 13.0 9.9 14.8 14.1 15.8 7.0 7.8 19.3 12.7 16.4 15.8
  ttac     17.9 15.8 22.5 8.5 23.5 11.2 7.6 11.9 12.9 13.3 6.9 7.6 17.3 12.3 12.6 13.4
  tesla    13.3 12.5 20.8 8.8 21.1 11.8 7.3 12.6 11.2 15.6 7.6 7.6 16.2 9.7 11.6 12.5
  tesla+sc 13.0 12.6 19.8 8.8 19.9 10.9 7.5 12.2 11.0 14.4 7.2 7.4 15.4 9.2 10.9 12.0
cifar100-c
  bn       48.2 46.4 61.1 33.8 58.2 41.4 31.9 46.1 42.5 54.7 31.3 33.3 48.4 39.0 39.6 43.7
  tent     43.3 41.2 52.7 31.2 50.8 36.1 29.3 41.9 38.9 43.6 30.1 31.0 43.5 34.4 36.5 39.0
  shot     44.1 41.8 53.3 31.5 50.6 36.0 29.6 40.7 40.1 41.9 29.5 33.6 44.0 34.9 36.6 39.2
  tttpp    50.2 47.7 66.1 35.8 61.0 38.7 35.0 44.6 43.8 48.6 28.8 30.8 49.9 39.2 45.5 44.4
  ttac     47.7 45.7 58.1 32.5 55.3 36.6 31.2 40.3 40.8 44.7 30.0 39.9 47.1 37.8 38.3 41.7
  tesla    40.0 38.9 51.5 32.2 49.1 36.9 29.7 40.4 37.4 46.0 29.3 30.7 42.7 32.9 34.6 38.2
  tesla+sc 39.3 38.4 50.5 31.8 48.7 36.4 29.9 39.9 37.4 46.6 28.4 30.5 43.0 32.1 34.5 37.8
imagenet-c
  bn       83.5 82.6 82.9 84.4 84.2 73.1 60.5 65.1 66.3 51.5 34.0 82.6 55.3 50.3 58.7 67.7
  tent     70.8 68.7 69.1 72.5 73.3 59.3 50.8 53.0 59.1 42.7 32.6 74.5 45.5 41.6 47.8 57.4
  shot     77.0 74.6 76.4 81.2 79.3 72.5 61.7 65.7 66.3 55.6 56.0 92.7 57.1 56.3 58.2 68.7
  ttac     71.5 67.7 70.3 81.2 77.3 64.0 54.4 51.1 56.9 45.4 32.6 79.1 46.0 43.7 48.6 59.3
  tttpp    69.4 66.0 69.7 84.2 81.7 65.2 53.2 49.3 56.2 44.4 32.8 75.7 43.9 41.6 46.9 58.7
  tesla    65.0 62.9 63.5 69.4 69.2 55.4 49.5 49.1 56.6 41.8 33.7 77.9 43.3 40.4 46.6 55.0
  tesla+sc 64.8 62.7 63.7 69.7 69.5 55.1 48.8 48.6 55.7 41.3 32.7 75.8 42.7 39.7 46.0 54.4
"""


def _printed(text: str) -> dict[tuple[str, str], float]:
    """Read the printed errors: a data set, and below it a line per method with all corruptions and the average."""
    found, dataset = {}, ""
    for line in text.strip().splitlines():
        method, *numbers = line.split()
        if not numbers:
            dataset = method
        for corruption, number in zip((*STANDARD, "avg"), numbers, strict=False):
            found[method, f"{dataset}/{corruption}"] = float(number)
    return found


PRINTED = table2.however_scored(_printed(_PRINTED))
"""Errors in percent, seed 0, by method and column; the paper's TeSLA+MC is ``tesla+sc``.

On ImageNet-C the rows of TTAC and TTT++ are labelled as printed: their averages stand the other way round in Table 2.
"""


def grid(scale: str, options: TableOptions) -> list[Cell]:
    """Return the cells of Table 2 with seed 0, as the paper's table has them."""
    return table2.grid(scale, dataclasses.replace(options, seeds=options.seeds or 1))


register_table(
    Table(
        name="tableA4",
        title="Test-time adaptation methods, corruption by corruption (severity 5, online)",
        scales={scale: f"{about.partition(';')[0]}; one seed" for scale, about in table2.TABLE.scales.items()},
        options=frozenset({"methods", "seeds"}),
        grid=grid,
        rows=lambda records: error_rows(records, PRINTED),
        claims=lambda records: below_each(records, "tesla+sc", "tesla"),
    )
)
