"""Questions about a model that is not ours: where its head is, what it takes, on which device, in which layout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from offsupport.core.errors import ModelError, nearest
from offsupport.nn.norm import affine_parameters

HALF = (torch.float16, torch.bfloat16)
"""Half precision."""

_INPUT_RANK: dict[type[nn.Module], int] = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}


def find_head(model: nn.Module, name: str | None = None) -> tuple[str, nn.Module]:
    """Return the name and module of the classifier: ``name``, or else the last ``nn.Linear``."""
    modules = dict(model.named_modules())
    if name is not None:
        if name not in modules:
            raise ModelError(f"The model has no module called {name!r}.", nearest(name, filter(None, modules)))
        return name, modules[name]
    linear = [key for key, module in modules.items() if isinstance(module, nn.Linear)]
    if not linear:
        raise ModelError(
            "The model has no nn.Linear that could be its classifier.",
            'Name the classifier: head="name of the module".',
        )
    return linear[-1], modules[linear[-1]]


def input_rank(model: nn.Module) -> int | None:
    """Return the rank of the batches a model with a convolution as first layer takes; None where it is open."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return None
        if type(module) in _INPUT_RANK:
            return _INPUT_RANK[type(module)]
    return None


def typical_parameter(model: nn.Module) -> Tensor:
    """Return a parameter that is where the model computes and of the type it computes in; without any, CPU float32."""
    floating = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    if not floating:
        return torch.empty(0)
    if any(parameter.dtype in HALF for parameter in floating):
        # Norm layers may be in single precision within a model of half.
        norms = {id(parameter) for parameter in affine_parameters(model).values()}
        return next((parameter for parameter in floating if id(parameter) not in norms), floating[0])
    return floating[0]


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return where the model's parameters are and of which floating type; a model without any counts as CPU float32."""
    found = typical_parameter(model)
    return found.device, found.dtype


def single(x: Tensor) -> Tensor:
    """Return ``x`` in single precision where it is in half: losses and statistics of it would be rounded away."""
    return x.float() if x.dtype in HALF else x


def best_layout(model: nn.Module) -> torch.memory_format:
    """Return the memory layout that a model's convolutions should run in: channels last, where that is safe.

    On a CPU they run up to twice as fast with the channels last (``benchmarks/layout.py``). But there oneDNN, as it
    stands inside torch 2.13, writes past the end of a buffer in the backward pass of a strided 1x1 convolution whose
    input channels are not a multiple of 8, on processors with AVX2 and without AVX-512: the process dies some time
    later ("munmap_chunk(): invalid pointer"). And group norm dies in its backward pass where its input needs no
    gradient. A model with such layers keeps the ordinary layout, everywhere, so that its numbers do not depend on the
    processor.
    """
    if any(isinstance(layer, nn.GroupNorm) for layer in model.modules()):
        return torch.contiguous_format
    convolutions = (layer for layer in model.modules() if isinstance(layer, nn.Conv2d))
    strided = (layer for layer in convolutions if layer.kernel_size == (1, 1) and layer.stride != (1, 1))
    return torch.contiguous_format if any(layer.in_channels % 8 for layer in strided) else torch.channels_last


@contextlib.contextmanager
def capture_input(module: nn.Module, *, optional: bool = False) -> Iterator[list[Tensor]]:
    """Collect what ``module`` is called with inside the block; for the classifier these are the features.

    A module that is not called at all is refused, unless that is ``optional``: it cannot be the classifier.
    """
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, arguments: inputs.append(single(arguments[0])))
    try:
        yield inputs
    finally:
        handle.remove()
    if not (inputs or optional):
        raise ModelError(
            f"The layer that is taken for the classifier, {module}, is not called when the model predicts.",
            'Name the classifier: head="name of the module".',
        )
