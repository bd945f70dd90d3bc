"""A strict reader of pages: unclosed or crossed elements and anything that would reach outside are findings."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}
REFERENCES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.findings: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.findings += [f"{tag} {name}={value}" for name, value in attrs if self._outside(name, value)]
        self.findings += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.findings += [f"{tag} {name}={value}" for name, value in attrs if self._outside(name, value)]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.findings.append(f"</{tag}> closes nothing or something else")

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        self.texts.append((inside, data))
        if inside == "style" and ("url(" in data or "@import" in data):
            self.findings.append("style that loads something")

    @staticmethod
    def _outside(name: str, value: str | None) -> bool:
        if name in REFERENCES:
            return not (value or "").startswith(("#", "data:"))
        return "url(" in (value or "") and "url(#" not in (value or "")


def read(text: str) -> Reader:
    """Parse a page; its findings are empty for a good one."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    reader.findings += [f"<{tag}> is never closed" for tag in reader.open]
    return reader
