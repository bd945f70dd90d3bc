"""What stands behind a number: the right cells, told in full, and a command that says the same cells again."""

import json
import shlex

import pytest
from html_check import read
from run_maker import make_run

from offsupport.bench.runs import status
from offsupport.bench.store import Store
from offsupport.report.run_page import command, write_report
from offsupport.studies import Request, TableOptions
from offsupport.studies.adaptation import LEAK


def embedded(folder):
    """The sources that the page of a run carries, with every cell put together again."""
    reader = read(write_report(folder)[0].read_text())
    assert reader.findings == []
    (text,) = [data for inside, data in reader.texts if inside == "script" and '"entries"' in data]
    found = json.loads(text)
    cells = [
        {part: {**found["common"][part], **cell[part]} for part in found["parts"]} | {"key": cell["key"]}
        for cell in found["cells"]
    ]
    return found["entries"], cells


def test_a_number_opens_exactly_its_cells(tmp_path):
    folder = make_run(tmp_path, method=["source", "bn"], corruption=["fog", "snow"], seed=[0, 1])
    entries, cells = embedded(folder)
    by_title = {entry["title"]: entry for entry in entries.values()}
    behind = [cells[i]["settings"] for i in by_title["bn, digits-c/fog"]["cells"]]
    assert [(c["method"], c["corruption"], c["seed"]) for c in behind] == [("bn", "fog", 0), ("bn", "fog", 1)]
    assert len(by_title["bn, digits-c/avg"]["cells"]) == 4
    assert dict(by_title["bn, digits-c/avg"]["facts"])["seeds"] == "0 to 1"
    store = Store(folder)
    for cell in cells:
        record = store.read(cell["key"])
        assert cell["settings"] == {"kind": "adapt", **record.cell.to_dict()["config"]}
        assert cell["origin"] == record.provenance
        assert cell["result"]["seconds"] == record.timing["seconds"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_page_says_that_source_statistics_leaked(tmp_path, split):
    folder = make_run(tmp_path, method=["eata"], corruption=["fog", "snow"], source_split=[split])
    reader = read(write_report(folder)[0].read_text())
    assert reader.findings == []
    shown = [words.strip() for inside, words in reader.texts if inside not in ("script", "style")]
    assert shown.count(LEAK.format(method="eata")) == (split == "test")


@pytest.mark.parametrize(
    "axes",
    [
        {"method": ["bn"], "corruption": ["fog", "snow"], "seed": [0, 1]},
        {"method": ["tent"], "corruption": ["fog"], "severity": [3], "batch_size": [64], "limit": [50]},
        {"method": ["bn"], "corruption": [None], "protocol": ["continual"]},
    ],
)
def test_the_command_of_a_bench_run_says_the_same_cells(tmp_path, monkeypatch, axes):
    from offsupport.cli import bench, main

    records = status(make_run(tmp_path, **axes)).done
    asked = {}
    monkeypatch.setattr(bench, "finish", lambda place, cells, *rest: asked.update(cells=cells))
    monkeypatch.setattr(bench, "_show", lambda *given: None)
    words = shlex.split(command(Request(), records))
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code in (0, None)
    assert {cell.key for cell in asked["cells"]} == {record.key for record in records}


def test_what_options_cannot_say_is_said_by_file(tmp_path):
    (record,) = status(make_run(tmp_path, method=["tent"], corruption=["fog"], hyper=[{"lr": 0.1}])).done
    assert f"rm cells/{record.key}.json" in command(Request(), [record])


def test_files_that_runs_share_are_named_where_they_are(tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "SHARED").touch()
    folder = make_run(tmp_path / "run", method=["tent"], corruption=["fog"], hyper=[{"lr": 0.1}])
    (path,) = (tmp_path / "cells").glob("*.json")
    found = status(folder)
    assert found.cells == "../cells"
    assert f"rm ../cells/{path.name}" in command(Request(), found.done, found.cells)
    assert '"folder": "../cells"' in write_report(folder)[0].read_text()


def test_the_command_of_a_table_repeats_what_was_asked():
    request = Request("table1", "smoke", TableOptions(runs=3, methods=("vae", "imsda")))
    assert Request.of(json.loads(json.dumps(request.to_dict()))) == request
    expected = "offsupport reproduce table1 --scale smoke --runs 3 --methods vae,imsda --out again"
    assert command(request, []) == expected
