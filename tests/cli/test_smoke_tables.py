"""Every table runs at its smoke scale, with nothing but the package, and prints the JSON that is promised."""

import json
import subprocess
import sys

import pytest

from offsupport.studies import TABLES

VERDICTS = {"holds", "does-not-hold", "undecided"}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TABLES))
def test_a_table_runs_from_the_package_alone(name, tmp_path):
    words = ["reproduce", name, "--scale", "smoke", "--workers", "1", "--json", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "offsupport", *words], cwd=tmp_path, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"table", "scale", "rows", "claims"} <= set(found)
    assert (found["table"], found["scale"]) == (name, "smoke")
    assert {claim["verdict"] for claim in found["claims"]} <= VERDICTS
    assert (tmp_path / "run" / "report.html").is_file()
    if name == "tableA2":  # hyper-parameters: there is nothing to measure
        assert found["rows"] == found["claims"] == []
    else:
        assert found["rows"]
        for row in found["rows"]:
            assert {"method", "column", "metric", "unit", "value", "low", "high", "n", "paper"} <= set(row)
