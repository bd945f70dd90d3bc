"""The tables of the docs are those of the stored results, and the stored results are those of the tables."""

import importlib.util
import json
from pathlib import Path

import pytest

from offsupport.studies import TABLES
from offsupport.studies.latent_runs import KL

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/grid.json"))


def table_of(folder):
    """The table of a folder of results: its name, with ``-SCALE`` behind it where one scale stands beside another."""
    return folder.name if folder.name in TABLES else folder.name.rpartition("-")[0]


RESULTS = [folder for folder in FOLDERS if table_of(folder) in TABLES]


def writer():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "benchmarks" / "docs_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page",
    [
        "docs/extrapolate.md",
        "docs/mae.md",
        "docs/findings.md",
        "docs/scales.md",
        "docs/readings.md",
        "docs/leaderboard.md",
        "docs/auto.md",
        "docs/reliability.md",
        "README.md",
    ],
)
def test_the_page_shows_the_stored_results(page):
    text = (ROOT / page).read_text()
    assert writer().write_tables(text) == text
    named = {name for _, name, *_ in writer().MARKED.findall(text)}
    assert named & {"paper_cost", *(folder.name for folder in RESULTS)}


def test_the_page_of_methods_shows_what_statistics_cost():
    text = (ROOT / "docs" / "methods.md").read_text()
    assert writer().write_tables(text) == text
    assert "<!-- norm_statistics streams -->" in text


def test_numbers_stand_beside_what_is_printed():
    row = {"metric": "accuracy", "low": 48, "high": 53.26, "deviation": 1.04, "n": 1530}
    rows = [
        {**row, "method": "ours", "column": "cifar10-c/jpeg_compression", "value": 50.04, "paper": 43.25},
        {**row, "method": "theirs", "column": "cifar10-c/jpeg_compression", "value": 51.0, "paper": None},
    ]
    payload = {"rows": rows, "claims": []}
    assert writer().lines(payload, "printed") == [
        "| accuracy, %: measured / printed | ours | theirs |",
        "| --- | --- | --- |",
        "| jpeg compression | 50.0 / 43.2 | 51.0 |",
    ]
    numbers = writer().lines(payload, "numbers")
    assert numbers[2] == "| ours, cifar10-c/jpeg_compression | 50.0 | 48.0 to 53.3 | 1.0 | 43.2 | 1,530 |"
    assert numbers[3] == "| theirs, cifar10-c/jpeg_compression | 51.0 | 48.0 to 53.3 | 1.0 |  | 1,530 |"


def test_readings_stand_below_what_is_printed_for_their_estimator():
    row = {"metric": "accuracy", "low": 0.5, "high": 0.6, "n": 100}
    rows = [
        {**row, "method": "vae: one c", "column": "dense-12", "value": 0.55, "paper": 0.78},
        {**row, "method": "vae: other", "column": "sparse-18", "value": 0.5, "paper": 0.72},
        {**row, "method": "only-source: ours", "column": "dense-12", "value": 0.6, "paper": 0.59},
    ]
    assert writer().lines({"rows": rows, "claims": []}, "vae") == [
        "| vae: accuracy | dense 12 | sparse 18 |",
        "| --- | --- | --- |",
        "| as printed | 0.78 | 0.72 |",
        "| one c | 0.55 (0.50 to 0.60) |  |",
        "| other |  | 0.50 (0.50 to 0.60) |",
    ]


def test_attempts_have_a_line_each(tmp_path):
    attempt = {"nll": 2.811, "cost": 1.0, "12": [0.8, 0.7, 0.9], "18": [0.7, 0.6, 0.8]}
    (tmp_path / "dense_attempts.json").write_text(json.dumps({"attempts": {"one fit": attempt}}))
    text = "<!-- dense_attempts attempts -->\n<!-- /dense_attempts attempts -->"
    found = writer().write_tables(text, tmp_path).splitlines()
    assert found[1] == "| attempt | accuracy at 12 | accuracy at 18 | negative log-likelihood | time, in fits |"
    assert found[3] == "| one fit | 0.800 (0.700 to 0.900) | 0.700 (0.600 to 0.800) | 2.81 | 1.0 |"


def test_the_predictions_of_auto_are_means_over_networks(tmp_path):
    rows = [
        {"network": "joint", "lr": 0.02, "streams": "mixed", "auto": 20.0, "bold": 30.0},
        {"network": "resnet20", "lr": 0.02, "streams": "mixed", "auto": 21.0, "bold": 32.0},
        {"network": "joint", "lr": 0.04, "streams": "mixed", "auto": 19.5, "bold": 28.0},
    ]
    (tmp_path / "auto_rule.json").write_text(json.dumps({"rows": rows}))
    found = writer().write_tables("<!-- auto_rule errors -->\n<!-- /auto_rule errors -->", tmp_path).splitlines()
    assert found[1] == "| streams, step size: error, % | auto | bold |"
    assert found[3:5] == ["| mixed, 0.02 | 20.5 | 31.0 |", "| mixed, 0.04 | 19.5 | 28.0 |"]


def test_the_leaderboard_has_one_command_for_a_table_and_what_leads_in_bold(tmp_path):
    costs = {"95 % interval": "25.1 to 27.0", "forward": 1.0, "backward": 0.5, "ms per image": 0.9}
    rest = {"network": "group-norm", "protocol": "sorted", "frontier": "yes", **costs}
    command = "offsupport reproduce protocols --scale small --parts sorted-group-norm --methods {} --data DATA"
    lines = [
        {**rest, "method": "tent", "error, %": 26.0, "MB": 12, "leads": "yes", "command": command.format("tent")},
        {**rest, "method": "bn", "error, %": 30.0, "MB": None, "leads": "", "command": command.format("bn")},
    ]
    stream = {"protocol": "sorted", "network": "group-norm", "images": 6000, "batch": 200, "reset": "never"}
    overview = [
        {"method": "tent", "mean error, %": 26.0, "ms per image": 0.9, "sorted": 26.0},
        {"method": "bn", "mean error, %": None, "ms per image": 0.9, "sorted": 30.0},
    ]
    (tmp_path / "protocols").mkdir()
    stored = {"rows": [], "claims": [], "overview": overview, "leaderboard": lines, "streams": [stream]}
    (tmp_path / "protocols" / "protocols.json").write_text(json.dumps(stored))
    marks = ("overview", "boards")
    text = "\n".join(f"<!-- protocols {mark} -->\n<!-- /protocols {mark} -->" for mark in marks)
    assert writer().write_tables(text, tmp_path).splitlines() == [
        "<!-- protocols overview -->",
        "| method | mean error, % | ms per image | sorted |",
        "| --- | --- | --- | --- |",
        "| `tent` | 26.0 | 0.90 | **26.0** |",
        "| `bn` |  | 0.90 | 30.0 |",
        "<!-- /protocols overview -->",
        "<!-- protocols boards -->",
        "",
        "### sorted-group-norm",
        "",
        "6,000 images in batches of 200 for the `group-norm` network, never reset.",
        "",
        "```",
        command.format("tent,bn"),
        "```",
        "",
        "| method | error, % | 95 % interval | forward | backward | ms per image | MB | frontier |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| `tent` | **26.0** | 25.1 to 27.0 | 1.00 | 0.50 | 0.90 | 12 | yes |",
        "| `bn` | 30.0 | 25.1 to 27.0 | 1.00 | 0.50 | 0.90 |  | yes |",
        "",
        "<!-- /protocols boards -->",
    ]


def test_a_number_that_is_not_the_stored_one_is_replaced(tmp_path):
    rows = [
        {"method": "vae", "column": f"dense-{d}", "metric": "accuracy", "value": v, "n": 500, "paper": p}
        for d, v, p in ((5, 0.8125, None), (12, 0.5, 0.78))
    ]
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "table1.json").write_text(json.dumps({"rows": rows, "claims": []}))
    text = "a\n<!-- table1 dense -->\nold\n<!-- /table1 dense -->\nb\n"
    assert writer().write_tables(text, tmp_path).splitlines() == [
        "a",
        "<!-- table1 dense -->",
        "| dense: accuracy | 5 | 12 | predictions |",
        "| --- | --- | --- | --- |",
        "| vae | 0.812 | 0.500 | 500 |",
        "| vae, as printed |  | 0.78 |  |",
        "<!-- /table1 dense -->",
        "b",
    ]


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_stored_numbers_follow_from_the_stored_cells(folder):
    from offsupport.bench.runs import status

    def plain(text):  # sums of doubles end in other digits where they are added in another order
        return json.loads(text, parse_float=lambda number: round(float(number), 9))

    stored = plain((folder / f"{folder.name}.json").read_text())
    found = status(folder)
    assert not found.failed
    again = plain(json.dumps(TABLES[table_of(folder)].measure(stored["scale"], found.done).to_dict()))
    by = lambda rows, *names: {tuple(row[name] for name in names): row for row in rows}  # noqa: E731
    assert by(again["rows"], "method", "column") == by(stored["rows"], "method", "column")
    assert by(again["claims"], "claim") == by(stored["claims"], "claim")


def test_the_kl_weights_in_use_are_those_of_highest_source_likelihood():
    path = ROOT / "results" / "kl-choice" / "kl-choice.json"
    if not path.is_file():
        pytest.skip("kl-choice has not been measured")
    best = {}
    for row in json.loads(path.read_text())["rows"]:
        shift, _, kl = row["column"].partition(", kl ")
        best.setdefault((row["method"], "classification", shift), []).append((row["value"], float(kl)))
    assert {key: max(values)[1] for key, values in best.items()} == {k: v for k, v in KL.items() if k in best}
