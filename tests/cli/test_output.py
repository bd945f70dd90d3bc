"""Tables on a terminal: wide ones come in parts, and no number is broken."""

import pytest

from offsupport.cli.output import emit_in_parts

METHODS = ["source", "bn", "tent", "tesla-s+sc", "ttac (score_stats=running)", "sar"]
ROWS = [[f"cifar10-c/{name}", *(f"{10 * i + k}.{k}" for k in range(6))] for i, name in enumerate(["fog", "frost"], 1)]


@pytest.mark.parametrize(("width", "parts"), [(200, 1), (80, 2), (40, 4)])
def test_wide_tables_come_in_parts(width, parts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    emit_in_parts("errors", ["", *METHODS], ROWS)
    printed = capsys.readouterr().out
    assert printed.count("cifar10-c/frost") == parts
    assert printed.count("errors") == 1
    for value in [value for row in ROWS for value in row[1:]]:
        assert printed.count(value) == 1
    if width > 40:
        assert all(method in printed for method in METHODS)
    assert all(len(line) <= width for line in printed.splitlines())
