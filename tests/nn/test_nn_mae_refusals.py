"""What a masked autoencoder cannot be, cannot take and cannot learn from is refused with a remedy."""

import math
import re

import pytest
import torch

from offsupport.core.errors import ConfigError, InputError, ModelError
from offsupport.nn import draw_masks, mae
from offsupport.nn.mae import visible_patches

SMALL = {"image": 8, "patch": 2, "dim": 8, "depth": 2, "heads": 2, "decoder_dim": 8, "decoder_depth": 1}
SMALL |= {"decoder_heads": 2, "head_dim": 8, "head_depth": 1, "head_heads": 2}


def small(classes=3, seed=0, **changes):
    torch.manual_seed(seed)
    return mae("tiny/4", classes, **{**SMALL, **changes}).double().eval()


def images(n=4, seed=1):
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masks(n=4, ratio=0.75, seed=2):
    return draw_masks(n, 16, ratio, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, math.nan])
def test_an_impossible_mask_ratio_is_refused(ratio):
    with pytest.raises(ConfigError, match=r"mask ratio of .* is not possible.*at least 0 and below 1"):
        visible_patches(16, ratio)
    with pytest.raises(ConfigError, match="leaves none of 16 patches"):
        visible_patches(16, 0.97)


@pytest.mark.parametrize("patches", [1, 4, 10, 49, 64, 196, 20000])
def test_the_ratio_that_is_proposed_is_accepted_and_as_large_as_four_digits_say(patches):
    with pytest.raises(ConfigError) as refused:
        visible_patches(patches, 1 - 1e-9)
    proposed = float(re.search(r"at most ([\d.]+),", refused.value.remedy)[1])
    assert visible_patches(patches, proposed) >= 1
    assert proposed >= min(1 - 1 / patches, 0.9999) - 2e-4


def test_masks_that_remove_nothing_have_no_loss():
    model, x = small(), images()
    assert model.loss(x, masks(ratio=0.05)).isfinite()
    with pytest.raises(InputError, match=r"remove no patch.*larger ratio"):
        model.loss(x, masks(ratio=0.0))
    with pytest.raises(InputError, match="remove no patch"):
        model.loss(x[:0], masks(0))


@pytest.mark.parametrize("count", [1, 3, 5])
def test_masks_of_another_number_of_images_are_refused(count):
    with pytest.raises(InputError, match=rf"4 images and {count} masks.*one image for all"):
        small().loss(images(4), masks(count))


@pytest.mark.parametrize("patches", [4, 64])
def test_masks_of_another_number_of_patches_are_refused(patches):
    drawn = draw_masks(4, patches, 0.5, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=rf"masks are of {patches} patches, and the images have 16"):
        small().loss(images(), drawn)
    if patches > 16:
        with pytest.raises(InputError, match="keep 32 patches, and the images have 16"):
            small().encode(images(), drawn.keep)


@pytest.mark.parametrize("value", [0, -2])
@pytest.mark.parametrize("field", [*SMALL, "channels", "mlp_ratio"])
def test_a_shape_is_positive(field, value):
    with pytest.raises(ConfigError, match=rf"cannot have {field}={value}.*above 0"):
        small(**{field: value})


def test_no_classes_are_no_classifier_and_pixels_need_no_standard():
    assert small(classes=None).classifier is None
    assert not small(norm_pixels=False).config.norm_pixels


def test_a_single_image_is_asked_for_its_batch_dimension():
    for use in (small(), small().encode, small().patchify):
        with pytest.raises(InputError, match=r"\(N, C, H, W\).*\(3, 8, 8\).*x\[None\]"):
            use(images(1)[0])


def test_bad_shapes_are_refused():
    with pytest.raises(ConfigError, match=r"Patches of 3 pixels do not divide images of 8.*Resize the images to 6"):
        small(patch=3)
    with pytest.raises(InputError, match=r"images of shape \(3, 8, 8\), and these are \(3, 9, 9\)"):
        small()(torch.rand(1, 3, 9, 9, dtype=torch.float64))
    with pytest.raises(ConfigError, match="3 heads do not divide the width 8"):
        small(heads=3)
    with pytest.raises(ConfigError, match="Position codes of width 6"):
        small(dim=6)
    with pytest.raises(ConfigError, match="Did you mean 'tiny/4'"):
        mae("tiny-4")
    with pytest.raises(ConfigError, match="no head 'svm'"):
        small(head="svm")
    with pytest.raises(ModelError, match="no classifier"):
        small(classes=None)(images())
