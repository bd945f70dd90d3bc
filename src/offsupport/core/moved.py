"""Public names that have moved: they keep working for one version, and say where they are now."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

MODULES = {
    "offsupport.bench.correctness": "offsupport.results.correctness",
    "offsupport.bench.results": "offsupport.studies.errors",
    "offsupport.latent.draws": "offsupport.latent.process.draws",
    "offsupport.methods.adapter": "offsupport.engine.adapter",
    "offsupport.methods.factory": "offsupport.methods",
    "offsupport.nn.architectures": "offsupport.nn.loading",
    "offsupport.report.runs": "offsupport.report.run_page",
    "offsupport.theory.deep": "offsupport.diagnosis",
}
"""Where the contents of a module are now that the docs of 0.2.0 named, by what it was called."""


def moved(room: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` for names that now live elsewhere.

    Args:
        room: The module they were in.
        names: Where each one is now, by name.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        warnings.warn(
            f"{room}.{name} has moved: import it from {names[name]}. The old place goes with version 0.4.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(names[name]), name)

    return find


class _OldModules(MetaPathFinder, Loader):
    """Finds modules under their old names; asked only after everybody else has failed to."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where the import system gets the module from, if it is one of ours."""
        return spec_from_loader(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Make it look its names up where they are now."""
        old, new = module.__name__, MODULES[module.__name__]
        said = f"{old} has moved: import from {new}. The old place goes with version 0.4."
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        now = importlib.import_module(new)
        vars(module)["__getattr__"] = lambda name: getattr(now, name)


def find_old_modules() -> None:
    """Let the modules of :data:`MODULES` be imported under their old names."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())
