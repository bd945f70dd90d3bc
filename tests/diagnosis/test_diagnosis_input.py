"""What diagnose_model takes and what it refuses: a sentence instead of a confident answer from broken images."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import offsupport
from offsupport.core.errors import InputError, ModelError
from offsupport.nn import build_network, resnet18


def network(name="resnet"):
    torch.manual_seed(0)
    return resnet18(width=8).eval() if name == "resnet" else build_network("mae-digits/8", 10, "digits").eval()


def images(n, seed=0):
    coarse = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, (32, 32), mode="bilinear", align_corners=True)


def with_value(x, value):
    x = x.clone()
    x[0, 1, 5, 5] = value
    return x


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (with_value(images(3), math.nan), "1 of the 3 target images hold values that are not finite"),
        (with_value(images(3), math.inf), "1 of the 3 target images hold values that are not finite"),
        (images(0), r"target images have shape \(0, 3, 32, 32\)"),
        (images(1)[0], r"target images have shape \(3, 32, 32\)"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), r"torch.uint8.*x.float\(\) / 255"),
        (images(2).numpy(), "target images are ndarray"),
        (list(images(2)), "target images are list"),
        (255 * images(2), r"lie in \[.*Divide by 255"),
        (images(2)[:, :, :16], r"source images have shape \(3, 32, 32\), and the targets \(3, 16, 32\)"),
    ],
)
def test_bad_targets_are_refused(target, message):
    with pytest.raises(InputError, match=message):
        offsupport.diagnose_model(network(), images(40), target)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (with_value(images(40), math.nan), "1 of the 40 source images hold values that are not finite"),
        (images(1).expand(80, -1, -1, -1), "All 80 source images are the same"),
        (images(2).repeat(40, 1, 1, 1), "network sees no difference between the source images"),
        (images(2).repeat_interleave(2, 0).repeat(20, 1, 1, 1), "hardly differ"),
        (images(39), "39 source images.*at least 40"),
        ([], "0 source images.*at least 40"),
        (None, "The source is NoneType"),
        (3, "The source is int"),
        (images(40).numpy(), "source images are ndarray"),
        ((images(40), torch.zeros(40)), r"shape \(40,\).*without labels"),
        (TensorDataset(images(40), torch.zeros(40)), r"shape \(3, 32, 32\).*DataLoader"),
        ([images(40), images(4)[:, :, :16]], r"several shapes: \(3, 16, 32\), \(3, 32, 32\)"),
        ([{"x": images(40)}], "source images are dict"),
        ([()], "source images are tuple"),
        ((255 * images(40)).byte(), "source images are torch.uint8"),
        (255 * images(40), "source images lie in"),
    ],
)
def test_bad_source_images_are_refused(source, message):
    with pytest.raises(InputError, match=message):
        offsupport.diagnose_model(network(), source, images(2, seed=1))


def test_bad_models_are_refused():
    source, target = images(40), images(1)
    adapted = offsupport.adapt(network(), "bn")
    with pytest.raises(ModelError, match=r"Pass adapted\.model"):
        offsupport.diagnose_model(adapted, source, target)
    with pytest.raises(ModelError, match=r"torch\.nn\.Module, not function"):
        offsupport.diagnose_model(images, source, target)
    with pytest.raises(ModelError, match="No layer of this model gives a map"):
        offsupport.diagnose_model(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), source, target)
    with pytest.raises(InputError, match=r"does not take images of shape \(1, 32, 32\)"):
        offsupport.diagnose_model(network(), source[:, :1], target[:, :1])
    broken = network()
    next(broken.parameters()).data.fill_(math.nan)
    with pytest.raises(ModelError, match="values that are not finite from finite images"):
        offsupport.diagnose_model(broken, source, target)


@pytest.mark.parametrize("name", ["resnet", "mae"])
def test_images_are_taken_in_any_floating_type_and_in_batches_with_labels(name):
    source, target = images(60), images(3, seed=1)
    plain = offsupport.diagnose_model(network(name), source, target)
    double = offsupport.diagnose_model(network(name), source.double(), target.double())
    assert torch.equal(double.distance, plain.distance)
    assert torch.equal(double.off_patches, plain.off_patches)
    batches = DataLoader(TensorDataset(source, torch.zeros(60)), 16)
    assert torch.equal(offsupport.diagnose_model(network(name), batches, target).distance, plain.distance)
    wide = offsupport.diagnose_model(network(name).double(), source, target)
    torch.testing.assert_close(wide.distance, plain.distance, rtol=1e-3, atol=1e-3)
    half = offsupport.diagnose_model(network(name).bfloat16(), source, target)
    assert half.distance.isfinite().all()
