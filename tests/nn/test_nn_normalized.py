"""Normalisation inside the model."""

import pytest
import torch
from torch import nn

from offsupport.core.errors import ConfigError, InputError
from offsupport.nn import Normalized


def test_standardises_each_channel_and_adds_no_keys():
    net = Normalized(nn.Identity(), mean=[0.1, 0.2, 0.3], std=torch.tensor([0.5, 1.0, 2.0]))
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([(x[:, 0] - 0.1) / 0.5, (x[:, 1] - 0.2) / 1.0, (x[:, 2] - 0.3) / 2.0], 1)
    torch.testing.assert_close(net(x), expected)
    assert not net.state_dict()


@pytest.mark.parametrize(("mean", "std"), [([0.5], [0.0]), ([0.5] * 3, [0.5] * 2), ([0.5], [float("nan")])])
def test_refuses_what_cannot_standardise(mean, std):
    with pytest.raises(ConfigError, match="one positive deviation"):
        Normalized(nn.Identity(), mean, std)


def test_refuses_images_with_other_channels():
    with pytest.raises(InputError, match="3 channels, and there are 4 means"):
        Normalized(nn.Identity(), [0.5] * 4, [0.5] * 4)(torch.zeros(1, 3, 2, 2))


@pytest.mark.parametrize(("shape", "remedy"), [((3, 4, 4), r"x\[None\]"), ((4, 4), "four"), ((2, 2, 3, 4, 4), "four")])
def test_refuses_what_is_no_batch_of_images(shape, remedy):
    with pytest.raises(InputError, match=rf"\(N, C, H, W\).*{remedy}"):
        Normalized(nn.Identity(), [0.5] * 3, [0.5] * 3)(torch.zeros(shape))


def test_one_mean_serves_any_number_of_channels():
    assert torch.equal(Normalized(nn.Identity(), [0.5], [0.25])(torch.ones(2, 3, 4, 4)), torch.full((2, 3, 4, 4), 2.0))
