"""``offsupport diagnose``: verdict on standard output, files whole, mistakes as sentences."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from offsupport.cli.main import app
from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.latent.process.draws import draw
from offsupport.latent.process.process import Process

SMALL = ["--set", "n_source=200"]


def test_prints_the_verdict_and_writes_numbers_and_picture(tmp_path):
    out = tmp_path / "new"
    result = CliRunner().invoke(app, ["diagnose", "--preset", "table", *SMALL, "--out", str(out)])
    assert result.exit_code == 0
    assert result.stdout.startswith("No guarantee: Theorem 1")
    assert {path.name for path in out.iterdir()} == {"diagnosis.json", "diagnosis.png", "diagnosis.svg"}
    assert (out / "diagnosis.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_the_diagnosis_and_options_have_effect(tmp_path):
    options = ["--preset", "table", "--process", "sparse", "--seed", "1", "--distance", "5", "--set", "radius=4"]
    result = CliRunner().invoke(app, ["diagnose", *SMALL, *options, "--json", "--out", str(tmp_path)])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["distance"] == pytest.approx(1)
    assert found["subject"] == "sparse process, leaky generator, run 1"
    assert json.loads((tmp_path / "diagnosis.json").read_text()) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "papr"], "Unknown process preset"),
        (["--process", "dens"], "Unknown shift"),
        (["--set", "radius"], "--set got 'radius'"),
        (["--set", "radus=3"], "Unknown setting 'radus'"),
    ],
)
def test_mistakes_are_sentences(options, message, tmp_path):
    result = CliRunner().invoke(app, ["diagnose", *options, "--out", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_several_runs_are_summarised(tmp_path):
    options = ["diagnose", "--preset", "table", *SMALL, "--runs", "2", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0
    assert "2 runs" in result.stdout
    assert any("discrete" in line and "2" in line for line in result.stdout.splitlines())
    first, second = json.loads((tmp_path / "diagnosis.json").read_text())["runs"]
    assert first["radii"] != second["radii"]
    radii = [run["radii"][0]["radius"] for run in (first, second)]
    line = next(line for line in result.stdout.splitlines() if "certified radius (J_u)" in line)
    assert [cell.strip() for cell in line.split("│")[2:5]] == [
        f"{v:.4g}" for v in (min(radii), sum(radii) / 2, max(radii))
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A sparse shift as a person might have it: word labels under a header, targets as a table."""
    folder = tmp_path_factory.mktemp("arrays")
    draws = draw(Process(shift="sparse", n_source=400), [0], [4, 18])
    np.save(folder / "X.npy", draws.x[0].numpy())
    words = ["cat" if label else "dog" for label in draws.y[0].tolist()]
    (folder / "y.csv").write_text("\n".join(["animal", *words]) + "\n")
    np.savetxt(folder / "t.csv", draws.x_tgt[0, :, 0].numpy(), delimiter=",", header="a,b,c,d,e,f", comments="")
    return folder


def test_own_arrays_are_fitted_and_every_target_diagnosed(files, tmp_path):
    paths = ["--source", f"{files}/X.npy", "--labels", f"{files}/y.csv", "--target", f"{files}/t.csv"]
    result = CliRunner().invoke(app, ["diagnose", *paths, "--shift", "sparse", "--out", str(tmp_path)])
    assert result.exit_code == 0
    data = json.loads((tmp_path / "diagnosis.json").read_text())
    near, far = data["targets"]
    assert data["shift"].startswith("sparse")
    assert data["shown"] == 1
    assert {near["predicted"], far["predicted"]} <= {"cat", "dog"}
    assert near["distance"] < far["distance"]
    assert not far["known"]
    assert far["influence"]["s_at_target"] == [4, 5]  # the planted columns
    assert "Target 1, the farthest" in result.stdout
    assert "Target of: fitted Extrapolator, sparse shift" in result.stdout


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("gone.npy", None, DataMissingError, "There is no file"),
        ("bad.npy", b"not an array", FileError, "is damaged"),
        ("ragged.csv", b"1,2\n3\n", FileError, "different lengths"),
        ("table.xlsx", b"", FileError, "neither .npy nor .csv"),
    ],
)
def test_unreadable_arrays_are_sentences(name, content, error, message, files, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    paths = ["--source", str(path), "--labels", f"{files}/y.csv", "--target", f"{files}/t.csv"]
    result = CliRunner().invoke(app, ["diagnose", *paths])
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_all_three_files_or_none():
    result = CliRunner().invoke(app, ["diagnose", "--source", "X.npy"])
    assert isinstance(result.exception, ConfigError)
