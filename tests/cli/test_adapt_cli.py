"""offsupport adapt: a folder of images in, a CSV file out, on good and bad folders."""

import csv
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import offsupport
from offsupport.cli.main import main
from offsupport.cli.settings import parse_settings
from offsupport.serving.folder import Prediction, csv_text
from offsupport.serving.image_files import walk_images

HERE = Path(__file__).parent


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["offsupport", "adapt", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(ended.value.code or 0), out, err

    yield run
    torch.set_num_threads(threads)


def write_digits(folder: Path, count: int, side: int = 32) -> torch.Tensor:
    """Write shifted digits as PNG files and return what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (offsupport.data.load("digits").images(range(count)) // 2 + 64).astype(np.uint8)
    for row, picture in enumerate(pixels):
        Image.fromarray(picture).resize((side, side)).save(folder / f"{row:03d}.png")
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255


def rows(path: Path = Path("predictions.csv")) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


TINY = ("--model", "adapt_models:tiny", "--allow-code", "--images", "in", "--threads", 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("os:system", "TypeError"),
        ("os:sep", "not callable"),
        ("sys:exit", "SystemExit"),
        ("os:getcwd", "returned str"),
    ],
)
def test_code_that_makes_no_model_gets_a_sentence(call, tmp_path, name, said):
    write_digits(tmp_path / "in", 1)
    code, out, err = call("--model", name, "--allow-code", "--images", "in")
    assert (code, out) == (2, "")
    assert name in err
    assert said in err
    assert "returns a torch.nn.Module" in err or "return a torch.nn.Module" in err


def test_the_predictions_are_those_of_the_library(call, tmp_path):
    from adapt_models import tiny

    x = write_digits(tmp_path / "in", 40)
    code, out, _ = call(*TINY, "--method", "tent", "--batch-size", 16, "--hyper", "lr=0.01", "--json")
    assert code == 0
    adapted = offsupport.adapt(tiny(), "tent", lr=0.01)
    expected = torch.cat([adapted(part) for part in torch.split(x, 16)]).softmax(1).max(1)
    found = rows()
    assert [row["file"] for row in found] == [f"{i:03d}.png" for i in range(40)]
    assert [int(row["class"]) for row in found] == expected.indices.tolist()
    assert [float(row["confidence"]) for row in found] == pytest.approx(expected.values.tolist(), abs=2e-6)
    assert [row["guard"] for row in found] == [""] * 32 + ["small_batch"] * 8
    data = json.loads(out)
    assert data["events"] == adapted.events
    assert data["passes"] == adapted.passes
    assert data["diagnosis"] is None
    assert any("--source DIR" in note for note in data["notes"])
    assert [p["class"] for p in data["predictions"]] == expected.indices.tolist()
    assert json.loads(Path("predictions.json").read_text())["images"] == 40


def test_the_same_command_writes_the_same_bytes_and_the_seed_orders(call, tmp_path):
    write_digits(tmp_path / "in", 40)
    words = (*TINY, "--method", "tent", "--batch-size", 16, "--shuffle")
    texts = []
    for seed in (0, 0, 1):
        assert call(*words, "--seed", seed)[0] == 0
        texts.append(Path("predictions.csv").read_bytes())
    assert texts[0] == texts[1] != texts[2]
    assert [row["file"] for row in rows()] == sorted(row["file"] for row in rows())


def test_unreadable_images_are_named_and_change_nothing_else(call, tmp_path):
    write_digits(tmp_path / "in", 24)
    words = (*TINY, "--method", "bn", "--batch-size", 12)
    assert call(*words)[0] == 0
    whole = Path("predictions.csv").read_bytes()
    (tmp_path / "in" / "005b.png").write_bytes(b"no image")
    (tmp_path / "in" / "notes.txt").write_text("not an image at all")
    code, _, err = call(*words)
    assert code == 0
    assert "005b.png cannot be read" in err
    assert Path("predictions.csv").read_bytes() == whole
    assert list(json.loads(Path("predictions.json").read_text())["skipped"]) == ["005b.png"]


def test_episodic_batches_do_not_know_of_each_other(call, tmp_path):
    write_digits(tmp_path / "in", 32)
    words = (*TINY, "--method", "tent", "--batch-size", 16, "--hyper", "lr=0.1", "--episodic")
    assert call(*words)[0] == 0
    both = rows()
    for i in range(16):
        (tmp_path / "in" / f"{i:03d}.png").unlink()
    assert call(*words)[0] == 0
    assert rows() == both[16:]


@pytest.mark.parametrize(
    ("model", "words", "warns"),
    [
        ("tiny", ("--method", "tent"), True),
        ("tiny", ("--method", "tent", "--shuffle"), False),
        ("tiny", ("--method", "source"), False),
        ("tiny", ("--method", "memo", "--hyper", "copies=2"), False),
        ("autoencoder", ("--method", "mae-ttt", "--hyper", "steps=1", "--hyper", "masks=2"), False),
        ("autoencoder", ("--method", "mae-ttt", "--hyper", "online=true", "--hyper", "masks=2"), True),
    ],
)
def test_the_order_of_class_folders_is_remarked_where_it_matters(call, tmp_path, model, words, warns):
    for name in "ab":
        write_digits(tmp_path / "in" / name, 2)
    code, out, err = call(
        "--model",
        f"adapt_models:{model}",
        "--allow-code",
        "--images",
        "in",
        "--threads",
        1,
        "--no-shuffle",
        *words,
        "--json",
    )
    assert code == 0, err
    assert any("one class at a time" in note for note in json.loads(out)["notes"]) == warns


def test_source_images_serve_statistics_names_and_the_diagnosis(call, tmp_path):
    write_digits(tmp_path / "in", 20)
    for name in "abcdefghij":
        write_digits(tmp_path / "source" / name, 5)
    code, out, _ = call(*TINY, "--method", "ttac", "--source", "source", "--batch-size", 20, "--json")
    assert code == 0
    data = json.loads(out)
    assert len(data["diagnosis"]["regime"]) == 20
    assert data["diagnosis"]["source_images"] == 50
    assert {row["name"] for row in rows()} <= set("abcdefghij")
    assert all(row["name"] == "abcdefghij"[int(row["class"])] for row in rows())
    assert (tmp_path / "predictions.diagnosis.png").stat().st_size > 1000


def test_a_file_with_its_architecture_and_class_names(call, tmp_path):
    from offsupport.nn import build_network

    write_digits(tmp_path / "in", 4)
    torch.save(build_network("resnet18x0.25", 10, "cifar10").state_dict(), tmp_path / "ckpt.pth")
    (tmp_path / "names.txt").write_text("\n".join(f"kind {i}" for i in range(10)))
    words = ("--model", "file:ckpt.pth", "--images", "in", "--method", "source", "--classes", "names.txt")
    code, _, err = call(*words)
    assert code == 2
    assert "which network" in err
    assert call(*words, "--network", "resnet18x0.25", "--normalization", "cifar10")[0] == 0
    assert all(row["name"] == f"kind {row['class']}" for row in rows())


def test_class_folders_give_accuracies_and_a_page_of_what_changed(call, tmp_path):
    data = offsupport.data.load("digits", split="test")
    faded = offsupport.data.corrupt(data.images(range(40)), "contrast", 5)
    for row, picture in enumerate(faded):
        place = tmp_path / "in" / str(data.labels[row])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{row}.png")
    words = ("--model", "zoo:digits-small", "--images", "in", "--method", "bn", "--batch-size", 40)
    code, out, err = call(*words)
    assert code == 0, err
    changed = [row for row in rows() if row["class"] != row["source_class"]]
    right = sum(row["class"] == row["truth"] for row in rows())
    assert f"adapting changed {len(changed)} of 40 predictions" in out
    assert re.search(r"png\W+\d \(\d+ %\)\W+\d \(\d+ %\)", out)
    assert f"{100 * right / 40:.1f} % (" in out
    assert "--source DIR" in out  # what lets accuracies be estimated
    page = Path("predictions.html").read_text()
    assert page.count("<img ") == len(changed) > 10
    for row in changed:
        assert f"<span>{row['source_name']} \u2192 {row['name']}</span>" in page
    Path("predictions.html").write_text("mine")
    assert "predictions.html is in the way" in call(*words)[2]
    assert Path("predictions.html").read_text() == "mine"


def test_clean_images_are_asked_for_where_they_would_help_and_were_not_given(call, tmp_path):
    write_digits(tmp_path / "in", 4)
    write_digits(tmp_path / "clean", 4)
    words = "No clean images were given: a few hundred of those the model was made for (--source DIR)"
    for more, asked in (((), True), (("--source", "clean"), False), (("--method", "bn"), False)):
        code, out, err = call(*TINY, *more)
        assert code == 0, err
        assert (words in err) == asked
        noted = json.loads(Path("predictions.json").read_text())["notes"]
        assert any(words in note for note in noted) == asked
        assert sum("--source DIR" in note for note in noted) == (0 if more[:1] == ("--source",) else 1)
        assert words not in out


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_weights_of_all_kinds_get_a_remedy_that_works(call, tmp_path):
    from adapt_models import tiny

    write_digits(tmp_path / "in", 2)
    model = tiny().eval()
    torch.save(model.state_dict(), "sd.pth")
    torch.save(model, "whole.pth")
    torch.jit.save(torch.jit.trace(model, torch.rand(1, 3, 32, 32)), "traced.pt")
    torch.export.save(torch.export.export(model, (torch.rand(1, 3, 32, 32),)), "program.pt2")
    Path("graph.onnx").write_bytes(b"\x08\x07\x12\x07pytorch")
    said = {
        "sd.pth": "Write file:sd.pth --network NAME --normalization DATA",
        "nowhere.pth": "There is no file nowhere.pth in ",
        "whole.pth": "--model module:function --allow-code",
        "traced.pt": "is a TorchScript program",
        "graph.onnx": "is an ONNX graph",
        "file:sd.pth": "--network resnet18x0.0625 --normalization cifar10 on the command line, in Python",
        "file:whole.pth": "--model module:function --allow-code",
        "file:traced.pt": "is a TorchScript program",
        "file:program.pt2": "is an exported program",
        "file:graph.onnx": "is an ONNX graph",
    }
    for name, words in said.items():
        code, out, err = call("--model", name, "--images", "in")
        assert (code, out) == (2, "")
        assert words in err, err
        assert "weights_only" not in err
    code, _, err = call("--model", "file:sd.pth", "--network", "resnet18", "--images", "in")
    assert code == 2
    assert "does not say how its network standardises images" in err  # the network was said, so it is not asked again
    assert "--normalization imagenet" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--method", "bn", "--model", "adapt_models:broken"), 2, "made no model (ZeroDivisionError"),
        (("--method", "tnet"), 2, "Did you mean 'tent'"),
        (("--method", "tent", "--hyper", "lrr=1"), 2, "Did you mean 'lr'"),
        (("--method", "tent", "--hyper", "lr=fast"), 2, "It must be a number"),
        (("--method", "tent", "--hyper", "lr"), 2, "Write name=value"),
        (("--method", "tent", "--hyper", "seed=3"), 2, "Use --seed"),
        (("--method", "tent", "--preset", "cifar"), 2, "Did you mean 'cifar1"),
        (("--method", "ttac"), 2, "--source DIR"),
        (("--method", "bn", "--source", "nowhere"), 3, "nowhere is not a folder"),
        (("--method", "bn", "--images", "nowhere"), 3, "nowhere is not a folder"),
        (("--method", "bn", "--images", "empty"), 3, "folder empty holds no images"),
        (("--method", "bn", "--images", "broken"), 3, "None of the 1 images can be read"),
        (("--method", "bn", "--images", "mixed"), 2, "--size N"),
        (("--method", "bn", "--out", "empty"), 2, "is a folder"),
        (("--method", "bn", "--model", "adapt_models:other"), 2, "no model"),
        (("--method", "bn", "--model", "zoo:nothing"), 2, "zoo has no model"),
        (("--method", "bn", "--model", "digits-small", "--images", "large"), 2, "--size 32"),
        (("--method", "source", "--model", "adapt_models:only_16"), 2, "does not take colour images of 32x32"),
        (("--method", "bn", "--model", "adapt_models:dense"), 2, "predicts every position"),
        (("--method", "source", "--model", "adapt_models:careless"), 2, "own code failed in line"),
        (("--method", "bn", "--model", "nothing"), 2, "Unknown model 'nothing'"),
        (("--method", "bn", "--network", "resnet18"), 2, "Leave --network"),
        (("--method", "source", "--classes", "in/two.txt"), 2, "2 names, and the model 10 classes"),
    ],
)
def test_mistakes_get_a_sentence_and_leave_no_file(call, tmp_path, words, code, said):
    write_digits(tmp_path / "in", 2)
    write_digits(tmp_path / "large", 2, side=40)
    write_digits(tmp_path / "mixed", 2)
    Image.new("RGB", (20, 20)).save(tmp_path / "mixed" / "z.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "in" / "two.txt").write_text("a\nb\n")
    found, out, err = call(*TINY, *words)
    assert (found, out) == (code, ""), err
    assert said in err
    assert not list(tmp_path.glob("*.csv"))


def test_size_brings_images_to_the_model(call, tmp_path):
    write_digits(tmp_path / "in", 3, side=40)
    words = ("--model", "adapt_models:only_16", "--allow-code", "--images", "in", "--method", "source")
    assert call(*words, "--size", 16)[0] == 0
    assert len(rows()) == 3


def test_files_are_found_in_one_order_whatever_the_file_system_says(tmp_path, monkeypatch):
    for name in ("b/2.png", "b/10.png", "a.png", "B.jpg", "c/d/e.png", ".hidden/x.png", "b/.y.png", "b/z.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    expected = ["B.jpg", "a.png", "b/10.png", "b/2.png", "c/d/e.png"]
    assert walk_images(tmp_path) == expected
    usual = os.walk
    monkeypatch.setattr(os, "walk", lambda top: ((p, sorted(s, reverse=True), f) for p, s, f in usual(top)))
    assert walk_images(tmp_path) == expected


def test_no_cell_is_a_formula():
    names = ["=1+1", "+a", "-a", "@a", "\t=a", "\uff1da", "plain", "a=b"]
    text = csv_text([Prediction(f"{name}.png", 1, name, 0.5, "") for name in names])
    found = list(csv.reader(text.splitlines()))[1:]
    assert len(found) == len(names)
    for file, _, name, confidence, *_ in found:
        assert file[0] in "'pa"
        assert name[0] in "'pa"
        assert confidence == "0.500000"


def test_a_name_that_is_no_unicode_can_be_written():
    text = csv_text([Prediction("caf\udce9.png", 0, "", 1.0, "")])
    assert "caf\\udce9.png,0,,1.000000," in text
    text.encode()


def test_settings_have_types():
    found = parse_settings(["a=1", "b=1e-3", "c=.5", "d=true", "e=None", "f=sgd", "g=x=y"], "--hyper", "lr=1")
    assert found == {"a": 1, "b": 1e-3, "c": 0.5, "d": True, "e": None, "f": "sgd", "g": "x=y"}
    assert isinstance(found["a"], int)
