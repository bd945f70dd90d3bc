"""Protocols: the streams that methods are compared on in the literature, by name, with their published parameters.

A protocol says what comes (which corruptions, in which order, how often, in which order of the labels), how many images
come at once, and when the adapter starts again from the source model. Which data set it is of is up to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from offsupport.core.errors import ConfigError
from offsupport.core.registry import Registry
from offsupport.data.corruptions import STANDARD
from offsupport.data.spec import SEVERITY

if TYPE_CHECKING:
    from offsupport.data.streams import Stream

DIRICHLET_IMAGES = 10
"""Images that each of the time slots of a Dirichlet order has at least, in published code."""
TURNS = (
    *("motion_blur", "snow", "fog", "shot_noise", "defocus_blur", "contrast", "zoom_blur", "brightness", "frost"),
    *("elastic_transform", "glass_blur", "gaussian_noise", "pixelate", "jpeg_compression", "impulse_noise"),
)
"""The fifteen corruptions in the order of practical test-time adaptation (Yuan et al., 2023)."""
GLIDING = tuple(name for name in STANDARD if name != "brightness")
"""The fourteen corruptions of CCC-Easy (Press et al., 2023)."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A named stream.

    Args:
        name: What it is called.
        about: One line for people.
        published: Where it comes from, with the parameters it was published with.
        ours: How a stream made here differs; empty where it does not.
        reset: When the adapter starts again, in the words of :func:`offsupport.evaluate`.
        batch_size: Images that come at once.
        corruptions: Which, in the order of their visits.
        options: What else :func:`offsupport.data.stream` is told.
        window: Past images that fill up a batch, an option of :func:`offsupport.adapt`; 0 for none.
    """

    name: str
    about: str
    published: str
    ours: str = ""
    reset: Literal["online", "continual"] = "continual"
    batch_size: int = 200
    corruptions: tuple[str, ...] = STANDARD
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    window: int = 0

    def settings(self, corruptions: Sequence[str] | None = None, **changed: Any) -> dict[str, Any]:
        """Return what :func:`offsupport.data.stream` is given.

        Args:
            corruptions: Only these, in the protocol's order; None for all of its own.
            **changed: Options with other values: ``limit``, ``batch_size``, ``seed``, ``severity``.
        """
        own = self.corruptions
        if corruptions is not None:
            # Those of the protocol keep their turn; any other follows as it was given.
            own = tuple(sorted(corruptions, key=lambda name: own.index(name) if name in own else len(own)))
        given = {name: value for name, value in changed.items() if value is not None}
        return {
            "corruption": list(own),
            "severity": SEVERITY,
            "batch_size": self.batch_size,
            **self.options,
            **given,
        }

    def stream(
        self,
        dataset: str,
        root: Path | str | None = None,
        *,
        corruptions: Sequence[str] | None = None,
        limit: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> Stream:
        """Return the protocol's stream of a data set; fewer images than it needs are an error that says how many.

        Args:
            dataset: A corrupted data set (``cifar10-c``).
            root: Where it is.
            corruptions: Only these; None for the published ones.
            limit: Images of each domain; None for all there are.
            batch_size: Images that come at once; None for the published number.
            seed: Of order and limit.

        Example:
            >>> batches = PROTOCOLS["continual"].stream("digits-c", corruptions=["fog", "frost"], limit=200)
            >>> [batch.domain for batch in batches]
            ['frost/5', 'fog/5']
        """
        from offsupport.data.streams import stream

        made = stream(dataset, root, **self.settings(corruptions, limit=limit, batch_size=batch_size, seed=seed))
        self.require_enough(made)
        return made

    def require_enough(self, made: Stream) -> None:
        """Refuse a stream that is too short to be this protocol."""
        spec, there = made.spec, len(made.domains[0].dataset)
        have = there if spec.limit is None else min(spec.limit, there)
        needed, why = self.needs(len(made.classes), spec.batch_size)
        if have < needed:
            whose = "the data set has" if have == there else "limit leaves"
            raise ConfigError(
                f"The protocol {self.name!r} needs {needed:,} images of each domain ({why}), and {whose} {have:,}.",
                f"Give limit={needed} or more, or a smaller batch_size." if have < there else "Take more images.",
            )

    def needs(self, classes: int, batch_size: int) -> tuple[int, str]:
        """Return how many images of each domain it takes at least, and what for."""
        found = [(max(batch_size, self.window), "a batch" if batch_size >= self.window else "a window")]
        if self.options.get("order") == "dirichlet":
            found.append((DIRICHLET_IMAGES * classes, f"{DIRICHLET_IMAGES} in each of {classes} time slots"))
        if "imbalance" in self.options:
            ratio = self.options["imbalance"]
            found.append((math.ceil(ratio * classes), f"{ratio:g} of the most frequent class, one of the rarest"))
        if self.options.get("schedule") in ("mixed", "pairs"):
            found[0] = (1, "one")  # batches go on from one domain to the next
        return max(found)


PROTOCOLS: Registry[Protocol] = Registry("protocol")
"""Every protocol by name."""


def list_protocols() -> dict[str, str]:
    """Return the names of the protocols and a line about each."""
    return {name: PROTOCOLS[name].about for name in PROTOCOLS}


_BENCHMARK = "Marsden et al. (2024), online test-time adaptation benchmark"
_IMAGES = "10,000 images of each of fifteen corruptions at severity 5, batches of 200"
_BURSTS = MappingProxyType({"order": "dirichlet", "concentration": 0.1})
for _protocol in (
    Protocol(
        name="online",
        about="one corruption at a time, random order, a fresh start for each",
        published=f"{_BENCHMARK}, reset_each_shift; Wang et al. (2021): {_IMAGES}",
        reset="online",
    ),
    Protocol(
        name="continual",
        about="one corruption after the other, random order, no reset",
        published=f"Wang et al. (2022); {_BENCHMARK}, continual: {_IMAGES}",
    ),
    Protocol(
        name="mixed",
        about="all corruptions at once, image by image, no reset",
        published=f"{_BENCHMARK}, mixed_domains: {_IMAGES}, one shuffle of all 150,000",
        options=MappingProxyType({"schedule": "mixed"}),
    ),
    Protocol(
        name="correlated",
        about="one corruption at a time, labels in bursts, a fresh start for each",
        published="Gong et al. (2022), NOTE: Dirichlet 0.1, as many time slots as classes, at least 10 images in each",
        ours="batches of 64, where NOTE has none; slots may hold fewer than 10 images",
        reset="online",
        batch_size=64,
        options=_BURSTS,
    ),
    Protocol(
        name="correlated-continual",
        about="one corruption after the other, labels in bursts, no reset",
        published="Yuan et al. (2023), practical test-time adaptation: its order of corruptions, Dirichlet 0.1, "
        "batches of 64",
        batch_size=64,
        corruptions=TURNS,
        options=_BURSTS,
    ),
    Protocol(
        name="sorted",
        about="one corruption after the other, each sorted by label, no reset",
        published=f"{_BENCHMARK}, correlated with delta 0; nearly the label shift of Niu et al. (2023), whose ratio of "
        "500,000 is practically class order",
        options=MappingProxyType({"order": "sorted"}),
    ),
    Protocol(
        name="gradual",
        about="each corruption from severity 1 to 5 and back, no reset",
        published=f"{_BENCHMARK}, gradual: severities 1, 2, 3, 4, 5, 4, 3, 2, 1 of each corruption, batches of 200",
        options=MappingProxyType({"schedule": "ramp"}),
    ),
    Protocol(
        name="single",
        about="one image at a time, one corruption after the other, no reset",
        published=f"{_BENCHMARK}, batches of 1 with a window of 1; Niu et al. (2023)",
        batch_size=1,
    ),
    Protocol(
        name="single-window",
        about="one image at a time in a window of the last 16, a step for every 16 images, no reset",
        published=f"{_BENCHMARK}, batches of 1 with a window; its length of 16 is that of Marsden et al. (2024), ROID",
        ours="between steps the past images are not passed again: the moments they had stand in for them",
        batch_size=1,
        window=16,
    ),
    Protocol(
        name="recurring",
        about="all corruptions in turn, twenty times over, labels in bursts, no reset",
        published="Hoang et al. (2024), PeTTA: practical test-time adaptation repeated 20 times, Dirichlet 0.1, "
        "batches of 64",
        batch_size=64,
        corruptions=TURNS,
        options=MappingProxyType({**_BURSTS, "visits": 20}),
    ),
    Protocol(
        name="ccc",
        about="pairs of corruptions, one fading while the next one grows, no reset",
        published="Press et al. (2023), CCC-Easy: fourteen corruptions, severities in steps of 0.25 along a path on "
        "which a ResNet-50 stays at one accuracy, 1,000 to 5,000 images at each point, batches of 64, 7.5 million "
        "images",
        ours="the two severities add up to 5 instead of being calibrated to an accuracy; a severity between two whole "
        "ones is dealt out image by image; corruptions take turns in a fixed order; no crops, no flips",
        batch_size=64,
        corruptions=GLIDING,
        options=MappingProxyType({"schedule": "pairs"}),
    ),
    Protocol(
        name="label-imbalance",
        about="some classes a hundred times as frequent as others, labels in bursts, no reset",
        published="Su et al. (2024), TRIBE: practical test-time adaptation with an imbalance factor of 100 (also 10 "
        "and 200), the same frequent classes in every domain, Dirichlet 0.1, batches of 64",
        batch_size=64,
        corruptions=TURNS,
        options=MappingProxyType({**_BURSTS, "imbalance": 100.0}),
    ),
):
    PROTOCOLS.register(_protocol.name)(_protocol)
