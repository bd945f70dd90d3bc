"""The glossary: words in order, each once, and the names in it exist."""

import re
from pathlib import Path

import offsupport

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ENTRIES = re.findall(r"^\| (.+?) \| (.+) \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)[1:]


def test_words_stand_in_order_and_once():
    words = [word for word, _ in ENTRIES]
    assert len(words) > 50
    assert words == sorted(set(words), key=str.lower)


def test_names_in_the_glossary_stand_in_the_code():
    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(offsupport.__file__).parent.rglob("*.py"))
    for word, meaning in ENTRIES:
        for name in re.findall(r"`([^`]+)`", meaning):
            assert re.search(rf"\b{re.escape(name.split('.')[-1].lstrip('-+'))}\b", source), (word, name)
