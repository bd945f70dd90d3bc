"""``offsupport diagnose``: verdict on standard output, files whole, mistakes as sentences."""

import json

import pytest
from typer.testing import CliRunner

from offsupport.cli.main import app
from offsupport.core.errors import ConfigError

SMALL = ["--set", "n_source=200"]


def test_prints_the_verdict_and_writes_numbers_and_picture(tmp_path):
    out = tmp_path / "new"
    result = CliRunner().invoke(app, ["diagnose", "--preset", "table", *SMALL, "--out", str(out)])
    assert result.exit_code == 0
    assert result.stdout.startswith("No guarantee: Theorem 1")
    assert {path.name for path in out.iterdir()} == {"diagnosis.json", "diagnosis.png", "diagnosis.svg"}
    assert (out / "diagnosis.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_the_diagnosis_and_options_have_effect(tmp_path):
    def ask(*options):
        result = CliRunner().invoke(app, ["diagnose", *SMALL, *options, "--json", "--out", str(tmp_path)])
        assert result.exit_code == 0
        return json.loads(result.stdout)

    base = ask("--preset", "table", "--distance", "5")
    assert base["distance"] == pytest.approx(2)
    assert json.loads((tmp_path / "diagnosis.json").read_text()) == base
    other = ask("--distance", "5", "--seed", "1", "--process", "sparse", "--set", "radius=4")
    assert other["distance"] == pytest.approx(1)
    assert other["subject"] == "sparse process, relu generator, run 1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "papr"], "Unknown process preset"),
        (["--process", "dens"], "Unknown shift"),
        (["--set", "radius"], "--set got 'radius'"),
        (["--set", "radus=3"], "Unknown hyper-parameter 'radus'"),
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
