"""RDumb: entropy minimisation that goes back to the source every so often, which long streams are a test of."""

from __future__ import annotations

from typing import Any, ClassVar

from offsupport.engine.config import MethodInfo
from offsupport.engine.registry import register_method
from offsupport.methods.eata import Eta, EtaConfig


@register_method(
    MethodInfo(
        name="rdumb",
        summary="ETA that goes back to the source every 64,000 images, or as reset_every says.",
        paper="Press et al. 2023",
        adapts="scale and shift of norm layers",
        scored="before the step",
        norm="any",
        source="none",
        single="batch norm: no step, blended statistics; group and layer norm: a step per reliable sample",
        passes="1F 1B",
    ),
    EtaConfig,
)
class Rdumb(Eta):
    """ETA with periodic resets; published is one per 1,000 steps of 64 images."""

    images_per_reset: ClassVar[int] = 64_000
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"lr": 1e-3, "optimizer": "adam", "redundancy": 0.4},
        "cifar100": {"lr": 1e-3, "optimizer": "adam", "redundancy": 0.4},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd", "redundancy": 0.05},
    }
