"""Classifiers on the tokens of a masked autoencoder's encoder."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from offsupport.core.errors import InputError
from offsupport.nn.vit import EPS, Block, init_transformer, sincos_position

Head = Literal["vit", "linear"]


class LinearProbe(nn.Sequential):
    """Standardises the class token by running statistics and classifies it (He et al., 2022)."""

    def __init__(self, dim: int, classes: int) -> None:
        layer = nn.Linear(dim, classes)
        super().__init__(nn.BatchNorm1d(dim, affine=False, eps=EPS), layer)
        nn.init.trunc_normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits from encoded tokens (N, T, D); masked images have fewer and are classified as well."""
        logits: Tensor = super().forward(tokens[:, 0])  # type: ignore[no-untyped-call]
        return logits


class VitHead(nn.Module):
    """A transformer of its own on all tokens of the encoder (Gandelsman et al., 2022, "ViT probe").

    Args:
        inputs: Width of the encoder.
        side: Patches along a side of the image.
        dim: Width of the head.
        depth: Number of blocks.
        heads: Attention heads.
        classes: Number of logits.
    """

    pos_embed: Tensor

    def __init__(self, inputs: int, side: int, dim: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("pos_embed", sincos_position(dim, side))
        self.embed = nn.Linear(inputs, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=EPS)
        self.head = nn.Linear(dim, classes)
        init_transformer(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits from all encoded tokens (N, 1 + L, D) of unmasked images."""
        needed = self.pos_embed.shape[1]
        if tokens.shape[1] != needed:
            raise InputError(
                f"This head classifies all {needed} tokens of an image, and it was given {tokens.shape[1]}.",
                "Encode the image without a mask, or use the linear head.",
            )
        x = self.embed(tokens) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits
