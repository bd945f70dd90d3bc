"""Masked autoencoders (He et al., 2022): encode the visible patches, reconstruct the others, classify the whole.

Parameter names are those of the public MAE checkpoints, with the classifier beside them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from offsupport.core.config import build
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.core.registry import Registry
from offsupport.nn.normalized import require_batch

# The parts of a vision transformer (Dosovitskiy et al., 2021), under the key names that published weights use.


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


# Random masks over patches: which are seen, which are to be reconstructed, and how to put them back in order.


class Masking(NamedTuple):
    """A mask for each of N images of L patches, V of them visible."""

    keep: Tensor
    """(N, V) numbers of the visible patches, in the order in which they are encoded."""
    restore: Tensor
    """(N, L) for each patch its place in the shuffled order, visible ones first."""
    mask: Tensor
    """(N, L) 1 where a patch is removed, 0 where it is visible."""

    def to(self, device: torch.device) -> Masking:
        """Return the same masks on another device."""
        return Masking(*(tensor.to(device) for tensor in self))


def visible_patches(patches: int, ratio: float) -> int:
    """Return how many of ``patches`` stay visible; a ratio that is none, or leaves nothing to see, is refused.

    Example:
        >>> visible_patches(196, 0.75)
        49
    """
    if not 0 <= ratio < 1:
        raise ConfigError(f"A mask ratio of {ratio} is not possible.", "It must be at least 0 and below 1.")
    visible = int(patches * (1 - ratio))
    if not visible:
        raise ConfigError(
            f"A mask ratio of {ratio} leaves none of {patches} patches visible.",
            f"Use at most {_largest_ratio(patches):.4g}, or smaller patches.",
        )
    return visible


def _largest_ratio(patches: int) -> float:
    """Return the largest ratio of four decimals that leaves a patch visible."""
    bound = math.floor(1e4 * (1 - 1 / patches))
    # At 0.9 of ten patches the one that is left is lost to rounding: 10 * (1 - 0.9) is below 1.
    return next(ratio for ratio in (bound / 1e4, (bound - 1) / 1e4) if int(patches * (1 - ratio)))


def mask_by_noise(noise: Tensor, ratio: float) -> Masking:
    """Keep the patches with the least noise.

    Args:
        noise: (N, L), one number per patch.
        ratio: Share of the patches to remove, in [0, 1).
    """
    visible = visible_patches(noise.shape[1], ratio)
    shuffle = noise.argsort(dim=1)
    restore = shuffle.argsort(dim=1)
    return Masking(shuffle[:, :visible], restore, (restore >= visible).to(torch.float32))


def draw_masks(count: int, patches: int, ratio: float, generator: torch.Generator) -> Masking:
    """Draw ``count`` independent masks from ``generator`` (on the CPU), each uniform over all of that size."""
    return mask_by_noise(torch.rand(count, patches, generator=generator), ratio)


# Classifiers on the tokens of a masked autoencoder's encoder.


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeConfig:
    """The shape of a masked autoencoder."""

    image: int
    """Height and width of an image."""
    patch: int
    """Height and width of a patch."""
    dim: int
    """Width of the encoder."""
    depth: int
    """Blocks of the encoder."""
    heads: int
    """Attention heads of the encoder."""
    decoder_dim: int = 512
    """Width of the decoder."""
    decoder_depth: int = 8
    """Blocks of the decoder."""
    decoder_heads: int = 16
    """Attention heads of the decoder."""
    head_dim: int = 768
    """Width of the ViT head."""
    head_depth: int = 12
    """Blocks of the ViT head."""
    head_heads: int = 12
    """Attention heads of the ViT head."""
    channels: int = 3
    """Channels of an image."""
    mlp_ratio: float = 4.0
    """Hidden width of the two-layer networks over the width of the tokens."""
    norm_pixels: bool = True
    """Whether the target of the reconstruction is each patch standardised by its own mean and deviation."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "norm_pixels" and not value > 0:
                raise ConfigError(f"A masked autoencoder cannot have {field.name}={value}.", "It must be above 0.")
        if self.image % self.patch:
            raise ConfigError(
                f"Patches of {self.patch} pixels do not divide images of {self.image}.",
                f"Resize the images to {self.image // self.patch * self.patch or self.patch}, or choose another patch.",
            )

    @property
    def side(self) -> int:
        """Patches along a side of the image."""
        return self.image // self.patch

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return self.side**2


SIZES: Registry[MaeConfig] = Registry("size of masked autoencoder")
SIZES.register("vit-l/16")(MaeConfig(image=224, patch=16, dim=1024, depth=24, heads=16))
SIZES.register("vit-b/16")(MaeConfig(image=224, patch=16, dim=768, depth=12, heads=12))
SIZES.register("tiny/4")(
    MaeConfig(
        image=32,
        patch=4,
        dim=96,
        depth=4,
        heads=3,
        decoder_dim=64,
        decoder_depth=1,
        decoder_heads=2,
        head_dim=96,
        head_depth=2,
        head_heads=3,
    )
)
SIZES.register("digits/8")(
    MaeConfig(
        image=32,
        patch=8,
        dim=32,
        depth=2,
        heads=2,
        decoder_dim=32,
        decoder_depth=1,
        decoder_heads=2,
        head_dim=32,
        head_depth=1,
        head_heads=2,
    )
)
SIZES.register("small/8")(
    MaeConfig(
        image=32,
        patch=8,
        dim=128,
        depth=4,
        heads=4,
        decoder_dim=64,
        decoder_depth=1,
        decoder_heads=2,
        head_dim=96,
        head_depth=1,
        head_heads=4,
    )
)
SIZES.register("mini/8")(
    MaeConfig(
        image=32,
        patch=8,
        dim=48,
        depth=3,
        heads=3,
        decoder_dim=32,
        decoder_depth=1,
        decoder_heads=2,
        head_dim=48,
        head_depth=1,
        head_heads=3,
    )
)


def mae(size: str = "tiny/4", classes: int | None = None, head: Head = "vit", **changes: Any) -> MaskedAutoencoder:
    """Return an untrained masked autoencoder, drawn from torch's global generator.

    Args:
        size: ``vit-l/16``, ``vit-b/16`` (224 pixels), ``tiny/4``, ``small/8``, ``mini/8`` or ``digits/8`` (32 pixels).
        classes: Number of classes; None for no classifier.
        head: ``vit`` is a small transformer on all tokens, ``linear`` a layer on the class token.
        **changes: Fields of :class:`MaeConfig` that differ from the named size.

    Example:
        >>> mae("tiny/4", classes=10)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    config = build(MaeConfig, {**dataclasses.asdict(SIZES[size]), **changes}, "a masked autoencoder")
    return MaskedAutoencoder(config, None if classes is None else make_head(config, classes, head))


def make_head(config: MaeConfig, classes: int, head: Head = "vit") -> nn.Module:
    """Return an untrained classifier for the tokens of such an encoder."""
    if head == "linear":
        return LinearProbe(config.dim, classes)
    if head != "vit":
        raise ConfigError(f"There is no head {head!r}.", "Use 'vit' or 'linear'.")
    shape = (config.head_dim, config.head_depth, config.head_heads)
    return VitHead(config.dim, config.side, *shape, classes)


class MaskedAutoencoder(nn.Module):
    """A vision transformer with a decoder for reconstruction and, optionally, a classifier.

    Called on images it returns logits; :meth:`encode`, :meth:`decode` and :meth:`loss` are the parts of reconstruction.

    Args:
        config: Its shape.
        classifier: From all encoded tokens to logits.
    """

    pos_embed: Tensor
    decoder_pos_embed: Tensor

    def __init__(self, config: MaeConfig, classifier: nn.Module | None = None) -> None:
        super().__init__()
        self.config, c = config, config
        self.cls_token = nn.Parameter(torch.zeros(1, 1, c.dim))
        self.register_buffer("pos_embed", sincos_position(c.dim, c.side))
        self.patch_embed = PatchEmbed(c.patch, c.channels, c.dim)
        self.blocks = nn.ModuleList([Block(c.dim, c.heads, c.mlp_ratio) for _ in range(c.depth)])
        self.norm = nn.LayerNorm(c.dim, eps=EPS)
        self.decoder_embed = nn.Linear(c.dim, c.decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, c.decoder_dim))
        self.register_buffer("decoder_pos_embed", sincos_position(c.decoder_dim, c.side))
        decoder = [Block(c.decoder_dim, c.decoder_heads, c.mlp_ratio) for _ in range(c.decoder_depth)]
        self.decoder_blocks = nn.ModuleList(decoder)
        self.decoder_norm = nn.LayerNorm(c.decoder_dim, eps=EPS)
        self.decoder_pred = nn.Linear(c.decoder_dim, c.patch**2 * c.channels)
        init_transformer(self)
        nn.init.normal_(self.cls_token, std=0.02)
        nn.init.normal_(self.mask_token, std=0.02)
        # Last, so that the last linear layer of the whole is the classifier's.
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of whole images."""
        if self.classifier is None:
            raise ModelError("This autoencoder has no classifier.", "Make one: offsupport.nn.mae(..., classes=10).")
        logits: Tensor = self.classifier(self.encode(x))
        return logits

    def encode(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the class token and the tokens of the visible patches, (N, 1 + V, D).

        Args:
            x: Images (N, C, H, W). One image serves all masks: its patches are embedded once.
            keep: (M, V) the patches to encode, see :class:`Masking`; None for all. Of a multiple of N masks, the first
                M / N are the first image's, and so on.
        """
        self._check(x)
        if keep is not None:
            self._check_keep(keep, len(x))
            x = x if len(x) == 1 else x.repeat_interleave(len(keep) // len(x), 0)
        tokens = self.patch_embed(x) + self.pos_embed[:, 1:]
        if keep is not None:
            index = keep[..., None].expand(-1, -1, tokens.shape[2])
            tokens = tokens.expand(len(keep), -1, -1).gather(1, index)
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(tokens), -1, -1)
        tokens = torch.cat([first, tokens], 1)
        for block in self.blocks:
            tokens = block(tokens)
        encoded: Tensor = self.norm(tokens)
        return encoded

    def decode(self, tokens: Tensor, restore: Tensor) -> Tensor:
        """Return the predicted pixels of every patch, (N, L, P).

        Args:
            tokens: What :meth:`encode` made of the visible patches.
            restore: (N, L), see :class:`Masking`.
        """
        x = self.decoder_embed(tokens)
        absent = self.mask_token.expand(len(x), restore.shape[1] + 1 - x.shape[1], -1)
        shuffled = torch.cat([x[:, 1:], absent], 1)
        ordered = shuffled.gather(1, restore[..., None].expand(-1, -1, x.shape[2]))
        x = torch.cat([x[:, :1], ordered], 1) + self.decoder_pos_embed
        for block in self.decoder_blocks:
            x = block(x)
        pixels: Tensor = self.decoder_pred(self.decoder_norm(x))
        return pixels[:, 1:]

    def reconstruct(self, x: Tensor, masks: Masking) -> Tensor:
        """Return the predicted pixels of every patch from the visible ones, mask by mask; see :meth:`encode`."""
        if masks.restore.shape[1] != self.config.patches:
            raise InputError(
                f"These masks are of {masks.restore.shape[1]} patches, and the images have {self.config.patches}.",
                f"Draw masks of {self.config.patches} patches.",
            )
        return self.decode(self.encode(x, masks.keep), masks.restore)

    def loss(self, x: Tensor, masks: Masking) -> Tensor:
        """Return the mean squared error of the reconstruction over the removed patches."""
        if masks.keep.shape == masks.mask.shape or not len(masks.mask):
            raise InputError("These masks remove no patch, so the loss has no value.", "Draw them with a larger ratio.")
        error = self.patch_errors(x, self.reconstruct(x, masks))
        return (error * masks.mask).sum() / masks.mask.sum()

    def patch_errors(self, x: Tensor, pixels: Tensor) -> Tensor:
        """Return the mean squared error of each patch, (M, L), in the units of the target; one image serves several."""
        gap: Tensor = torch.unflatten(pixels, 0, (len(x), -1)) - self.target(x)[:, None]
        return gap.flatten(0, 1).square().mean(2)

    def target(self, x: Tensor) -> Tensor:
        """Return what the decoder should predict, (N, L, P)."""
        patches = self.patchify(x)
        if not self.config.norm_pixels:
            return patches
        var, mean = torch.var_mean(patches, 2, keepdim=True)
        return (patches - mean) / (var + 1e-6).sqrt()

    def pixels_to_images(self, x: Tensor, pixels: Tensor) -> Tensor:
        """Return predicted patches as images (N, C, H, W), with mean and deviation of the patches of ``x`` put back."""
        if self.config.norm_pixels:
            var, mean = torch.var_mean(self.patchify(x), 2, keepdim=True)
            pixels = pixels * (var + 1e-6).sqrt() + mean
        return self.unpatchify(pixels)

    def unpatchify(self, pixels: Tensor) -> Tensor:
        """Undo :meth:`patchify`."""
        c = self.config
        grid = pixels.view(-1, c.side, c.side, c.patch, c.patch, c.channels)
        return grid.permute(0, 5, 1, 3, 2, 4).reshape(-1, c.channels, c.image, c.image)

    def patchify(self, x: Tensor) -> Tensor:
        """Return the pixels of each patch, (N, L, P), a pixel's channels beside each other."""
        self._check(x)
        c = self.config
        grid = x.reshape(-1, c.channels, c.side, c.patch, c.side, c.patch)
        return grid.permute(0, 2, 4, 3, 5, 1).reshape(-1, c.patches, c.patch**2 * c.channels)

    def _check(self, x: Tensor) -> None:
        require_batch(x)
        c = self.config
        if x.shape[1:] != (c.channels, c.image, c.image):
            raise InputError(
                f"This network takes images of shape {(c.channels, c.image, c.image)}, and these are "
                f"{tuple(x.shape[1:])}.",
                f"Resize them to {c.image} pixels, a multiple of the patch of {c.patch}.",
            )

    def _check_keep(self, keep: Tensor, images: int) -> None:
        if len(keep) % images:
            raise InputError(
                f"There are {images} images and {len(keep)} masks.",
                "Give as many masks to each image, or one image for all.",
            )
        if keep.shape[1] > self.config.patches:
            raise InputError(
                f"These masks keep {keep.shape[1]} patches, and the images have {self.config.patches}.",
                f"Draw masks of {self.config.patches} patches.",
            )


# The masked autoencoder inside a model, and how images get to it.


class _ReachedError(Exception):
    """Ends a forward pass at the autoencoder, with what it was given."""


class Inside:
    """The one masked autoencoder of a model.

    Args:
        model: An autoencoder, or one inside other modules such as :class:`~offsupport.nn.Normalized`.
        asking: Who needs it, for the message of the refusal.
    """

    def __init__(self, model: nn.Module, asking: str) -> None:
        found = [(name, module) for name, module in model.named_modules() if isinstance(module, MaskedAutoencoder)]
        if len(found) != 1:
            raise ModelError(
                f"{asking} reconstructs images, and this model holds {len(found) or 'no'} masked autoencoders.",
                "Make one with offsupport.nn.mae or offsupport.nn.load_mae; for other networks use 'tent' or 'shot'.",
            )
        name, self.mae = found[0]
        self.prefix = f"{name}." if name else ""
        self.model = model
        if self.mae.classifier is None:
            raise ModelError(
                f"{asking} predicts classes, and this masked autoencoder has no classifier.",
                "Train one on its frozen encoder: offsupport train cifar10-mae-tiny.",
            )

    @torch.no_grad()
    def reach(self, x: Tensor) -> Tensor:
        """Return what the autoencoder is given when the model is called on ``x``; it does not run itself."""

        def stop(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            raise _ReachedError(named["x"] if "x" in named else given[0])

        handle = self.mae.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self.model(x)
        except _ReachedError as reached:
            images: Tensor = reached.args[0]
            return images
        finally:
            handle.remove()
        raise ModelError(
            "The masked autoencoder of this model is not used in its forward pass.", "Call it from the model's forward."
        )
