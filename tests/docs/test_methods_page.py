"""docs/methods.md has a section for every method, and its table of other people's methods is that of their cards."""

import json
import re
from pathlib import Path

from offsupport.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SCREEN = 60
"""Lines of a terminal of 160 columns: nothing to scroll through."""


def test_every_method_has_a_section_of_a_screen():
    assert set(METHODS) <= set(SECTIONS)
    for name in METHODS:
        lines = sum(-(-len(line) // 160) or 1 for line in SECTIONS[name].splitlines())
        assert lines <= SCREEN, (name, lines)


def test_the_table_of_other_peoples_methods_is_that_of_their_cards():
    rows = re.findall(r"^\| ((?:`[\w+-]+`(?:, )?)+) \| (.*?) \| (.*?) \|", SECTIONS["methods of others"], re.MULTILINE)
    passes = {name: cell for names, _, cell in rows for name in re.findall(r"`([\w+-]+)`", names)}
    assert passes == {name: METHODS[name].info.passes for name in passes}
    order = [name for name in SECTIONS if name in METHODS]
    assert set(order[order.index("lame") :]) == set(passes)


def test_options_named_in_the_section_of_a_method_exist():
    """What looks like ``name=value`` there is a hyper-parameter of the method, or an option of all."""
    options = {"source", "preset", "window", "head", "reset_every", "trusted", "transform"}
    for name in METHODS:
        known = set(METHODS[name].config_class.__dataclass_fields__)
        for found in re.findall(r"`(\w+)=[^`]*`", SECTIONS[name]):
            assert found in known | options, (name, found)


def test_costs_were_measured_of_methods_there_are():
    rows = json.loads((ROOT / "results" / "overhead_peers.json").read_text(encoding="utf-8"))
    assert {row["method"].partition(",")[0] for row in rows} <= set(METHODS)
