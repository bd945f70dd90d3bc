"""Gated low-rank updates (after Hu et al., 2022) as part of a weight: W + s U diag(g) D, one convolution per layer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from offsupport.functional import effective_rank, product_singular_values

Gates = Literal["normal", "ones", "none"]
"""How gates start: as published, ~ N(0, 1); all open; or there are none."""

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class LowRank(nn.Module):
    """The update s U diag(g) D of a weight flattened to (out, in / groups * kernel), zero at the start.

    Its rank is ``rank``, clipped to the input channels per group and to the output channels, and s makes up for the
    clipping: s = rank / clipped rank. A state dict does not list it: there it is part of the weight.

    Args:
        weight: The weight to update.
        rank: The rank asked for.
        gates: How the gates start.
        generator: What D and the gates are drawn from.
    """

    gate: nn.Parameter | None

    def __init__(self, weight: Tensor, rank: int, gates: Gates, generator: torch.Generator) -> None:
        super().__init__()
        out, inputs = weight.shape[:2]
        self.rank = min(rank, inputs, out)
        self.scale = rank / self.rank
        down = torch.empty(self.rank, weight[0].numel(), dtype=weight.dtype)
        bound = down.shape[1] ** -0.5  # Kaiming-uniform with a = sqrt(5)
        self.down = nn.Parameter(down.uniform_(-bound, bound, generator=generator).to(weight.device))
        self.up = nn.Parameter(weight.new_zeros(out, self.rank))
        gate = torch.ones(self.rank, dtype=weight.dtype)
        gate = gate.normal_(generator=generator) if gates == "normal" else gate
        self.gate = None if gates == "none" else nn.Parameter(gate.to(weight.device))
        self.eval()

    @property
    def columns(self) -> Tensor:
        """U diag(s g): what D is multiplied by."""
        return self.up * (self.scale if self.gate is None else self.scale * self.gate)

    def added_to(self, weight: Tensor) -> Tensor:
        """Return ``weight`` plus the update; with U = 0 this is ``weight`` bit for bit."""
        if weight.dim() == 2:
            return torch.addmm(weight, self.columns, self.down)
        return weight + (self.columns @ self.down).view_as(weight)  # in the memory layout of ``weight``

    def _save_to_state_dict(self, *_: Any) -> None:
        """The layer saves the sum."""

    def _load_from_state_dict(self, *_: Any) -> None:
        """The layer loads the sum."""


class Updated:
    """Mixed into the class of a layer: whoever reads ``weight`` gets the layer's own weight plus the update.

    The own weight stays where it was among the parameters, under its own name. In a state dict stands the sum, so that
    it loads into the network without updates and predicts the same there.
    """

    low_rank: LowRank

    @property
    def weight(self) -> Tensor:
        """The weight in use."""
        layer: Any = self
        return self.low_rank.added_to(layer._parameters["weight"])

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer; where its own weight is frozen, by gradients of the update alone if that is quicker."""
        layer, low_rank = cast("Any", self), self.low_rank
        own = layer._parameters["weight"]
        alone = torch.is_grad_enabled() and low_rank.up.requires_grad and not own.requires_grad
        if alone and x.dim() == own.dim() and gains(layer, _plain(type(self)), low_rank.rank):
            with torch.no_grad():
                weight = low_rank.added_to(own)
            return convolve(x, layer, weight, low_rank.columns, low_rank.down)
        out: Tensor = super().forward(x)  # type: ignore[misc]
        return out

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        destination[f"{prefix}weight"] = self.weight if keep_vars else self.weight.detach()

    @torch.no_grad()
    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Use the given weight from here on; to be given the one in use changes nothing, not even how it is split."""
        layer: Any = self
        given = state_dict.get(f"{prefix}weight")
        if given is not None and given.shape == self.weight.shape:
            # Saved and loaded again, the sum differs from the one in use by rounding alone.
            if torch.allclose(given.to(self.weight), self.weight, rtol=1e-5, atol=1e-7):
                state_dict = {**state_dict, f"{prefix}weight": layer._parameters["weight"]}
            else:
                self.low_rank.up.zero_()
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # No module holds the extended class, so copies and pickles name the plain one it was made of.
        return _rebuild, (_plain(type(self)),), self.__dict__


_UPDATED: dict[type, Any] = {}


def _updated(cls: type) -> Any:
    if cls not in _UPDATED:
        _UPDATED[cls] = type(f"Updated{cls.__name__}", (Updated, cls), {})
    return _UPDATED[cls]


def _plain(cls: type) -> type:
    return next(base for base in cls.__mro__[1:] if base is not Updated)


def _rebuild(cls: type) -> Any:
    return _updated(cls).__new__(_updated(cls))


def updatable_layers(model: nn.Module, left_out: Collection[nn.Module] = ()) -> dict[str, nn.Module]:
    """Return the convolutions and linear layers that have a weight of their own, but those in ``left_out``, by name."""
    skipped = {layer for module in left_out for layer in module.modules()}
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, _LAYERS) and layer not in skipped and _has_own_weight(layer)
    }


def _has_own_weight(layer: nn.Module) -> bool:
    # Where the weight is computed already (weight norm, say) or quantised, there is nothing to add to.
    weight = layer._parameters.get("weight")
    return weight is not None and weight.is_floating_point() and not nn.parameter.is_lazy(weight)


def updated_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers whose weight has an update, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Updated)}


def add_updates(
    model: nn.Module, rank: int, gates: Gates, generator: torch.Generator, left_out: Collection[nn.Module] = ()
) -> dict[str, nn.Parameter]:
    """Give each convolution and linear layer of ``model`` a zero update, in place; return its parameters by name.

    As with batch norm, the class of a layer is extended rather than the layer replaced: subclasses with a forward of
    their own, hooks and shared layers keep working. Layers that share a weight share its update. Updates from before
    are merged first.
    """
    merge(model)
    updates: dict[Any, LowRank] = {}
    for layer in updatable_layers(model, left_out).values():
        weight: Any = layer._parameters["weight"]
        if weight not in updates:
            updates[weight] = LowRank(weight.detach(), rank, gates, generator)
        layer.low_rank = updates[weight]
        layer.__class__ = _updated(type(layer))
    low_rank = {name: module for name, module in model.named_modules() if isinstance(module, LowRank)}
    return {f"{name}.{key}": p for name, module in low_rank.items() for key, p in module.named_parameters()}


@torch.no_grad()
def merge(model: nn.Module) -> nn.Module:
    """Fold every update of ``model`` into the weight it belongs to, in place; the layers are then what they were."""
    merged = set()
    for layer in updated_layers(model).values():
        if layer.low_rank not in merged:  # layers that share a weight share its update
            layer._parameters["weight"].copy_(layer.weight)
        merged.add(layer.low_rank)
        layer.__class__ = _plain(type(layer))
        del layer.low_rank
    return model


@torch.no_grad()
def describe_updates(model: nn.Module) -> dict[str, dict[str, float]]:
    """Say of each update how far it went, by the name of its layer.

    Returns:
        ``rank`` that it may have; ``zeros``, the share of gates that are exactly zero; ``effective_rank``, exp of the
        entropy of its singular values; ``change``, its Frobenius norm over that of the weight.
    """
    return {
        name: _describe(layer.low_rank, layer._parameters["weight"]) for name, layer in updated_layers(model).items()
    }


def _describe(update: LowRank, weight: Tensor) -> dict[str, float]:
    values = product_singular_values(update.columns.float(), update.down.float())
    size = float(weight.float().norm())
    return {
        "rank": update.rank,
        "zeros": 0.0 if update.gate is None else float((update.gate == 0).float().mean()),
        "effective_rank": effective_rank(values),
        "change": float(values.norm()) / size if size else 0.0,
    }


# A convolution whose weight is a constant plus a product of two thin factors, with gradients for the factors alone.


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MIN_CHANNELS, MIN_RATIO = 64, 4
"""Narrower convolutions, and factors of more than a quarter of the channels, gain nothing: memory is the limit."""


def gains(layer: nn.Module, plain: type, rank: int) -> bool:
    """Tell whether :func:`convolve` can run ``layer``, of the class ``plain``, and beats the gradient by its weight."""
    return (
        isinstance(layer, _CONVOLUTIONS)
        and any(plain.forward is cls.forward for cls in _CONVOLUTIONS)  # type: ignore[attr-defined]
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and layer.out_channels >= max(MIN_CHANNELS, MIN_RATIO * rank)
    )


def convolve(x: Tensor, layer: Any, weight: Tensor, columns: Tensor, down: Tensor) -> Tensor:
    """Convolve ``x`` as ``layer`` does, by ``weight`` (which holds ``columns @ down``) instead of its own."""
    geometry = (layer.stride, layer.padding, layer.dilation, False, (0,) * len(layer.stride), 1)
    out: Tensor = _Convolution.apply(x, weight, layer.bias, columns, down, geometry)  # type: ignore[no-untyped-call]
    return out


class _Convolution(torch.autograd.Function):
    """With ``C D`` the product, the layer is a constant convolution plus D followed by the pointwise C.

    Their gradients are those of two thin convolutions; the gradient by the weight itself is never formed.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, columns: Tensor, down: Tensor, geometry: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight, columns, down)
        ctx.geometry = geometry
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, columns, down = ctx.saved_tensors
        backward = torch.ops.aten.convolution_backward
        ones, zeros = (1,) * (x.dim() - 2), (0,) * (x.dim() - 2)
        kernel, pointwise = down.view(-1, *weight.shape[1:]), columns.view(*columns.shape, *ones)
        by_input, _, by_bias = ctx.needs_input_grad[:3]
        dx = backward(dy, x, weight, None, *ctx.geometry, (True, False, False))[0] if by_input else None
        z = torch.convolution(x, kernel, None, *ctx.geometry)
        dz, d_columns, d_bias = backward(
            dy, z, pointwise, [len(columns)], ones, zeros, ones, False, zeros, 1, (True, True, by_bias)
        )
        d_down = backward(dz, x, kernel, None, *ctx.geometry, (False, True, False))[1]
        return dx, None, d_bias, d_columns.flatten(1), d_down.flatten(1), None
