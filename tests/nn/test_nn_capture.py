"""Statistics for a block of code, and the mean inputs of norm layers."""

import torch
from torch import nn

from offsupport.nn.norm import adopt_batch_norm, capture_means


def test_a_prior_for_a_block():
    policy = adopt_batch_norm(nn.BatchNorm2d(3))
    with policy.using("blend", prior=3.0):
        assert (policy.kind, policy.prior) == ("blend", 3.0)
    assert (policy.kind, policy.prior) == ("source", 16.0)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.planes, self.whole = nn.LayerNorm(4), nn.GroupNorm(2, 6), nn.LayerNorm([6, 3, 3])
        self.rows = nn.BatchNorm1d(4)

    def forward(self, tokens, planes):
        self.tokens(tokens)
        self.planes(planes)
        self.whole(planes)
        return self.rows(tokens.mean(1))


def test_means_are_per_image_and_channel():
    generator = torch.Generator().manual_seed(0)
    tokens, planes = torch.rand(5, 7, 4, generator=generator), torch.rand(5, 6, 3, 3, generator=generator)
    model = Tokens().eval()
    with capture_means(model) as means:
        model(tokens, planes)
    expected = [tokens.mean(1), planes.mean((2, 3)), planes.mean((2, 3)), tokens.mean(1)]
    for got, want in zip(means, expected, strict=True):
        torch.testing.assert_close(got, want)
    model(tokens, planes)
    assert len(means) == 4
