"""Extrapolation with latent variables: processes z = [c, s] -> x, and estimators that find c off the support.

The names below are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offsupport.latent.draws import Draws as Draws
    from offsupport.latent.draws import draw as draw
    from offsupport.latent.extrapolator import Extrapolator as Extrapolator
    from offsupport.latent.imsda import Imsda as Imsda
    from offsupport.latent.only_source import OnlySource as OnlySource
    from offsupport.latent.process import Process as Process
    from offsupport.latent.process import preset as preset
    from offsupport.latent.trimmed import TrimmedNN as TrimmedNN
    from offsupport.latent.vae import Vae as Vae

_PUBLIC = {
    "Draws": "draws",
    "Extrapolator": "extrapolator",
    "Imsda": "imsda",
    "OnlySource": "only_source",
    "Process": "process",
    "TrimmedNN": "trimmed",
    "Vae": "vae",
    "draw": "draws",
    "preset": "process",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"offsupport.latent.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'offsupport.latent' has no attribute {name!r}")
