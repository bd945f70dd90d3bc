"""One kind of registry: names to things, with an error that helps, and a door for other people's packages."""

from __future__ import annotations

import importlib.metadata
import re
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Generic, TypeVar

from offsupport.core.errors import ConfigError, nearest

T = TypeVar("T")


def same_definition(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions come from one place in the code, which was run again: a notebook's cell, a reloaded module.

    Such a second one is the first one improved, and takes its place; any other of the name is a clash.
    """
    if not isinstance(one, FunctionType) or not isinstance(other, FunctionType):
        return False
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def names_code(name: object) -> bool:
    """Whether a name is ``module:function``: code, which a file may name and only a person can allow.

    Example:
        >>> names_code("mymodels:classifier"), names_code("zoo:cifar10-mae-tiny"), names_code("digits-small")
        (True, False, False)
    """
    return isinstance(name, str) and bool(_CODE.fullmatch(name)) and not name.startswith(_WEIGHTS)


_CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")
_WEIGHTS = ("zoo:", "file:", "pip:", "timm:")


class Registry(Generic[T]):
    """Maps names to objects of one kind, in the order they were registered.

    An installed package may add to it: an entry point of the registry's group names a module (or something in it) that
    registers the name when it is imported. That happens when a name is asked for that is not here, or when all are
    listed, so nobody waits for packages they do not use.

    Args:
        kind: What is registered here, for error messages ("method", "corruption").
        group: The group of entry points that other packages add to; None where they cannot.
    """

    def __init__(self, kind: str, group: str | None = None) -> None:
        self.kind = kind
        self.group = group
        self._items: dict[str, T] = {}
        self._outside: dict[str, importlib.metadata.EntryPoint] | None = None
        self._broken: dict[str, ConfigError] = {}

    def register(self, name: str, *, replace: bool = False) -> Callable[[T], T]:
        """Return a decorator that stores its argument under ``name``; a name is taken once.

        Args:
            name: What it is called.
            replace: Whether it may take the place of one of that name; see :func:`same_definition`.
        """

        def store(item: T) -> T:
            if name in self._items and not replace:
                raise ConfigError(f"The {self.kind} {name!r} is registered already.", "Choose another name.")
            self._items[name] = item
            return item

        return store

    def registered(self) -> dict[str, T]:
        """Return what has been registered so far, by name; nothing of other packages is imported for it."""
        return dict(self._items)

    def known(self) -> list[str]:
        """Return every name that gives something, for an error to find the nearest one."""
        return list(self)

    def __getitem__(self, name: str) -> T:
        if name not in self._items and name in self._entry_points():
            self._load(self._entry_points()[name])
        if name not in self._items:
            known = self.known()  # loads what packages offer, which may turn out to have the name after all
            if name not in self._items:
                raise ConfigError(f"Unknown {self.kind} {name!r}.", nearest(name, known))
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        for name, point in self._entry_points().items():
            if name not in self._items and name not in self._broken:
                try:
                    self._load(point)
                except ConfigError as error:
                    # One broken package must not hide what all the others offer.
                    warnings.warn(str(error), stacklevel=2)
        return iter(list(self._items))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        """Return what installed packages offer, by name; read once, nothing of theirs is imported for it."""
        if self._outside is None:
            found = importlib.metadata.entry_points(group=self.group) if self.group else ()
            self._outside = {point.name: point for point in found}
        return self._outside

    def _load(self, point: importlib.metadata.EntryPoint) -> None:
        if point.name not in self._broken:  # tried once: what failed is not half done a second time
            before = dict(self._items)
            try:
                point.load()
            except Exception as error:  # it is another package's code: whatever it raises, say whose fault it is
                self._items = before  # what fails half-way has added nothing
                self._broken[point.name] = ConfigError(
                    f"The {self.kind} {point.name!r} of another package ({point.value}) cannot be loaded "
                    f"({type(error).__name__}: {error}).",
                    "Repair or uninstall that package.",
                )
            else:
                if point.name not in self._items:
                    self._broken[point.name] = ConfigError(
                        f"{point.value} does not register the {self.kind} {point.name!r} that its package promises.",
                        "Give the entry point the name that the decorator registers.",
                    )
        if point.name in self._broken:
            raise self._broken[point.name]
