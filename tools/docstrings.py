"""What griffe is told of our docstrings while the site is built: an example is code, not a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Calls the part ``Example:`` of a docstring by the name under which griffe finds doctests in it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the part in one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
