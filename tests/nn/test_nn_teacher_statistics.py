"""Batch norm whose running statistics follow, and the mean inputs of norm layers."""

import copy

import pytest
import torch
from torch import nn

from offsupport.nn.norm import adopt_batch_norm, batch_norm_buffers, capture_means


def network():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5), nn.BatchNorm1d(5)
    )
    net(torch.rand(4, 3, 6, 6))
    return net.eval()


def images(count=6, seed=0):
    return torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_running_statistics_follow_as_in_training():
    net = network()
    trained = copy.deepcopy(net).train()
    policy = adopt_batch_norm(net)
    with policy.using("ema"), torch.no_grad():
        for seed in range(3):
            torch.testing.assert_close(net(images(seed=seed)), trained(images(seed=seed)))
    for name, value in trained.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name
    assert not torch.equal(net[1].running_mean, network()[1].running_mean)
    assert set(batch_norm_buffers(net)) == {
        f"{layer}.{name}" for layer in (1, 5) for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_replaced_buffers_follow_and_the_layer_keeps_its_own():
    net = network()
    policy = adopt_batch_norm(net)
    own = {name: value.clone() for name, value in net.state_dict().items()}
    replaced = {name: value.clone() for name, value in batch_norm_buffers(net).items()}
    with policy.using("ema"), torch.no_grad():
        torch.func.functional_call(net, replaced, (images(),))
    assert all(torch.equal(net.state_dict()[name], value) for name, value in own.items())
    assert not any(torch.equal(replaced[name], own[name]) for name in replaced)


@pytest.mark.parametrize("statistics", ["source", "batch", "blend"])
def test_other_statistics_change_no_buffer(statistics):
    net = network()
    policy, before = adopt_batch_norm(net), copy.deepcopy(net.state_dict())
    with policy.using(statistics):
        net(images())
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


def test_a_prior_for_a_block():
    policy = adopt_batch_norm(network())
    with policy.using("blend", prior=3.0):
        assert (policy.statistics, policy.prior) == ("blend", 3.0)
    assert (policy.statistics, policy.prior) == ("source", 16.0)


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
