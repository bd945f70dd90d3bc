"""Masked autoencoders (He et al., 2022): encode the visible patches, reconstruct the others, classify the whole.

Parameter names are those of the public MAE checkpoints, with the classifier beside them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from offsupport.core.config import build
from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.core.registry import Registry
from offsupport.nn.mae_head import Head, LinearProbe, VitHead
from offsupport.nn.masking import Masking
from offsupport.nn.normalized import require_batch
from offsupport.nn.vit import EPS, Block, PatchEmbed, init_transformer, sincos_position


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


def mae(size: str = "tiny/4", classes: int | None = None, head: Head = "vit", **changes: Any) -> MaskedAutoencoder:
    """Return an untrained masked autoencoder, drawn from torch's global generator.

    Args:
        size: ``vit-l/16``, ``vit-b/16`` (224 pixels) ``tiny/4`` or ``digits/8`` (32 pixels).
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
            keep: (N, V) the patches to encode, see :class:`Masking`; None for all.
        """
        self._check(x)
        tokens = self.patch_embed(x) + self.pos_embed[:, 1:]
        if keep is not None:
            self._check_keep(keep, len(x))
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
        """Return the predicted pixels of every patch from the visible ones; one image serves all masks."""
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
        """Return the mean squared error of each patch, (N, L), in the units of the target."""
        return (pixels - self.target(x)).square().mean(2)

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
        if images not in (1, len(keep)):
            raise InputError(
                f"There are {images} images and {len(keep)} masks.", "Give one mask per image, or one image for all."
            )
        if keep.shape[1] > self.config.patches:
            raise InputError(
                f"These masks keep {keep.shape[1]} patches, and the images have {self.config.patches}.",
                f"Draw masks of {self.config.patches} patches.",
            )
