"""Batches that a model takes by accident are refused, and those that it takes on purpose are served."""

import pytest
import torch
from torch import nn

import offsupport
from offsupport.core.errors import InputError, ModelError
from offsupport.nn import build_network, mae
from offsupport.testing import NETWORKS
from offsupport.testing.case import changed, run, stream


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def network(name):
    torch.manual_seed(0)
    return build_network(name, 10, "digits").eval()


QUICK = {"mae-ttt": {"steps": 1, "masks": 2}}


@pytest.mark.parametrize(
    ("name", "method"),
    [("mae-digits/8", "mae-ttt"), ("mae-digits/8", "source"), ("digits-small", "tent"), ("digits-small", "source")],
)
def test_the_channels_of_one_image_are_not_taken_for_images(name, method):
    adapted = offsupport.adapt(network(name), method, **QUICK.get(method, {}))
    one = images(3, 32, 32)
    with pytest.raises(InputError, match=r"4 dimensions.*\(3, 32, 32\).*x\[None\]"):
        adapted(one)
    assert adapted(one[None]).shape == (1, 10)


def test_a_bare_autoencoder_asks_for_the_batch_dimension_too():
    adapted = offsupport.adapt(mae("digits/8", 10), "mae-ttt", **QUICK["mae-ttt"])
    with pytest.raises(InputError, match=r"x\[None\]"):
        adapted(images(3, 32, 32))


class Grey(nn.Module):
    """Puts the dimension of the channel in by itself, and predicts each position if it is dense."""

    def __init__(self, dense=False, wrap=lambda out: out):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
        self.head = nn.Identity() if dense else nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 5))
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.head(self.body(x[:, None])))


@pytest.mark.parametrize(
    ("model", "options", "shape"),
    [
        (Grey(), {}, (16, 5)),
        (Grey(dense=True), {}, (16, 4, 6, 6)),
        (Grey(wrap=lambda out: {"loss": 0, "logits": out}), {"logits": lambda out: out["logits"]}, (16, 5)),
    ],
)
def test_a_model_that_adds_a_dimension_itself_is_served(model, options, shape):
    assert offsupport.adapt(model, "tent", **options)(images(16, 8, 8)).shape == shape


def test_a_convolution_does_not_take_one_image_for_a_batch():
    # Convolutions take (C, H, W) as one image, and the classes then lie where the samples should.
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(1, 6))
    with pytest.raises(InputError, match=r"4 dimensions.*x\[None\]"):
        offsupport.adapt(model, "source")(images(1, 8, 8))


class Called(nn.Module):
    """A convolution behind any function of the batch."""

    def __init__(self, before):
        super().__init__()
        self.before, self.layer = before, nn.Conv2d(3, 4, 8)

    def forward(self, x):
        return self.layer(self.before(x)).flatten(1)


def broken(x):
    raise ModelError("It is broken.", "Mend it.")


def test_what_a_model_says_about_a_batch_is_told_from_what_it_says_about_itself():
    with pytest.raises(InputError, match="4 dimensions"):
        offsupport.adapt(Called(lambda x: x.flip(3)), "source")(images(3, 8, 8))
    with pytest.raises(ModelError, match="Mend it"):
        offsupport.adapt(Called(broken), "source")(images(3, 8, 8))


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 5, 8, 8), (0, 1, 8, 8)])
def test_a_shape_the_model_cannot_take_is_said_before_anything_is_remembered(shape):
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent", window=20)
    run(adapted, stream(1))
    before = adapted.snapshot(), dict(adapted.events), dict(adapted.passes)
    with pytest.raises(InputError, match=r"does not take samples of shape .*channels") as error:
        adapted(torch.rand(shape))
    assert error.value.remedy
    assert not changed(before[0], adapted.snapshot())
    assert before[1:] == (adapted.events, adapted.passes)


def test_a_sparse_batch_is_said():
    adapted = offsupport.adapt(NETWORKS["batch_norm"](), "tent")
    with pytest.raises(InputError, match="layout"):
        adapted(torch.zeros(2, 3, 8, 8).to_sparse())
