"""Networks with a rotation head: they predict as their backbone does, and come back from files."""

import pytest
import torch
from torch import nn

import offsupport
from offsupport.augment import shifted, turned
from offsupport.core.checkpoints import save_tensors
from offsupport.core.errors import FileError, InputError, ModelError
from offsupport.nn import WithRotation, build_network, resnet18, with_rotation_head
from offsupport.nn.inspect import find_head


def made(branch="layer2"):
    torch.manual_seed(0)
    return with_rotation_head(resnet18(width=4), branch).double().eval()


X = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("branch", [None, "layer2", "layer2.1.bn2"])
def test_it_predicts_like_its_backbone_and_the_head_gets_the_branch(branch):
    backbone = resnet18(width=4).double().eval()
    given = []
    model = WithRotation(backbone, nn.Identity(), branch)
    if branch is None:
        backbone.fc.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    else:
        backbone.get_submodule(branch).register_forward_hook(lambda *seen: given.append(seen[2]))
    logits, features = model.both(X)
    assert torch.equal(logits, backbone(X))
    assert torch.equal(model(X), logits)
    assert torch.equal(features, given[0])
    assert find_head(model) == ("backbone.fc", backbone.fc)


def test_heads_are_as_wide_as_the_branch_and_tell_four_turns():
    for branch, first in ((None, (4, 32)), ("layer2", (8, 8, 3, 3))):
        model = made(branch)
        assert next(model.rotation.parameters()).shape == first
        assert model.both(X)[1].shape == (3, 4)


def test_what_stands_behind_the_branch():
    model = made("layer2")
    behind = {p for module in model.behind() for p in module.parameters()}
    names = {name.split(".")[1] for name, p in model.named_parameters() if p in behind}
    assert names == {"layer3", "layer4", "fc"}
    assert made(None).behind()[0].out_features == 10


def test_branches_that_are_not_there_or_whose_width_is_not_known():
    with pytest.raises(ModelError, match="'layer9'"):
        made("layer9")
    with pytest.raises(ModelError, match=r"no nn\.Conv2d"):
        made("avgpool")
    with pytest.raises(ModelError, match=r"no nn\.Linear"):
        with_rotation_head(nn.Sequential(nn.Conv2d(3, 4, 3)))


def saved(path, **facts):
    model = with_rotation_head(build_network("resnet18x0.0625", 10, "cifar10"), "model.layer3").eval()
    about = {"network": "resnet18x0.0625", "normalization": "cifar10", "branch": "model.layer3", **facts}
    save_tensors(path, model.state_dict(), about)
    return model


def test_a_file_gives_the_network_back_with_its_head(tmp_path):
    model = saved(tmp_path / "model.safetensors")
    again = offsupport.load_model(f"file:{tmp_path / 'model.safetensors'}")
    assert isinstance(again, WithRotation)
    for one, two in zip(model.both(X.float()), again.both(X.float()), strict=True):
        torch.testing.assert_close(one, two)
    assert offsupport.adapt(again, "ttt", copies=4, steps=1)(X.float()).shape == (3, 10)


@pytest.mark.parametrize("branch", [3, None, "model.layer2"])
def test_a_file_whose_head_does_not_fit_its_branch_is_refused(tmp_path, branch):
    saved(tmp_path / "model.safetensors", branch=branch)
    with pytest.raises(FileError):
        offsupport.load_model(f"file:{tmp_path / 'model.safetensors'}")


def test_images_turn_by_their_own_quarters():
    quarters = torch.tensor([0, 1, 2, 3, 5])
    x = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    for image, k, out in zip(x, quarters.tolist(), turned(x, quarters), strict=True):
        assert torch.equal(out, torch.rot90(image, k % 4, (1, 2)))
    with pytest.raises(InputError, match="squares"):
        turned(x[..., :4], quarters)


def test_shifted_images_are_windows_of_the_padded_ones():
    x = torch.rand(20, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(shifted(x, 0, torch.Generator()), x)
    out = shifted(x, 2, torch.Generator().manual_seed(1))
    padded = nn.functional.pad(x, (2, 2, 2, 2), mode="replicate")
    windows = padded.unfold(2, 6, 1).unfold(3, 6, 1).permute(0, 2, 3, 1, 4, 5).reshape(20, 25, -1)
    found = (windows == out.flatten(1)[:, None]).all(2)
    assert found.any(1).all()
    assert len({int(row.nonzero()[0]) for row in found}) > 5
