"""Extrapolation with latent variables: processes z = [c, s] -> x, and estimators that find c off the support.

The names below are loaded when first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offsupport.latent.baselines.imsda import Imsda as Imsda
    from offsupport.latent.baselines.only_source import OnlySource as OnlySource
    from offsupport.latent.baselines.trimmed import TrimmedNN as TrimmedNN
    from offsupport.latent.baselines.vae import Vae as Vae
    from offsupport.latent.baselines.vae_slab import ConditionalVae as ConditionalVae
    from offsupport.latent.baselines.vae_slab import VaeSlab as VaeSlab
    from offsupport.latent.extrapolator.decision import Explanation as Explanation
    from offsupport.latent.extrapolator.estimator import Extrapolator as Extrapolator
    from offsupport.latent.process.draws import Draws as Draws
    from offsupport.latent.process.draws import draw as draw
    from offsupport.latent.process.process import Process as Process
    from offsupport.latent.process.process import preset as preset

_PUBLIC = {
    "ConditionalVae": "baselines.vae_slab",
    "Draws": "process.draws",
    "Explanation": "extrapolator.decision",
    "Extrapolator": "extrapolator.estimator",
    "Imsda": "baselines.imsda",
    "OnlySource": "baselines.only_source",
    "Process": "process.process",
    "TrimmedNN": "baselines.trimmed",
    "Vae": "baselines.vae",
    "VaeSlab": "baselines.vae_slab",
    "draw": "process.draws",
    "preset": "process.process",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"offsupport.latent.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'offsupport.latent' has no attribute {name!r}")
