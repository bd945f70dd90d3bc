"""The lists in the docs are those of the registries; run as a script, this writes the table of corruptions anew."""

import re
from pathlib import Path

import pytest

from offsupport.data import GROUPS, list_datasets, list_protocols

DOCS = Path(__file__).parents[2] / "docs"
TABLE = re.compile(r"(<!-- corruptions -->\n).*?(<!-- /corruptions -->)", re.DOTALL)
REMARKS = {"extra": " (for validation, in no published average)"}


def table():
    rows = [f"| {group}{REMARKS.get(group, '')} | {', '.join(names)} |" for group, names in GROUPS.items()]
    return "\n".join(["| group | corruptions |", "|---|---|", *rows, ""])


def written(text):
    return TABLE.sub(lambda marks: marks[1] + table() + marks[2], text)


def test_the_table_of_corruptions_is_that_of_the_registry():
    text = (DOCS / "corruptions.md").read_text(encoding="utf-8")
    assert TABLE.search(text)
    assert written(text) == text, "python tests/data/test_data_docs.py"


@pytest.mark.parametrize(("heading", "known"), [("Data sets", list_datasets), ("Protocols", list_protocols)])
def test_every_data_set_and_every_protocol_is_described(heading, known):
    text = (DOCS / "data.md").read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == set(known())


if __name__ == "__main__":
    page = DOCS / "corruptions.md"
    page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
