"""offsupport.adapt_folder: the work of the verb, for Python users."""

import numpy as np
import pytest
import torch
from PIL import Image

import offsupport
from offsupport.core.errors import ConfigError, InputError
from offsupport.nn import resnet18
from offsupport.serving import SourceModel
from offsupport.serving.source_model import trained_on


@pytest.fixture
def model():
    torch.manual_seed(0)
    return resnet18(width=4).eval()


@pytest.fixture
def folder(tmp_path):
    return write_digits(tmp_path / "in", 24)


def write_digits(folder, count, side=32):
    folder.mkdir(parents=True)
    pixels = (offsupport.data.load("digits").images(range(count)) // 2 + 64).astype(np.uint8)
    for row, picture in enumerate(pixels):
        Image.fromarray(picture).resize((side, side)).save(folder / f"{row:03d}.png")
    return folder


def test_a_network_and_a_folder_give_typed_predictions_and_write_nothing(model, folder):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = offsupport.adapt_folder(model, folder, "tent", batch_size=16, lr=0.01)
    adapted = offsupport.adapt(model, "tent", lr=0.01)
    x = torch.stack([torch.tensor(np.asarray(Image.open(p))) for p in sorted(folder.iterdir())])
    x = x.permute(0, 3, 1, 2).contiguous().float() / 255
    expected = torch.cat([adapted(part) for part in torch.split(x, 16)]).softmax(1).max(1)
    assert [p.label for p in found.predictions] == expected.indices.tolist()
    assert [p.confidence for p in found.predictions] == expected.values.tolist()
    assert found.events == adapted.events
    assert found.passes == adapted.passes
    assert (found.model, found.method, found.diagnosis) == ("ResNet", "tent", None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [path.name for path in folder.parent.iterdir()] == ["in"]


def test_events_are_summed_over_resets(model, folder):
    found = offsupport.adapt_folder(model, folder, "tent", batch_size=8, episodic=True)
    assert found.events["small_batch"] == 3
    assert found.passes["forward"] == 3


def test_what_is_written_is_what_is_returned(model, folder, tmp_path):
    out = tmp_path / "made" / "p.csv"
    found = offsupport.adapt_folder(model, folder, "bn", source=folder, out=out)
    assert found.diagnosis is None  # 24 source images are too few
    assert any("No diagnosis: There are 24 source images" in note for note in found.notes)
    lines = out.read_text().splitlines()
    assert lines[0] == "file,class,name,confidence,guard"
    assert [line.split(",")[:2] for line in lines[1:]] == [[p.file, str(p.label)] for p in found.predictions]
    assert {path.name for path in out.parent.iterdir()} == {"p.csv", "p.json"}


def test_names_of_classes_come_as_a_list_or_a_file(model, folder, tmp_path):
    names = [f"kind {i}" for i in range(10)]
    (tmp_path / "names.txt").write_text("\n".join(names))
    for classes in (names, tmp_path / "names.txt", str(tmp_path / "names.txt")):
        found = offsupport.adapt_folder(model, folder, "source", classes=classes)
        assert all(p.name == names[p.label] for p in found.predictions)
    with pytest.raises(ConfigError, match="9 names, and the model 10 classes"):
        offsupport.adapt_folder(model, folder, "source", classes=names[1:])


def test_remedies_speak_python(model, tmp_path):
    mixed = write_digits(tmp_path / "mixed", 2)
    Image.new("RGB", (20, 20)).save(mixed / "z.png")
    with pytest.raises(InputError, match="Give size=N: the shorter side"):
        offsupport.adapt_folder(model, mixed, "bn")
    with pytest.raises(ConfigError, match="trained on: source=DIR"):
        offsupport.adapt_folder(model, mixed, "ttac")
    for name in "ab":
        write_digits(tmp_path / "in" / name, 1)
    assert "shuffle=True mixes them" in offsupport.adapt_folder(model, tmp_path / "in", "bn").notes[0]
    with pytest.raises(ConfigError, match="is a folder"):
        offsupport.adapt_folder(model, mixed, "bn", out=tmp_path)
    with pytest.raises(ConfigError, match="Leave inplace out"):
        offsupport.adapt_folder(model, mixed, "bn", inplace=True)


def test_sizes_are_checked_before_a_model_is_loaded(tmp_path):
    def load():
        raise AssertionError("loaded too early")

    large = write_digits(tmp_path / "large", 1, side=40)
    with pytest.raises(InputError, match="Give size=32"):
        offsupport.adapt_folder(SourceModel("mine", load, "cifar10"), large, "bn")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("digits-small", "digits"),
        ("zoo:cifar10-resnet18x0.25-joint", "cifar10"),
        ("file:digits-small.safetensors", None),
        ("digits:make", None),
        ("timm:resnet50", None),
    ],
)
def test_a_name_tells_the_data_where_it_can(name, data):
    assert trained_on(name) == data


def test_a_model_of_the_zoo_by_name(folder):
    found = offsupport.adapt_folder("zoo:cifar10-resnet18x0.25-joint", folder, "bn")
    assert found.model == "zoo:cifar10-resnet18x0.25-joint"
    assert len(found.predictions) == 24
