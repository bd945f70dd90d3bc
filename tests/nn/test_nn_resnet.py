"""Residual networks: published layout, published sizes."""

import pytest
import torch
from torch import nn

from offsupport.core.errors import ModelError
from offsupport.nn import Normalized, affine_parameters, group_norm, norm_layers, resnet18, resnet26, resnet50
from offsupport.nn.inspect import capture_input, device_and_dtype, find_head, input_rank
from offsupport.nn.projected import encoder_parameters, find_projection, projected


def torchvision_keys(depths, convolutions, first_stage_projects):
    """The state dict of torchvision's ResNets, spelled out from their naming pattern."""
    bn = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    keys = ["conv1.weight", *(f"bn1.{key}" for key in bn)]
    for stage, depth in enumerate(depths, start=1):
        for block in range(depth):
            name = f"layer{stage}.{block}"
            for i in range(1, convolutions + 1):
                keys += [f"{name}.conv{i}.weight", *(f"{name}.bn{i}.{key}" for key in bn)]
            if block == 0 and (stage > 1 or first_stage_projects):
                keys += [f"{name}.downsample.0.weight", *(f"{name}.downsample.1.{key}" for key in bn)]
    return [*keys, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("build", "depths", "convolutions", "projects", "parameters"),
    [
        (resnet18, (2, 2, 2, 2), 2, False, 11_689_512),
        (resnet26, (2, 2, 2, 2), 3, True, None),
        (resnet50, (3, 4, 6, 3), 3, True, 25_557_032),
    ],
)
def test_imagenet_networks_have_torchvisions_layout_and_size(build, depths, convolutions, projects, parameters):
    with torch.device("meta"):
        net = build(1000, stem="imagenet")
    assert list(net.state_dict()) == torchvision_keys(depths, convolutions, projects)
    if parameters is not None:
        assert sum(p.numel() for p in net.parameters()) == parameters


def test_some_published_shapes():
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in resnet50(1000, stem="imagenet").state_dict().items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.conv1.weight"] == (64, 64, 1, 1)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    assert shapes["fc.weight"] == (1000, 2048)


@pytest.mark.parametrize(("stem", "sizes"), [("cifar", [32, 16, 8, 4]), ("imagenet", [8, 4, 2, 1])])
@pytest.mark.parametrize("build", [resnet18, resnet26])
def test_where_the_resolution_goes(build, stem, sizes):
    net = build(width=4, stem=stem).eval()
    found = []
    for stage in (1, 2, 3, 4):
        getattr(net, f"layer{stage}").register_forward_hook(lambda _, __, out: found.append(out.shape[-1]))
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert found == sizes


def test_the_stride_sits_on_the_three_by_three_convolution():
    block = resnet50(width=4).layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


def test_width_scales_every_stage():
    net = resnet18(7, width=6)
    assert [getattr(net, f"layer{i}")[0].conv1.out_channels for i in (1, 2, 3, 4)] == [6, 12, 24, 48]
    assert net.fc.weight.shape == (7, 48)


def test_group_norm_option():
    net = resnet18(width=8, norm=group_norm)
    kinds = {type(layer) for _, layer in norm_layers(net)}
    assert kinds == {nn.GroupNorm}
    assert {layer.num_groups for _, layer in norm_layers(net)} == {8, 16, 32}
    assert (group_norm(6).num_groups, group_norm(5).num_groups, group_norm(96).num_groups) == (2, 1, 32)
    assert net(torch.rand(1, 3, 32, 32)).shape == (1, 10)


def test_affine_parameters_are_those_of_norm_layers():
    names = list(affine_parameters(resnet18(width=4)))
    assert len(names) == 40
    assert names[:2] == ["bn1.weight", "bn1.bias"]
    assert "layer2.0.downsample.1.weight" in names
    net = nn.Sequential(nn.LayerNorm(3), nn.BatchNorm2d(2, affine=False), nn.Linear(3, 3), nn.RMSNorm(3))
    assert list(affine_parameters(net)) == ["0.weight", "0.bias", "3.weight"]


def test_normalized_standardises_and_keeps_the_inner_checkpoint():
    inner = nn.Conv2d(3, 2, 1)
    net = Normalized(inner, mean=[0.5, 0.4, 0.3], std=[0.1, 0.2, 0.4])
    x = torch.rand(2, 3, 4, 4)
    by_hand = torch.stack([(x[:, i] - m) / s for i, (m, s) in enumerate([(0.5, 0.1), (0.4, 0.2), (0.3, 0.4)])], 1)
    assert torch.allclose(net(x), inner(by_hand), atol=1e-6)
    assert list(net.state_dict()) == ["model.weight", "model.bias"]


# Questions about models ----------------------------------------------------------------------------------------------


def test_the_head_is_the_last_linear_or_the_named_one():
    net = resnet18(width=4)
    assert find_head(net) == ("fc", net.fc)
    assert find_head(net, "layer1")[1] is net.layer1
    with pytest.raises(ModelError, match="Did you mean 'layer1'"):
        find_head(net, "layr1")


def test_input_rank_is_that_of_a_leading_convolution():
    assert input_rank(resnet18(width=4)) == 4
    assert input_rank(nn.Sequential(nn.Conv1d(3, 3, 1))) == 3
    assert input_rank(nn.Sequential(nn.Linear(3, 3), nn.Conv2d(1, 1, 1))) is None
    assert input_rank(nn.Sequential(nn.ReLU())) is None


def test_device_and_type():
    assert device_and_dtype(nn.Linear(2, 2).double()) == (torch.device("cpu"), torch.float64)
    assert device_and_dtype(nn.Linear(2, 2, device="meta"))[0] == torch.device("meta")
    assert device_and_dtype(nn.ReLU()) == (torch.device("cpu"), torch.float32)


def test_capture_input_sees_features_and_goes_away():
    net = resnet18(width=4).eval()
    with capture_input(net.fc) as features:
        logits = net(torch.rand(2, 3, 32, 32))
    assert torch.allclose(net.fc(features[0]), logits)
    net(torch.rand(2, 3, 32, 32))
    assert len(features) == 1
    assert not net.fc._forward_pre_hooks


def test_a_layer_that_is_never_called_is_no_classifier():
    net = resnet18(width=4).eval()
    unused = nn.Linear(3, 3)
    with pytest.raises(ModelError, match="not called") as error, capture_input(unused):
        net(torch.rand(2, 3, 32, 32))
    assert "head=" in error.value.remedy
    assert not unused._forward_pre_hooks


def test_only_the_head_of_contrastive_training_is_a_projection_head():
    net = nn.Sequential()
    net.projection = nn.Conv2d(3, 4, 4)  # as transformers call the embedding of patches
    net.head = nn.Linear(4, 2)
    assert find_projection(net) is None
    assert set(encoder_parameters(net, net.head)) == {"projection.weight", "projection.bias"}
    with_head = nn.Sequential(projected(resnet18(width=4)))
    assert find_projection(with_head) is with_head[0].projection
    names = set(encoder_parameters(with_head, with_head[0].backbone.fc))
    assert names == {f"0.backbone.{name}" for name, _ in resnet18(width=4).named_parameters() if "fc" not in name}
