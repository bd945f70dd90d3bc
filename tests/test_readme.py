"""README and CONTRIBUTING say what is true: their code runs, their tables are the registry's and those of results/."""

import json
import re
from pathlib import Path

import pytest
import torch

import offsupport
from offsupport.methods import METHODS
from offsupport.nn import resnet18

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def between(name: str) -> list[str]:
    inside = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README, re.DOTALL)
    return inside.group(1).splitlines()


def snippets(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


SECONDS = re.compile(r"(?<= in )[\d.]+(?= s$)", re.MULTILINE)
"""How long it took, which no two runs agree on; that it is said, they do."""


@pytest.mark.parametrize(("number", "mark"), [(0, "output"), (1, "output: tables")])
def test_snippets_print_what_stands_below_them(capsys, number, mark):
    torch.set_num_threads(1)
    exec(snippets("README.md")[number], {})
    printed = SECONDS.sub("", capsys.readouterr().out).splitlines()
    written = SECONDS.sub("", "\n".join(between(mark)[1:-1])).splitlines()
    assert len(printed) == len(written)
    for now, then in zip(printed, written, strict=True):
        # On another processor an image or two may fall otherwise; words and their order are the same.
        assert re.sub(r"[\d.]+", "", now) == re.sub(r"[\d.]+", "", then)
        numbers = zip(*(map(float, re.findall(r"\d+(?:\.\d+)?", line)) for line in (now, then)), strict=True)
        assert all(one == pytest.approx(other, abs=1.0) for one, other in numbers)


def test_every_snippet_is_among_those_that_are_run():
    assert len(snippets("README.md")) == len(re.findall(r"<!-- output", README)) == 2


def test_the_first_snippet_shows_that_adapting_helps():
    source, adapted = (float(re.search(r"error ([\d.]+) %", line).group(1)) for line in between("output")[1:-1])
    assert adapted < source


def test_method_table_is_the_registry():
    rows = [f"| `{i.name}` | {i.adapts} | {i.norm} | {i.source} | {i.scored} |" for i in offsupport.list_methods(True)]
    assert between("method table")[2:] == rows


def test_demo_table_is_the_stored_result():
    stored = json.loads((ROOT / "results" / "demo.json").read_text())["results"]
    assert between("demo table")[0].split("|")[2:-1] == [f" {method} " for method in next(iter(stored.values()))]
    for line, (name, row) in zip(between("demo table")[2:], stored.items(), strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0] == name
        assert [float(cell.split()[0]) for cell in cells[1:]] == [round(100 * r["error"], 1) for r in row.values()]


def test_what_it_says_of_harm_is_the_stored_result():
    expected = []
    for name in ("regret", "regret-photographs"):
        every = json.loads((ROOT / "results" / name / f"{name}.json").read_text())["summary"]
        source, auto = (next(row for row in every if row["method"] == method) for method in ("source", "auto"))
        expected += [auto["conditions"], source["error"], auto["error"], auto["worst harm"]]
    said = "\n".join(between("regret harm"))
    assert said.startswith("**It does little harm.**")
    numbers = [float(number) for number in re.findall(r"(?<!\S)\d+(?:\.\d+)?", said)]
    networks = numbers.pop(1)
    assert networks == 4
    assert numbers == [round(number, 1) for number in expected]


def test_files_it_links_to_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / target).exists(), target


def test_the_method_of_contributing_works():
    scope = {}
    exec(snippets("CONTRIBUTING.md")[0], scope)
    try:
        adapted = offsupport.adapt(resnet18(width=4), "sharpen", lr=1e-2)
        x = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        assert not torch.equal(adapted(x), adapted(x))
        assert adapted.passes == {"forward": 2, "backward": 2}
    finally:
        METHODS._items.pop("sharpen")


@pytest.mark.parametrize("page", [page.name for page in sorted((ROOT / "docs").glob("*.md"))])
def test_docs_link_to_files_that_exist(page):
    text = (ROOT / "docs" / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target
