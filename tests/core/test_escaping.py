"""Names of strangers do nothing where they are shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsupport.core.escaping import escape, escape_cell, escape_lines

HOSTILE = {
    "a\x1b[2J": r"a\x1b[2J",
    "line\nbreak": r"line\nbreak",
    "\x9b31m": r"\x9b31m",
    "gpj.\u202eexe": r"gpj.\u202eexe",
    "caf\udce9": r"caf\udce9",
    "\u2028": r"\u2028",
    "\x7f\x00": r"\x7f\x00",
}


@pytest.mark.parametrize(("name", "shown"), HOSTILE.items())
def test_what_acts_is_shown_and_does_nothing(name, shown):
    assert escape(name) == shown
    assert escape_cell(name) == shown


def test_usual_names_stay_as_they_are():
    for name in ("Zoë 日本 \U0001f469\u200d\U0001f52c.png", "a\u202fb.png", "[x] $a_b$ & <b>.png", "back\\slash"):
        assert escape(name) == escape_lines(name) == escape_cell(name) == name


def test_lines_stay_lines():
    assert escape_lines("a\nb\x1b\r") == "a\nb\\x1b\\r"


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a", "\t=a", "\r=a", "\uff1da", "  =a"])
def test_no_cell_is_a_formula(name):
    assert escape_cell(name).startswith("'")


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_any_text_can_be_written_and_escaping_again_changes_nothing(text):
    shown = escape(text)
    shown.encode()
    assert not any(ord(sign) < 32 for sign in shown)
    assert escape(shown) == shown
