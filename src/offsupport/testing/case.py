"""One cell of the contract table, a method on a network, and how two runs of it are compared."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.engine.adapter import Adapter
from offsupport.engine.source_stats import SourceStats
from offsupport.engine.state import Snapshot
from offsupport.methods import METHODS, adapt, source_stats
from offsupport.testing.networks import Factory, toy_images


def promise(kept: bool, sentence: str) -> None:
    """Raise an ``AssertionError`` with ``sentence`` unless the promise was kept."""
    if not kept:
        raise AssertionError(sentence)


@dataclasses.dataclass(frozen=True)
class Case:
    """A method on a network.

    Args:
        method: Name of a registered method.
        network: Makes the network, the same one at each call.
        hyper: Hyper-parameters of the method.
        source: Whether a method that can use source statistics is given them.
    """

    method: str
    network: Factory
    hyper: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source: bool = True

    def wrap(self, model: nn.Module | None = None, **options: Any) -> Adapter:
        """Adapt ``model``, by default a new copy of the network; ``options`` go before the case's hyper-parameters."""
        model = self.network() if model is None else model
        with quiet():
            return adapt(model, self.method, source=self.stats(model, **options), **{**self.hyper, **options})

    def stats(self, model: nn.Module, **options: Any) -> SourceStats | None:
        """Return the source statistics that the method gets; None where it uses none, or is to do without."""
        use = METHODS[self.method].info.source
        moments = {**self.hyper, **options}.get("statistics") == "minimal"
        if use != "required" and not ((use == "optional" or moments) and self.source):
            return None
        images = [toy_images(16, seed, shifted=False)[0] for seed in range(3)]
        about: dict[str, Any] = {key: options[key] for key in ("logits", "head", "replay") if key in options}
        about |= {"statistics": "minimal"} if moments else {}
        return source_stats(model, images, self.method, **about)

    @property
    def steps(self) -> bool:
        """Whether the method is sure to change parameters."""
        method = METHODS[self.method]
        return "lr" in method.config_class.__dataclass_fields__ and not method.steps_at_will

    @property
    def still(self) -> dict[str, float]:
        """Hyper-parameters under which the method steps nowhere and a teacher follows nobody."""
        known = METHODS[self.method].config_class.__dataclass_fields__
        return {name: value for name, value in (("lr", 0.0), ("decay", 1.0)) if name in known}


def stream(count: int, size: int = 24, seed: int = 0) -> list[Tensor]:
    """Return ``count`` batches of shifted images."""
    return [toy_images(size, seed=10_000 * (seed + 1) + i)[0] for i in range(count)]


def run(adapter: Adapter, batches: Iterable[Tensor]) -> list[Tensor]:
    """Serve a stream without the warnings that the guard may give, and return the logits of each batch."""
    with quiet():
        return [adapter(x) for x in batches]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of adapters inside the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are equal bit for bit, NaN and the sign of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def all_same_bits(a: Iterable[Tensor], b: Iterable[Tensor]) -> bool:
    """Tell whether two lists of tensors are equal bit for bit."""
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the names of everything in the state of an adapter that is not bit-equal."""
    a, b = before.flat(), after.flat()
    both = a.keys() & b.keys()
    return sorted((a.keys() ^ b.keys()) | {name for name in both if not same_bits(a[name], b[name])})


def changed_weights(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the names of the parameters and optimiser tensors that are not bit-equal."""
    return [name for name in changed(before, after) if name.startswith(("parameters/", "optimizer/"))]


def promise_same_state(before: Snapshot, after: Snapshot, sentence: str) -> None:
    """Raise unless two states are bit-equal, and name what differs."""
    names = changed(before, after)
    promise(not names, f"{sentence} These differ: {', '.join(names)}.")
