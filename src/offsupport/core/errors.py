"""Errors a person can act on: one sentence about what is wrong, one about what to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


class OffsupportError(Exception):
    """Base of every error this library raises on purpose.

    Args:
        message: What is wrong, as a sentence.
        remedy: What to do about it, as a sentence or a line of code.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy

    # Unpickling would call the class with the joined text; with both parts a worker's error keeps its remedy.
    def __reduce__(self) -> tuple[type[OffsupportError], tuple[str, str]]:
        return type(self), (self.message, self.remedy)


class ConfigError(OffsupportError):
    """An unknown name or a hyper-parameter outside its range."""


class ModelError(OffsupportError):
    """The model cannot be used the way it was asked to."""


class InputError(OffsupportError):
    """A tensor or array of the wrong kind, shape or device."""


class ShapeError(InputError):
    """Samples of a shape that the model cannot take."""


class SourceStatsError(OffsupportError):
    """Source statistics are missing or belong to something else."""


class FileError(OffsupportError):
    """A file is damaged, unsafe, or not what its name says."""


class CheckpointError(FileError):
    """A checkpoint is damaged or of something else."""


class DataMissingError(OffsupportError):
    """A data set or a part of it is not where it should be."""

    exit_code = 3


class GridIncompleteError(OffsupportError):
    """Some cells of a grid have no result."""

    exit_code = 4


class CellTimeoutError(GridIncompleteError):
    """A cell took longer than it may."""


def nearest(name: str, known: Iterable[str], beside: Iterable[str] = ()) -> str:
    """Return a remedy that names the closest name, known or beside those, or else all known ones.

    Example:
        >>> nearest("tnet", ["tent", "bn"])
        "Did you mean 'tent'?"
        >>> nearest("TENT", ["tent", "bn"])
        "Did you mean 'tent'?"
        >>> nearest("zzz", ["tent", "bn"])
        'Known: bn, tent.'
    """
    known = sorted(known)
    spelt = {each.lower(): each for each in (*known, *beside)}
    # 0.5 is generous: a wrong guess costs a glance, a missing one a look into the docs.
    close = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {spelt[close[0]]!r}?"
    return f"Known: {', '.join(known)}." if known else "It takes none."


Spelling = Callable[[str, str], str]
"""How a remedy writes an argument with a value: as a keyword for Python, as an option for the command line."""


def as_keyword(name: str, value: str) -> str:
    """Write an argument as a line of Python would; no value stands for True.

    Example:
        >>> as_keyword("size", "32")
        'size=32'
    """
    return f"{name}={value or True}"
