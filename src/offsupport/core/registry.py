"""One kind of registry: names to things, with an error that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from offsupport.core.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to objects of one kind, in the order they were registered.

    Args:
        kind: What is registered here, for error messages ("method", "corruption").
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores its argument under ``name``; a name is taken once."""

        def store(item: T) -> T:
            if name in self._items:
                raise ConfigError(f"The {self.kind} {name!r} is registered already.", "Choose another name.")
            self._items[name] = item
            return item

        return store

    def known(self) -> list[str]:
        """Return every name that gives something, for an error to find the nearest one."""
        return list(self._items)

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            raise ConfigError(f"Unknown {self.kind} {name!r}.", nearest(name, self.known()))
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
