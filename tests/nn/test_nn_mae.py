"""Masked autoencoders: masks, reconstruction against plain loops, heads, and refusals."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from offsupport.core.errors import InputError
from offsupport.nn import MaskedAutoencoder, draw_masks, mae
from offsupport.nn.mae import SIZES, Attention, Inside, make_head, mask_by_noise, sincos_position, visible_patches

SMALL = {"image": 8, "patch": 2, "dim": 8, "depth": 2, "heads": 2, "decoder_dim": 8, "decoder_depth": 1}
SMALL |= {"decoder_heads": 2, "head_dim": 8, "head_depth": 1, "head_heads": 2}


def small(classes=3, seed=0, **changes):
    torch.manual_seed(seed)
    return mae("tiny/4", classes, **{**SMALL, **changes}).double().eval()


def images(n=4, seed=1):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masks(n=4, ratio=0.75, seed=2):
    return draw_masks(n, 16, ratio, torch.Generator().manual_seed(seed))


# Masks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patches", "ratio", "visible"), [(196, 0.75, 49), (64, 0.75, 16), (16, 0.0, 16), (10, 0.55, 4)]
)
def test_the_number_of_visible_patches(patches, ratio, visible):
    found = draw_masks(3, patches, ratio, torch.Generator().manual_seed(0))
    assert found.keep.shape == (3, visible)
    assert found.mask.sum(1).tolist() == [patches - visible] * 3
    assert visible_patches(patches, ratio) == visible


def test_the_patches_with_the_least_noise_stay():
    found = mask_by_noise(torch.tensor([[0.9, 0.1, 0.5, 0.3]]), 0.5)
    assert found.keep.tolist() == [[1, 3]]
    assert found.mask.tolist() == [[1, 0, 1, 0]]
    shuffled = torch.tensor([[1, 3, 2, 0]])
    assert shuffled.gather(1, found.restore).tolist() == [[0, 1, 2, 3]]


def test_every_patch_is_removed_equally_often():
    share = draw_masks(4000, 16, 0.75, torch.Generator().manual_seed(0)).mask.mean(0)
    assert (share - 0.75).abs().max() < 5 * math.sqrt(0.75 * 0.25 / 4000)


def test_masks_come_from_the_generator_alone():
    first, again = (draw_masks(2, 16, 0.5, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first.restore, again.restore)
    assert not torch.equal(first.restore, masks(2, 0.5, seed=4).restore)


# Reconstruction -------------------------------------------------------------------------------------------------------


def test_only_visible_patches_are_encoded():
    model, m = small(), masks()
    x, seen = images(), []
    model.blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    model.encode(x, m.keep)
    assert seen == [(4, 1 + 4, 8)]
    changed = model.patchify(x) + m.mask[..., None]  # removed patches do not matter, visible ones do
    assert torch.equal(model.encode(x, m.keep), model.encode(model.unpatchify(changed), m.keep))
    changed = model.patchify(x) + (1 - m.mask)[..., None]
    assert not torch.allclose(model.encode(x, m.keep), model.encode(model.unpatchify(changed), m.keep))


def test_the_loss_is_that_of_a_plain_loop_over_removed_patches():
    model, x, m = small(), images(), masks()
    pixels = model.reconstruct(x, m)
    errors = []
    for n in range(4):
        for patch in range(16):
            row, column = 2 * (patch // 4), 2 * (patch % 4)
            target = x[n, :, row : row + 2, column : column + 2].permute(1, 2, 0).reshape(-1)
            target = (target - target.mean()) / (target.var() + 1e-6).sqrt()
            if m.mask[n, patch]:
                errors.append((pixels[n, patch] - target).square().mean())
    assert len(errors) == 4 * 12
    torch.testing.assert_close(model.loss(x, m), torch.stack(errors).mean(), rtol=1e-6, atol=0)


def test_the_loss_ignores_how_visible_patches_are_reconstructed(monkeypatch):
    model, x, m = small(), images(), masks()
    pixels = model.reconstruct(x, m).detach().requires_grad_()
    monkeypatch.setattr(model, "reconstruct", lambda *_: pixels)
    (gradient,) = torch.autograd.grad(model.loss(x, m), pixels)
    assert (gradient[m.mask == 0] == 0).all()
    assert (gradient[m.mask == 1] != 0).any(1).all()


def test_one_image_under_many_masks_is_as_copies_of_it():
    model, m = small(), masks(6)
    one = images(1)
    copies = one.expand(6, -1, -1, -1).contiguous()
    by_one = torch.autograd.grad(model.loss(one, m), parts(model))
    by_copies = torch.autograd.grad(model.loss(copies, m), parts(model))
    for a, b in zip(by_one, by_copies, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def parts(model):
    return [p for name, p in model.named_parameters() if not name.startswith("classifier")]


def test_a_shuffled_mask_reconstructs_each_patch_in_its_place():
    model, x = small(), images(1)
    keep_all = draw_masks(1, 16, 0.0, torch.Generator().manual_seed(5))
    in_order = mask_by_noise(torch.arange(16.0)[None], 0.0)
    torch.testing.assert_close(model.reconstruct(x, keep_all), model.reconstruct(x, in_order), rtol=1e-9, atol=1e-12)


def test_raw_pixels_are_a_target_too():
    model, x = small(norm_pixels=False), images()
    assert torch.equal(model.target(x), model.patchify(x))


def test_patches_go_back_to_images():
    x = images()
    assert torch.equal(small().unpatchify(small().patchify(x)), x)
    for norm_pixels in (True, False):
        model = small(norm_pixels=norm_pixels)
        torch.testing.assert_close(model.pixels_to_images(x, model.target(x)), x)


# Transformer ----------------------------------------------------------------------------------------------------------


def test_attention_is_that_of_a_plain_loop():
    torch.manual_seed(0)
    layer, x = Attention(6, 2).double(), torch.rand(2, 5, 6, dtype=torch.float64)
    q, k, v = layer.qkv(x).split(6, dim=2)
    out = torch.empty_like(x)
    for n in range(2):
        for head in range(2):
            at = slice(3 * head, 3 * head + 3)
            for t in range(5):
                score = torch.stack([q[n, t, at] @ k[n, s, at] for s in range(5)]) / math.sqrt(3)
                out[n, t, at] = sum(w * v[n, s, at] for s, w in enumerate(score.softmax(0)))
    torch.testing.assert_close(layer(x), layer.proj(out))


def test_position_codes_tell_column_then_row():
    codes = sincos_position(8, 3)[0].numpy()
    assert (codes[0] == 0).all()
    for patch in range(9):
        expected = [f(at * w) for at in (patch % 3, patch // 3) for f in (np.sin, np.cos) for w in (1.0, 0.01)]
        np.testing.assert_allclose(codes[1 + patch], expected, atol=1e-6)


def test_initial_weights():
    torch.manual_seed(0)
    model = mae("tiny/4", classes=10)
    embed = model.patch_embed.proj.weight.detach()
    assert embed.abs().max() <= math.sqrt(6 / (48 + 96))
    assert embed.std() == pytest.approx(math.sqrt(2 / (48 + 96)), rel=0.05)
    assert all((layer.bias == 0).all() for layer in model.modules() if isinstance(layer, nn.Linear))
    assert model.mask_token.detach().std() == pytest.approx(0.02, rel=0.4)


# Heads and sizes ------------------------------------------------------------------------------------------------------


def test_the_linear_head_standardises_the_class_token():
    model = small(head="linear")
    model.classifier[0].running_mean.normal_()
    model.classifier[0].running_var.uniform_(0.5, 2)
    token = model.encode(images())[:, 0]
    norm, layer = model.classifier
    expected = layer((token - norm.running_mean) / (norm.running_var + 1e-6).sqrt())
    torch.testing.assert_close(model(images()), expected)


def test_a_head_for_all_tokens_refuses_masked_images_and_the_linear_one_takes_them():
    m, model = masks(), small()
    with pytest.raises(InputError, match=r"all 17 tokens of an image, and it was given 5.*or use the linear head"):
        model.classifier(model.encode(images(), m.keep))
    model = small(head="linear")
    assert model.classifier(model.encode(images(), m.keep)).shape == (4, 3)


def test_the_classifier_is_the_last_linear_layer():
    from offsupport.nn.inspect import find_head

    assert find_head(small())[0] == "classifier.head"
    assert find_head(small(head="linear"))[0] == "classifier.1"


@pytest.mark.parametrize(
    ("size", "patches", "millions"), [("vit-l/16", 196, 303.3), ("vit-b/16", 196, 85.8), ("tiny/4", 64, 0.45)]
)
def test_named_sizes(size, patches, millions):
    config = SIZES[size]
    assert config.patches == patches
    with torch.device("meta"):
        model = MaskedAutoencoder(config, make_head(config, 10))
    encoder = sum(p.numel() for n, p in model.named_parameters() if not n.startswith(("decoder", "mask", "classifier")))
    assert encoder / 1e6 == pytest.approx(millions, rel=0.01)


class Around(nn.Module):
    """Gives an autoencoder its images by name or by place."""

    def __init__(self, inner, named):
        super().__init__()
        self.inner, self.named = inner, named

    def forward(self, x):
        return self.inner(x=2 * x) if self.named else self.inner(2 * x)


@pytest.mark.parametrize("named", [True, False])
def test_images_reach_the_autoencoder_however_it_is_called(named):
    model, x = Around(small(), named), images()
    assert torch.equal(Inside(model, "A test").reach(x), 2 * x)
    assert model(x).shape == (4, 3)
