import json
import re

import numpy as np
import pytest
from data_layouts import write_cifar10, write_cifar100, write_imagenet100, write_picture, write_sparse_cifar_c
from PIL import Image
from typer.testing import CliRunner

from offsupport.cli.main import app
from offsupport.core.errors import DataMissingError, FileError, OffsupportError
from offsupport.data import STANDARD
from offsupport.data.checking import check, draw_findings
from offsupport.data.folders import IMAGENET100
from offsupport.data.making import describe_file


def write_npy(folder, names, rows=10, manifest=True):
    """Write a small folder of .npy corruptions as `data make` leaves it."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in names:
        np.save(folder / f"{name}.npy", rng.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8))
    np.save(folder / "labels.npy", np.tile(np.arange(rows // 5), 5))
    files = {path.name: describe_file(path) for path in folder.glob("*.npy")}
    recipe = {"offsupport": "0", "seed": 0, "frost": "synthetic"}
    if manifest:
        (folder / "manifest.json").write_text(json.dumps({"recipe": recipe, "files": files}))


def test_complete_folder(tmp_path):
    write_npy(tmp_path / "mine", STANDARD)
    [finding] = check(tmp_path)
    assert finding.complete
    assert finding.present == ["labels.npy", *STANDARD]
    sheet = draw_findings([finding])
    assert sheet is not None
    assert sheet.width > 5 * 96
    assert sheet.height > 15 * 96
    shown = np.asarray(sheet)[-100:-4, -100:-4].reshape(32, 3, 32, 3, 3)[:, 1, :, 1]  # jpeg_compression, severity 5
    stored = np.load(tmp_path / "mine" / "jpeg_compression.npy")
    assert any(np.array_equal(shown, image) for image in stored[8:])


@pytest.mark.parametrize(
    ("damage", "file", "problem"),
    [
        (lambda f: (f / "fog.npy").write_bytes((f / "fog.npy").read_bytes()[:500]), "fog.npy", "damaged"),
        (lambda f: np.save(f / "fog.npy", np.zeros((10, 32, 32, 3))), "fog.npy", "holds float64"),
        (lambda f: np.save(f / "fog.npy", np.zeros((5, 32, 32, 3), np.uint8)), "fog.npy", "has 5 rows, not 10"),
        (lambda f: np.save(f / "labels.npy", np.zeros(9, int)), "labels.npy", "has 9 rows"),
        (lambda f: np.save(f / "labels.npy", np.zeros(10)), "labels.npy", "float64"),
        (lambda f: np.save(f / "labels.npy", np.arange(10)), "labels.npy", "repeat"),
        (lambda f: np.save(f / "labels.npy", np.tile([1, 0], 5)), "labels.npy", "another sha256|bytes instead"),
        (lambda f: np.save(f / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8)), "fog.npy", "another sha256"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json", "not a manifest"),
        (lambda f: (f / "manifest.json").write_text('{"recipe": 3}'), "manifest.json", "not a manifest"),
    ],
)
def test_damage_is_named(tmp_path, damage, file, problem):
    write_npy(tmp_path / "mine", ["fog", "snow"])
    damage(tmp_path / "mine")
    [finding] = check(tmp_path)
    assert next(iter(finding.damaged)) == file
    assert re.search(problem, finding.damaged[file])
    draw_findings([finding])


def test_official_row_counts(tmp_path):
    write_sparse_cifar_c(tmp_path / "CIFAR-10-C", ["fog"])
    write_sparse_cifar_c(tmp_path / "CIFAR-100-C", ["fog"], rows=500)
    ten, hundred = check(tmp_path)
    assert (ten.kind, ten.present, ten.damaged) == ("CIFAR-10-C", ["labels.npy", "fog"], {})
    assert "snow.npy" in ten.missing
    assert hundred.damaged == {"labels.npy": "has 500 rows, not 50000", "fog.npy": "has 500 rows, not 50000"}


def test_clean_cifar(tmp_path):
    write_cifar10(tmp_path)
    write_cifar100(tmp_path)
    ten, hundred = sorted(check(tmp_path), key=lambda finding: finding.kind)
    assert (ten.kind, ten.present) == ("cifar10", ["train: 100 images", "test: 20 images"])
    assert hundred.kind == "cifar100"
    assert hundred.complete
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").unlink()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"cos\nsystem\n.")
    [broken] = check(tmp_path / "cifar-10-batches-py")
    assert broken.missing == ["data_batch_2"]
    assert "os.system" in broken.damaged["test"]


def test_trees(tmp_path):
    for severity in (1, 2, 3, 4, 5):
        for wnid in IMAGENET100[: 100 if severity != 4 else 98]:
            write_picture(tmp_path / "ImageNet100-C" / "weather" / "fog" / str(severity) / wnid / "x.JPEG")
    bad = tmp_path / "ImageNet100-C" / "weather" / "fog" / "2" / IMAGENET100[3] / "x.JPEG"
    bad.write_bytes(bad.read_bytes()[:-300])
    [finding] = check(tmp_path)
    assert finding.kind == "ImageNet100-C"
    assert list(finding.damaged) == [str(bad)]
    assert "fog/4: 2 of 100 classes" in finding.missing
    assert "snow/1" in finding.missing
    assert draw_findings([finding]) is not None


def test_image_folders(tmp_path):
    write_imagenet100(tmp_path)
    [finding] = check(tmp_path)
    assert (finding.kind, finding.complete) == ("folder", True)
    (tmp_path / "val" / "n00000000" / "ILSVRC2012_val_00000100.JPEG").unlink()
    (tmp_path / "val" / IMAGENET100[0] / "ILSVRC2012_val_00000000.JPEG").write_bytes(b"")
    [finding] = check(tmp_path)
    assert finding.kind == "imagenet100"
    assert [name.endswith("ILSVRC2012_val_00000000.JPEG") for name in finding.damaged] == [True]


def test_nothing_known(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataMissingError):
            check(place)


def run(*arguments):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    code = result.exception.exit_code if isinstance(result.exception, OffsupportError) else result.exit_code
    return code, result


def test_command_line_check(tmp_path):
    write_npy(tmp_path / "mine", STANDARD)
    code, result = run("check", tmp_path / "mine", "--json")
    assert code == 0
    told = json.loads(result.stdout)
    assert told["findings"][0]["complete"] is True
    with Image.open(told["contact_sheet"]) as sheet:
        assert sheet.format == "PNG"
    (tmp_path / "mine" / "snow.npy").unlink()
    code, result = run("check", tmp_path / "mine", "--sheet", tmp_path / "sheet.png")
    assert code == 3
    assert isinstance(result.exception, DataMissingError)
    assert "snow.npy" in result.stdout
    assert (tmp_path / "sheet.png").is_file()
    np.save(tmp_path / "mine" / "fog.npy", np.zeros(3))
    code, result = run("check", tmp_path / "mine")
    assert code == 2
    assert isinstance(result.exception, FileError)


def test_command_line_make(tmp_path, monkeypatch):
    asked = {}

    def fake(name, data, out, **options):
        asked.update(name=name, data=data, out=out, **options)
        return {"recipe": {"images": 1}, "skipped": ["a.jpg"], "files": {}}

    monkeypatch.setattr("offsupport.data.making.make", fake)
    code, result = run("make", "cifar10-c", "--data", "d", "--out", tmp_path, "--corruptions", "fog, snow", "--json")
    assert code == 0
    assert json.loads(result.stdout)["folder"] == str(tmp_path / "CIFAR-10-C")
    assert (asked["corruptions"], asked["workers"], asked["seed"]) == (["fog", "snow"], 2, 0)
    code, result = run("make", "imagenet-c", "--out", tmp_path, "--skip-bad", "--workers", "1", "--seed", "3")
    assert (asked["skip_bad"], asked["workers"], asked["seed"], len(asked["corruptions"])) == (True, 1, 3, 15)
    assert "a.jpg" in result.stderr
    run("make", "digits-c", "--out", tmp_path, "--corruptions", "all")
    assert len(asked["corruptions"]) == 19
    monkeypatch.undo()
    code, _ = run("make", "cifar10-c", "--data", tmp_path, "--out", tmp_path)
    assert code == 3
