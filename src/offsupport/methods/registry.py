"""All methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from offsupport.core.registry import Registry
from offsupport.methods.adapter import Adapter
from offsupport.methods.config import MethodConfig, MethodInfo, StepConfig
from offsupport.methods.tuned import with_narrow

A = TypeVar("A", bound=type[Adapter])

SPARSE = "+sc"
"""Behind the name of a method that takes steps: the method under the sparsity constraint."""


class Methods(Registry[type[Adapter]]):
    """Methods by name; ``tent+sc`` is made from ``tent`` when asked for, and not listed."""

    def known(self) -> list[str]:
        """Return the names of all methods, also of those made when asked for."""
        steps = [name for name, cls in self._items.items() if issubclass(cls.config_class, StepConfig)]
        return [*self, *(name + SPARSE for name in steps)]

    def __getitem__(self, name: str) -> type[Adapter]:
        if name in self or not name.endswith(SPARSE):
            return super().__getitem__(name)
        # A method under the constraint is a method itself: its module needs this one.
        from offsupport.methods.sparsity import constrained

        return constrained(super().__getitem__(self.plain(name)))

    def plain(self, name: str) -> str:
        """Return the name of the method without the constraint; what it keeps of source data serves both."""
        return name if name in self else name.removesuffix(SPARSE)


METHODS = Methods("method")


def register(info: MethodInfo, config: type[MethodConfig]) -> Callable[[A], A]:
    """Make an :class:`Adapter` known under ``info.name``, with ``config`` as its hyper-parameters."""

    def store(cls: A) -> A:
        cls.info = info
        cls.config_class = config
        cls.presets = with_narrow(info.name, cls.presets)
        METHODS.register(info.name)(cls)
        return cls

    return store
