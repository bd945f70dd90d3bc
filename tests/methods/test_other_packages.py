"""The packages themselves, where they are installed beside torch: `pip install lightning torchmetrics transformers onnx
onnxscript onnxruntime timm`. tests/methods/test_ecosystem.py has stand-ins that need none of them."""

import sys
import types
import warnings
from unittest.mock import MagicMock

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import offsupport
from offsupport.nn import resnet18

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # other people's code may warn of anything


def package(name):
    """Return a package, or skip: it may be missing, or installed without what it needs itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


class Unused(types.ModuleType):
    """A package that is imported by others and never used by them here: it has whatever they name."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


@pytest.fixture
def timm(monkeypatch):
    """timm asks for torchvision, which has no build for this torch, when it is imported, and not to build a network."""
    try:
        import torchvision  # noqa: F401
    except Exception:  # whatever a build for another torch ends with
        for name in ("", ".transforms", ".transforms.functional", ".datasets", ".ops", ".ops.misc", ".models"):
            monkeypatch.setitem(sys.modules, f"torchvision{name}", Unused(f"torchvision{name}"))
    return package("timm")


def network(seed=0):
    torch.manual_seed(seed)
    return resnet18(width=4).eval()


def images(n, seed=0):
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def test_lightning_predicts_with_it(tmp_path):
    lightning = package("lightning.pytorch")

    class Predictor(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.adapted = offsupport.adapt(network(), "tent", lr=0.1)

        def predict_step(self, batch, batch_idx):
            return self.adapted(batch[0]).argmax(1)

    loader = DataLoader(TensorDataset(images(64), torch.zeros(64)), batch_size=32)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, default_root_dir=tmp_path, **quiet)
    module = Predictor()
    found = torch.cat(trainer.predict(module, loader))
    direct = offsupport.adapt(network(), "tent", lr=0.1)
    assert torch.equal(found, torch.cat([direct(x).argmax(1) for x in images(64).split(32)]))
    assert module.adapted.passes == direct.passes == {"forward": 2, "backward": 2}


def test_torchmetrics_counts_what_evaluate_does():
    metrics = package("torchmetrics.classification")
    x, y = images(96), torch.arange(96) % 10
    batches = list(zip(x.split(32), y.split(32), strict=True))
    accuracy = metrics.MulticlassAccuracy(10, average="micro")
    adapted = offsupport.adapt(network(), "bn")
    for batch, labels in batches:
        accuracy.update(adapted(batch), labels)
    found = offsupport.evaluate(offsupport.adapt(network(), "bn"), batches)
    assert float(accuracy.compute()) == pytest.approx(1 - found.error)


def test_a_network_of_transformers_adapts_by_the_name_of_its_batch():
    transformers = package("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4
    )
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(config).eval()
    adapted = offsupport.adapt(model, "tent", logits=lambda out: out.logits)
    logits = adapted(pixel_values=images(32))
    assert logits.shape == (32, 4)
    assert not torch.equal(logits, model(images(32)).logits)
    assert adapted.model.config.num_labels == adapted.num_labels == 4
    assert adapted.freeze(images(32))(images(2)).logits.shape == (2, 4)


def test_frozen_it_is_exported_to_onnx(tmp_path):
    package("onnx")
    package("onnxscript")
    runtime = package("onnxruntime")
    adapted = offsupport.adapt(network(), "minimal")
    for seed in range(3):
        adapted(images(32, seed) * 0.3)
    plain, x = adapted.freeze(), images(4)
    torch.onnx.export(plain, (x,), str(tmp_path / "adapted.onnx"), dynamo=True, verbose=False)
    session = runtime.InferenceSession(str(tmp_path / "adapted.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), plain(x), rtol=1e-4, atol=1e-4)


def test_a_network_of_timm_adapts(timm):
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=5).eval()
    adapted = offsupport.adapt(model, "tent")
    assert adapted(images(16).repeat(1, 1, 4, 4)).shape == (16, 5)
    assert adapted.forward_features(images(2).repeat(1, 1, 4, 4)).shape[0] == 2
    assert adapted.num_classes == 5
