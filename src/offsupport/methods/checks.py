"""Refusals with a reason: of models a method cannot adapt, of inputs and outputs that are not what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.core.errors import InputError, ModelError
from offsupport.methods.config import MethodInfo
from offsupport.methods.guard import plausible_rows
from offsupport.nn.inspect import device_and_dtype, input_rank
from offsupport.nn.norm import affine_parameters, norm_layers
from offsupport.nn.normalized import ROOM


def check_model(model: nn.Module, info: MethodInfo) -> None:
    """Refuse what cannot be adapted by this method, before the first batch."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"adapt() takes a torch.nn.Module, not {type(model).__name__}.", "Pass the network itself.")
    batch_norm = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for _, layer in norm_layers(model))
    if info.norm == "batch" and not batch_norm:
        raise ModelError(
            f"The method {info.name!r} re-estimates batch-norm statistics, and this model has no batch-norm layer.",
            "Use 'sar' for group or layer norm, 'shot' for a model without normalisation.",
        )
    if info.norm == "any" and not affine_parameters(model):
        raise ModelError(
            f"The method {info.name!r} adapts the scale and shift of normalisation layers, and this model has none.",
            "Use 'shot', which adapts all layers before the classifier.",
        )


def check_input(x: Tensor, model: nn.Module) -> Tensor:
    """Return ``x`` when it is a batch that the model can take; refuse it otherwise."""
    if not isinstance(x, Tensor):
        raise InputError(f"A batch is a torch.Tensor, not {type(x).__name__}.", "Convert it: torch.as_tensor(x).")
    device, dtype = device_and_dtype(model)
    if x.dtype != dtype:
        how = "x.float() / 255" if x.dtype == torch.uint8 else f"x.to({dtype})"
        raise InputError(f"The model computes in {dtype} and the batch is {x.dtype}.", f"Convert it: {how}.")
    if x.device != device:
        raise InputError(f"The model is on {device} and the batch on {x.device}.", f'Move it: x.to("{device}").')
    rank = input_rank(model)
    if x.dim() < 2 or (rank not in (None, x.dim()) and not _takes(model, x)):
        wanted = f"{rank} dimensions" if rank else "at least 2 dimensions"
        raise InputError(
            f"The model takes batches with {wanted}, and this one has shape {tuple(x.shape)}.",
            "Add the batch dimension: x[None].",
        )
    return x


def require_images(x: Tensor, method: str) -> None:
    """Refuse what are no images in [0, 1], before a method augments them."""
    if x.dim() != 4:
        raise InputError(
            f"The method {method!r} augments images (N, C, H, W), and this batch has shape {tuple(x.shape)}.",
            "Use a method that does not augment, such as 'tent'.",
        )
    # A sample far beyond any unit is a broken one, and says nothing about the others.
    known = x[plausible_rows(x)]
    low, high = known.aminmax() if len(known) else (0.0, 1.0)
    if low < -ROOM or high > 1 + ROOM:
        raise InputError(
            f"The method {method!r} augments images in [0, 1], and these lie in [{float(low):.3g}, {float(high):.3g}].",
            "Let the model standardise: offsupport.nn.Normalized(model, mean, std), and pass plain images.",
        )


@torch.no_grad()
def _takes(model: nn.Module, x: Tensor) -> bool:
    """Tell whether a model takes ``x`` although its first layer expects another rank, as one that reshapes does."""
    first = x[:1]
    try:
        out = model(first)
    except (InputError, RuntimeError, ValueError, IndexError):
        return False
    # Where the logits are in another kind of output is not known here.
    return not isinstance(out, Tensor) or (out.dim() > 0 and len(out) == len(first))


def check_output(out: Any, samples: int) -> Tensor:
    """Return ``out`` when it is logits (N, K) or dense logits (N, K, ...); refuse anything else."""
    if not isinstance(out, Tensor):
        raise ModelError(
            f"The model returns {type(out).__name__}, not a tensor of logits.",
            f"Say where they are: adapt(..., logits=lambda out: {_logits_of(out)}).",
        )
    if out.dim() < 2 or len(out) != samples or out.shape[1] == 0:
        raise ModelError(
            f"The model returns shape {tuple(out.shape)} for {samples} samples.",
            "It must return logits of shape (samples, classes), with at least two classes.",
        )
    if out.shape[1] == 1:
        raise ModelError(
            "The model returns a single logit per sample, and one class is always certain.",
            "Make it two: adapt(..., logits=lambda out: torch.cat([torch.zeros_like(out), out], 1)).",
        )
    return out


def _logits_of(out: Any) -> str:
    if isinstance(out, Mapping):
        return f"out[{next((key for key in out if 'logit' in str(key)), next(iter(out), 'logits'))!r}]"
    return "out[0]" if isinstance(out, (tuple, list)) else "out.logits"
