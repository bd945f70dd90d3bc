"""The parts of a vision transformer (Dosovitskiy et al., 2021), under the key names that published weights use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from offsupport.core.errors import ConfigError

EPS = 1e-6
"""Of every layer norm."""


class Attention(nn.Module):
    """Self-attention over tokens (N, T, D)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ConfigError(f"{heads} heads do not divide the width {dim}.", "Choose a number of heads that does.")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Let every token look at every other."""
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        mixed: Tensor = self.proj(out.transpose(1, 2).reshape(n, t, d))
        return mixed


class Mlp(nn.Module):
    """Two layers with a GELU between them, on every token by itself."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Run both layers."""
        out: Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, heads: int, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: Tensor) -> Tensor:
        """Add what attention and then the two layers say."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchEmbed(nn.Module):
    """Each patch of an image as one token."""

    def __init__(self, patch: int, channels: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (N, C, H, W) into tokens (N, T, D), row by row."""
        tokens: Tensor = self.proj(x)
        return tokens.flatten(2).transpose(1, 2)


def sincos_position(dim: int, side: int) -> Tensor:
    """Return fixed position codes (1, 1 + side * side, dim) of a square of patches; zero for the class token, first.

    The first half of a code tells the column and the second half the row, each as sines and cosines of frequencies
    from 1 down to 1/10000.

    Example:
        >>> sincos_position(8, 2)[0, :, 0].round(decimals=3).tolist()
        [0.0, 0.0, 0.8410000205039978, 0.0, 0.8410000205039978]
    """
    if dim % 4:
        raise ConfigError(f"Position codes of width {dim} cannot be made.", "Choose a width that 4 divides.")
    omega = 10000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angle = torch.arange(side, dtype=torch.float64)[:, None] * omega
    line = torch.cat([angle.sin(), angle.cos()], 1)
    columns, rows = line.repeat(side, 1), line.repeat_interleave(side, 0)
    codes = torch.cat([columns, rows], 1)
    return torch.cat([codes.new_zeros(1, dim), codes])[None].float()


def init_transformer(module: nn.Module) -> None:
    """Initialise linear and patch layers as in He et al. (2022): Xavier-uniform weights, zero shifts."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, PatchEmbed):
            weight = layer.proj.weight
            nn.init.xavier_uniform_(weight.data.view(len(weight), -1))
