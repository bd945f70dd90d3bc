"""Every dotted name of the package in the docs leads somewhere, and every path of the repository exists."""

import importlib
import re
from pathlib import Path

import pytest

from offsupport.core.moved import MODULES

ROOT = Path(__file__).parents[2]
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in BESIDE)]
DOTTED = re.compile(r"\boffsupport(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w/.-])(?:src|tests|docs|benchmarks|tools|results|\.github)/[\w./+-]*\w")
GROUPS = {f"offsupport.{group}" for group in ("methods", "corruptions", "datasets", "models", "tables")}
"""Groups of entry points look like modules."""


def resolve(name):
    """Import as much of a dotted name as is a module, and look the rest up in it."""
    words = name.split(".")
    for cut in range(len(words), 0, -1):
        try:
            found = importlib.import_module(".".join(words[:cut]))
        except ModuleNotFoundError:
            continue
        for word in words[cut:]:
            found = getattr(found, word)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_lead_somewhere(page):
    for name in sorted(set(DOTTED.findall(page.read_text(encoding="utf-8"))) - GROUPS):
        assert not any(f"{name}.".startswith(f"{old}.") for old in MODULES), f"{name} is an old name"
        assert resolve(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_the_repository_exist(page):
    for path in sorted(set(PATH.findall(page.read_text(encoding="utf-8")))):
        assert list(ROOT.glob(path + "*")), path


def test_a_name_that_leads_nowhere_is_noticed():
    with pytest.raises(AttributeError):
        resolve("offsupport.methods.nowhere")
    assert resolve("offsupport.core.errors.OffsupportError")
