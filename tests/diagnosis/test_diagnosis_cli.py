"""``offsupport diagnose --model``: numbers and picture in files, images of one size, mistakes as sentences."""

import json

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from offsupport.cli.main import app
from offsupport.core.errors import ConfigError, InputError
from offsupport.nn import build_network, resnet18


def made():
    torch.manual_seed(0)
    return resnet18(width=8)


def made_mae():
    torch.manual_seed(0)
    return build_network("mae-digits/8", 10, "digits")


def write_images(folder, sizes, seed=0):
    """Write a smooth image of each size, (width, height)."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    for i, (width, height) in enumerate(sizes):
        coarse = torch.rand(1, 3, 4, 4, generator=generator)
        x = nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)[0]
        Image.fromarray((255 * x).round().byte().permute(1, 2, 0).numpy()).save(folder / f"{i:02d}.png")


@pytest.fixture
def folders(tmp_path):
    def make(source, target):
        write_images(tmp_path / "source", source)
        write_images(tmp_path / "target", target, seed=1)

    return make


def run(tmp_path, *options, model="made"):
    paths = ["--model", f"{__name__}:{model}", "--allow-code", "--images", str(tmp_path / "target")]
    more = ["--source", str(tmp_path / "source"), "--out", str(tmp_path / "out"), "--json"]
    return CliRunner().invoke(app, ["diagnose", *paths, *more, *options])


def test_writes_numbers_and_picture(folders, tmp_path):
    folders([(32, 32)] * 44, [(32, 32)] * 3)
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert data["images"] == ["00.png", "01.png", "02.png"]
    assert len(data["regime"]) == 3
    assert data["theorem1"] == "unknown"
    assert (tmp_path / "out" / "diagnosis.png").stat().st_size > 1000


SEVERAL = [(32, 32), (48, 40)] * 22


def test_folders_of_several_sizes_are_brought_to_the_one_that_is_given(folders, tmp_path):
    folders(SEVERAL, [(50, 70), (64, 64)])
    refused = run(tmp_path)
    assert isinstance(refused.exception, InputError)
    assert "several sizes" in str(refused.exception)
    assert "--size N" in refused.exception.remedy
    result = run(tmp_path, "--size", "32")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["regime"]) == 2


def test_an_autoencoder_says_its_own_size(folders, tmp_path):
    folders(SEVERAL, [(50, 70), (64, 64)])
    result = run(tmp_path, model="made_mae")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["regime"]) == 2


def test_source_images_that_are_no_squares_need_a_size(folders, tmp_path):
    folders([(48, 32)] * 44, [(48, 32)])
    result = run(tmp_path)
    assert "48x32" in str(result.exception)
    assert "--size N" in result.exception.remedy
    assert run(tmp_path, "--size", "32").exit_code == 0


def test_the_embedded_digits_have_one_size(tmp_path, monkeypatch):
    monkeypatch.setattr("offsupport.studies.models.source_model", lambda name, folder, code: made())
    monkeypatch.setattr("offsupport.serving.folder_diagnosis.MOST_SOURCE", 40)
    write_images(tmp_path / "target", [(32, 32)])
    options = ["diagnose", "--model", "digits-small", "--images", str(tmp_path / "target"), "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*options, "--size", "48"])
    assert isinstance(result.exception, ConfigError)
    assert "32 pixels along a side, not 48" in str(result.exception)
    assert CliRunner().invoke(app, options).exit_code == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("--runs", "1"), ("--preset", "table"), ("--process", "dense"), ("--distance", "3"), ("--seed", "1"),
     ("--set", "radius=9"), ("--labels", "y.csv"), ("--target", "t.csv"), ("--shift", "dense")],
)  # fmt: skip
def test_options_without_meaning_for_a_network_are_refused(option, value, tmp_path):
    result = run(tmp_path, option, value)
    assert isinstance(result.exception, ConfigError)
    assert f"{option} has no meaning for a network" in str(result.exception)


def test_a_size_without_a_network_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["diagnose", "--size", "32", "--out", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "--size has no meaning" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_said(tmp_path):
    runner = CliRunner()
    missing = runner.invoke(app, ["diagnose", "--model", "digits-small"])
    assert isinstance(missing.exception, ConfigError)
    assert "--images" in str(missing.exception)
    unknown = runner.invoke(app, ["diagnose", "--model", f"{__name__}:made", "--allow-code", "--images", str(tmp_path)])
    assert "--source DIR" in str(unknown.exception)
