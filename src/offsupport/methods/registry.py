"""All methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from offsupport.core.registry import Registry
from offsupport.methods.adapter import Adapter
from offsupport.methods.config import MethodConfig, MethodInfo

METHODS: Registry[type[Adapter]] = Registry("method")

A = TypeVar("A", bound=type[Adapter])


def register(info: MethodInfo, config: type[MethodConfig]) -> Callable[[A], A]:
    """Make an :class:`Adapter` known under ``info.name``, with ``config`` as its hyper-parameters."""

    def store(cls: A) -> A:
        cls.info = info
        cls.config_class = config
        METHODS.register(info.name)(cls)
        return cls

    return store
