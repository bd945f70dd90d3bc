"""The tour, from its first command to its page."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_tour_ends_with_a_page_that_shows_every_part(tmp_path):
    command = [sys.executable, "-m", "offsupport", "demo", "--out", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)
    page = (tmp_path / "demo" / "report.html").read_text()
    for heading in ("Shifted digits", "Table 1 of the paper, at smoke scale", "Can this shift be recovered?"):
        assert heading in page
    for part in ("digits", "table1"):
        assert (tmp_path / "demo" / part / "report.html").is_file()
