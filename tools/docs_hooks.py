"""What mkdocs calls while it builds the site: mathematics as MathML, and the command line from the program itself."""

from __future__ import annotations

import html
import importlib
import re
from collections.abc import Iterator
from typing import Any

import typer.main
from latex2mathml.converter import convert

from offsupport.cli.main import app

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")
"""A link to a file of the repository that is no page of the site."""
_MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):<code>~?(?:[\w.]*\.)?(\w+)</code>")
"""A name in a docstring, as Sphinx marks it, after Markdown has made code of it."""
_NAME = re.compile(r'(?<=<span class="doc doc-object-name )([^>]*>)(offsupport[\w.]+)(?=</span>)')
"""The name of an object of the reference, as its module has it."""
CLI_MARK = "<!-- command line -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the command line, and leave of links to files outside the site their text."""
    return _OUTSIDE.sub(r"\1", markdown.replace(CLI_MARK, "\n".join(command_line())))


def on_page_content(content: str, **_: Any) -> str:
    """Turn LaTeX into MathML, which browsers draw by themselves; shorten names to those that users import."""
    content = _NAME.sub(lambda found: found.group(1) + public_name(found.group(2)), content)
    content = _ROLE.sub(lambda found: f"<code>{found.group(1)}</code>", content)
    return _MATH.sub(lambda found: _drawn(html.unescape(found.group(2)), alone=found.group(1) == "div"), content)


def public_name(path: str) -> str:
    """Return the shortest name under which an object can be imported.

    Example:
        >>> public_name("offsupport.engine.registry.adapt")
        'offsupport.adapt'
    """
    *rooms, name = path.split(".")
    try:
        meant = getattr(importlib.import_module(".".join(rooms)), name)
    except (ImportError, AttributeError):  # what belongs to a class has the name of the class
        return path
    for depth in range(1, len(rooms)):
        room = importlib.import_module(".".join(rooms[:depth]))
        if name in getattr(room, "__all__", ()) and getattr(room, name) is meant:
            return ".".join([*rooms[:depth], name])
    return path


def command_line() -> Iterator[str]:
    """Yield the reference of all verbs as Markdown."""
    for name, command in _verbs(typer.main.get_command(app), "offsupport"):
        usage = " ".join(str(p.name).upper() for p in command.params if p.param_type_name == "argument")
        yield f"## `{name}`\n\n{(command.help or '').strip()}\n"
        yield f"```console\n{' '.join(filter(None, [name, usage, '[OPTIONS]']))}\n```\n"
        yield "| option | default | what it is |\n|---|---|---|"
        yield from (_row(option) for option in command.params if option.name != "help")
        yield ""


def _verbs(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, inner in command.commands.items():
        yield from _verbs(inner, f"{name} {word}")


def _row(option: Any) -> str:
    words = [*option.opts, *option.secondary_opts] if option.param_type_name == "option" else [option.name]
    names = ", ".join(f"`{word}`" for word in words)
    default = "required" if option.required else _default(option.default)
    return f"| {names} | {default} | {' '.join((option.help or '').split()).replace('|', chr(92) + '|')} |"


def _default(value: Any) -> str:
    shown = value is not None and value is not False and value != [] and value != "" and not callable(value)
    return f"`{value}`" if shown else ""


def _drawn(latex: str, *, alone: bool) -> str:
    """Return MathML; a formula on lines of its own is a paragraph, which scrolls where it is wider than the page."""
    drawn: str = convert(latex, display="block" if alone else "inline")
    return f"<p>{drawn}</p>" if alone else drawn
