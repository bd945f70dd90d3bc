"""offsupport.adapt_folder: the work of the verb, for Python users."""

import numpy as np
import pytest
import torch
from PIL import Image

import offsupport
from offsupport.core.errors import ConfigError, InputError
from offsupport.nn import resnet18
from offsupport.serving import SourceModel
from offsupport.serving.folder import ClassNames, class_folders
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


def test_printed_it_is_a_few_lines(model, folder):
    found = offsupport.adapt_folder(model, folder, "tent", batch_size=16, lr=0.01)
    lines = str(found).splitlines()
    assert lines[0] == f"tent: 24 images, {len(found.changed)} predictions changed"
    assert "guard: small_batch 1" in lines
    assert len(lines) < 10
    assert "Prediction(" not in str(found)


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
    assert lines[0] == "file,class,name,confidence,guard,source_class,source_name,source_confidence,top,truth"
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
    assert "shuffle=False visits them as they lie" in offsupport.adapt_folder(model, tmp_path / "in", "bn").notes[0]
    sorted_ = offsupport.adapt_folder(model, tmp_path / "in", "bn", shuffle=False)
    assert "shuffle=True mixes them" in sorted_.notes[0]
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


def by_class(folder, names, count=40, severity=5):
    """Write faded digits into a folder for each class, and return their labels by file."""
    data = offsupport.data.load("digits", split="test")
    pixels = offsupport.data.corrupt(data.images(range(count)), "contrast", severity)
    labels = {}
    for row in range(count):
        name = f"{names[data.labels[row]]}/{row:03d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[row]).save(folder / name)
        labels[name] = int(data.labels[row])
    return labels


def test_class_folders_are_labels_and_do_no_harm_by_their_order(tmp_path):
    labels = by_class(tmp_path / "in", "0123456789", 96)
    found = offsupport.adapt_folder("zoo:digits-small", tmp_path / "in", "bn", batch_size=48, top=2)
    assert {p.file: p.truth for p in found.predictions} == labels
    assert found.shuffle
    right = [sum(getattr(p, name) == p.truth for p in found.predictions) for name in ("source_label", "label")]
    assert [found.accuracy.source.value, found.accuracy.adapted.value] == [count / 96 for count in right]
    assert found.accuracy.adapted.value > 0.7 > 0.5 > found.accuracy.source.value
    by_folder = offsupport.adapt_folder("zoo:digits-small", tmp_path / "in", "bn", batch_size=48, shuffle=False)
    assert by_folder.accuracy.adapted.value < found.accuracy.adapted.value
    assert {p.file for p in found.changed} == {p.file for p in found.predictions if p.label != p.source_label}
    for p in found.predictions:
        assert [name for name, _ in p.top] == [p.name, p.top[1][0]]
        assert p.top[0][1] == p.confidence >= p.top[1][1]


def test_what_the_model_alone_says_stands_beside(model, folder):
    found = offsupport.adapt_folder(model, folder, "tent", batch_size=24, lr=0.1)
    x = torch.stack([torch.tensor(np.asarray(Image.open(p))) for p in sorted(folder.iterdir())])
    with torch.no_grad():
        alone = model(x.permute(0, 3, 1, 2).contiguous().float() / 255).softmax(1).max(1)
    assert [p.source_label for p in found.predictions] == alone.indices.tolist()
    assert [p.source_confidence for p in found.predictions] == pytest.approx(alone.values.tolist(), abs=1e-6)
    assert found.accuracy is None
    assert found.to_dict()["config"]["lr"] == 0.1
    assert found.estimate.verdict == "unknown"


def test_class_folders_of_clean_images_calibrate_the_estimate(tmp_path):
    by_class(tmp_path / "in", "0123456789", 64)
    data = offsupport.data.load("digits", split="train")
    for row, picture in enumerate(data.images(range(120))):
        place = tmp_path / "clean" / str(data.labels[row])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{row}.png")
    found = offsupport.adapt_folder("zoo:digits-small", tmp_path / "in", source=tmp_path / "clean", batch_size=32)
    assert found.estimate.source is not None
    assert found.estimate.shift > 2
    assert found.estimate.n == 64


NAMES = ClassNames(["cat", "dog", "sea lion"])


@pytest.mark.parametrize(
    ("files", "names", "truth"),
    [
        (["cat/1.png", "dog/a/2.png"], NAMES, {"cat": 0, "dog": 1}),
        (["Sea_Lion/1.png", "cat/1.png"], NAMES, {"Sea_Lion": 2, "cat": 0}),
        (["cat/1.png", "monday/1.png"], NAMES, {}),
        (["cat/1.png", "2.png"], NAMES, {}),
        (["0/a.png", "1/a.png", "2/a.png"], NAMES, {"0": 0, "1": 1, "2": 2}),
        (["0/a.png", "1/a.png"], NAMES, {}),
        (["b/1.png", "a/1.png", "c/1.png"], ClassNames([]), {"a": 0, "b": 1, "c": 2}),
        (["b/1.png", "a/1.png"], ClassNames([]), {}),
        (["n01440764/1.png"], ClassNames(["tench"], also=[("n01440764", "tench", "Tinca tinca")]), {"n01440764": 0}),
        (["1.png", "2.png"], NAMES, {}),
    ],
)
def test_folders_are_classes_where_they_are_called_so(files, names, truth):
    assert class_folders(files, names, len(names.names) or 3) == truth


def test_a_model_of_the_zoo_by_name(folder):
    found = offsupport.adapt_folder("zoo:cifar10-resnet18x0.25-joint", folder, "bn")
    assert found.model == "zoo:cifar10-resnet18x0.25-joint"
    assert len(found.predictions) == 24
