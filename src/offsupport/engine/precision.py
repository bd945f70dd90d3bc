"""Half precision: what is computed in it, and what must not be.

A step of test-time adaptation changes a parameter by less than a float16 or bfloat16 can tell from nothing, and sums of
many activations lose their small terms. So losses, statistics, optimisers and all that adapts are in float32; only the
network's other layers run in half precision, as they came, or as the caller's ``torch.autocast`` says.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError
from offsupport.nn.inspect import HALF, device_and_dtype
from offsupport.nn.norm import affine_parameters, norm_layers

SCALE = 1024.0
"""Losses are multiplied by this before gradients go through float16, whose least number is far above many of them."""


def refuse_half(method: str, model: nn.Module, adapted: Mapping[str, Tensor]) -> None:
    """Refuse to adapt parameters in half precision, but for those of norm layers, which :func:`single_norms` converts.

    Args:
        method: Who adapts them.
        model: The model.
        adapted: What is adapted, by name.
    """
    norms = affine_parameters(model)
    half = [name for name, parameter in adapted.items() if parameter.dtype in HALF and name not in norms]
    if half:
        dtype = adapted[half[0]].dtype
        raise ModelError(
            f"The method {method!r} adapts {len(half)} tensors of this model that are {dtype}, such as {half[0]!r}: "
            "most of its steps would be rounded to nothing.",
            "Adapt the model in single precision: model.float(), inside torch.autocast for speed. Methods that adapt "
            "norm layers alone, such as 'tent', take it as it is.",
        )


def single_norms(model: nn.Module) -> None:
    """Let the norm layers of a half-precision model compute in float32, in place; what they return is as before."""
    for _, layer in norm_layers(model):
        dtypes = {tensor.dtype for tensor in (*layer.parameters(), *layer.buffers())}.intersection(HALF)
        if dtypes:
            layer.float()
            layer.register_forward_pre_hook(_to_single)
            layer.register_forward_hook(functools.partial(_back_to, dtypes.pop()))


def _to_single(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(argument.float() for argument in arguments)


def _back_to(dtype: torch.dtype, _: nn.Module, __: Any, out: Tensor) -> Tensor:
    return out.to(dtype)


def require_convertible(model: nn.Module, probe: Tensor) -> None:
    """Refuse to convert an adapter from or to half precision; ``probe`` was a tensor of the model's type."""
    dtype = device_and_dtype(model)[1]
    if probe.dtype != dtype and {probe.dtype, dtype}.intersection(HALF):
        raise ModelError(
            f"An adapter of {dtype} cannot become one of {probe.dtype}: what adapts stays in single precision.",
            "Convert the model before it is wrapped: adapt(model.half(), ...).",
        )


class Autocast:
    """Runs the network under the caller's autocast, and everything else without it."""

    def __init__(self) -> None:
        self.device, self.dtype = "cpu", torch.float32
        self.wanted = False

    @contextlib.contextmanager
    def suspended(self, device: str) -> Iterator[None]:
        """Switch autocast on this kind of device off inside the block, and remember how it was."""
        if not torch.is_autocast_enabled(device):
            yield
            return
        self.device, self.dtype, self.wanted = device, torch.get_autocast_dtype(device), True
        try:
            with torch.autocast(device, enabled=False):
                yield
        finally:
            self.wanted = False

    def again(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block under the caller's autocast."""
        if not self.wanted:
            return contextlib.nullcontext()
        # Without its cache: that would keep half copies of weights as they were before a step.
        return torch.autocast(self.device, self.dtype, cache_enabled=False)
