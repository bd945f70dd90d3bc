"""Pages with executed cells: what stands below a cell is what it prints."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from cells import PAGES, PART, filled

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SECONDS = re.compile(r"(?<= in )[\d.]+(?= s$)", re.MULTILINE)


def outputs(text):
    return [part["shown"] for part in PART.finditer(text) if part["shown"] is not None]


def alike(now, then, off):
    """Tell whether two outputs have the same words in the same order, and numbers that differ by little.

    How long something took may differ by any amount, but not whether it is said.
    """
    now, then = (SECONDS.sub("", text) for text in (now, then))
    same_words = NUMBER.sub("", now) == NUMBER.sub("", then)
    pairs = zip(*(map(float, NUMBER.findall(text)) for text in (now, then)), strict=False)
    return same_words and all(abs(one - other) <= off for one, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/tour.md", "docs/tutorial.md"])
def test_the_cells_of_a_page_print_what_stands_below_them(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for now, then in zip(outputs(filled(text)), outputs(text), strict=True):
        # Elsewhere training ends in other last digits, and an image or two fall otherwise.
        assert alike(now, then, off=5.0), (now, then)


def test_the_front_page_shows_what_the_readme_does():
    readme, front = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/index.md"))
    assert outputs(front) == outputs(readme)[:1]
    code = [[line.partition("  #")[0] for line in PART.search(text)["code"].splitlines()] for text in (readme, front)]
    assert code[0] == code[1]
    assert re.search(r"^\*\*.*\*\*$", front, re.MULTILINE)[0] in readme


@pytest.mark.parametrize("page", PAGES)
def test_no_cell_waits_for_its_output(page):
    shown = outputs((ROOT / page).read_text(encoding="utf-8"))
    assert shown
    assert all(re.fullmatch(r"```text\n.+```\n", output, re.DOTALL) for output in shown)


def test_a_cell_knows_the_cells_before_it_and_its_output_is_replaced():
    page = "```python\na = 3\n```\n```python\nprint(a)\n```\n<!-- output -->\nold\n<!-- /output -->\n"
    assert filled(page) == page.replace("old\n", "```text\n3\n```\n")
    assert not alike("4.0 % right", "40.0 % right", 5.0)
    assert not alike("4.0 % right", "4.0 % wrong", 5.0)
    assert alike("4.0 % right in 2.0 s", "4.0 % right in 90.0 s", 5.0)
    assert not alike("4.0 % right in 2.0 s", "4.0 % right", 5.0)
