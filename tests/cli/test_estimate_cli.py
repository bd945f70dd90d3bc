"""offsupport bench estimate, and the limit on the time of a cell."""

import json
import sys
from pathlib import Path

import pytest

from offsupport.bench import Local
from offsupport.bench.executor import too_long
from offsupport.cli.main import main

HELPERS = Path(__file__).parent.parent / "bench"
RECIPE = "datasets: [{dataset: digits-c, corruptions: [fog], limit: 32, source_images: 0}]\nmethods: [source, bn]\n"


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(HELPERS))
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["offsupport", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_a_table_is_estimated_before_anything_is_written(call, tmp_path):
    code, out, _ = call("bench", "estimate", "table2", "--methods", "source,bn", "--json")
    found = json.loads(out)
    assert (code, found["what"], found["folder"]) == (0, "table2", "runs/table2-smoke")
    assert (found["cells"], found["done"], found["unknown"]) == (30, 0, {})
    assert found["sources"] == {"results": 0, "trials": 30}
    assert set(found["methods"]) == {"source", "bn"}
    assert sum(each["core_hours"] for each in found["methods"].values()) == pytest.approx(found["core_hours"])
    assert found["core_hours"] > 0 == found["gpu_hours"]
    assert not list(tmp_path.iterdir())


def test_a_recipe_is_estimated_from_the_results_that_are_there(call, in_process, tmp_path):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    code, _, err = call("bench", "estimate", "mine.yaml")
    assert code == 0
    assert "core-hours" in err
    assert "trials of up to 16 images, run just now (2 cells)" in err
    assert call("bench", "run", "mine.yaml", "--out", "runs/mine")[0] == 0
    code, out, err = call("bench", "estimate", "mine.yaml")
    assert (code, err.strip()) == (0, "All results are there.")
    assert "2 cells, 2 done" in out


def test_options_of_a_table_beside_a_recipe_and_unknown_names_are_refused(call, tmp_path):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    for option in (("--seeds", 2), ("--methods", "bn"), ("--scale", "small"), ("--allow-code",)):
        code, _, err = call("bench", "estimate", "mine.yaml", *option)
        assert (code, option[0] in err) == (2, True)
    code, _, err = call("bench", "estimate", "tabel2")
    assert (code, "table2" in err) == (2, True)
    assert call("bench", "estimate", "none.yaml")[0] == 2


def test_cells_over_their_time_are_an_incomplete_run(call, monkeypatch):
    def run(self, job):
        for cell in job.cells:
            job.failed(cell, str(too_long(job.minutes)))

    monkeypatch.setattr(Local, "_run", run)
    words = ["--methods", "bn", "--model", "bench_models:tiny", "--allow-code", "--limit", 16]
    code, _, err = call("bench", "run", *words, "--cell-minutes", "1.5")
    assert code == 4
    assert "It took longer than 1.5 minutes. Run again with more (--cell-minutes)" in err
    code, _, err = call("bench", "run", *words, "--cell-minutes", "nan")
    assert (code, "--cell-minutes" in err) == (2, True)
    code, _, err = call("reproduce", "tuning-prox", "--cell-minutes", "0")
    assert (code, "--cell-minutes" in err) == (2, True)
