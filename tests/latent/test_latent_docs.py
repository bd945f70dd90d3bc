"""The how-to of docs/extrapolate.md runs and shows what the page says; its comparison is the one that is stored."""

import json
import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "extrapolate.md"


@pytest.mark.slow
def test_how_to_runs_and_prints_what_the_page_shows(capsys):
    text = PAGE.read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "load_breast_cancer" in block)
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert names["accuracy"]["Extrapolator"][1] > max(
        value[1] for name, value in names["accuracy"].items() if name != "Extrapolator"
    )
    assert names["distrusted"] == (2, 7, 20)
    shown = text.split(code)[1].split("```")[2].strip().splitlines()
    assert [_words(line) for line in capsys.readouterr().out.splitlines()] == [_words(line) for line in shown]


def test_the_comparison_on_the_page_is_the_stored_one():
    script = runpy.run_path(str(PAGE.parents[1] / "benchmarks" / "extrapolator_tables.py"))
    stored = json.loads(script["STORED"].read_text())
    assert [row["table"] for row in stored["rows"]] == list(script["TABLES"])
    shown = PAGE.read_text().split("<!-- extrapolator tables -->")[1].split("<!-- /extrapolator tables -->")[0]
    assert shown.strip() == script["table"](stored)


def _words(line):
    """Split a line, its numbers rounded to two digits: other versions of the classifiers may differ in the third."""
    return [f"{float(word):.2f}" if re.fullmatch(r"0\.\d+", word) else word for word in line.split()]
