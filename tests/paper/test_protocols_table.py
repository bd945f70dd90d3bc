"""The table of protocols: its grid, its leaderboard from made-up results, and one method of somebody else's on it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

import offsupport
from offsupport.bench import Record
from offsupport.bench.cell import Place, compute
from offsupport.bench.store import Store
from offsupport.core.errors import ConfigError
from offsupport.data import PROTOCOLS
from offsupport.methods import METHODS
from offsupport.results.correctness import pack
from offsupport.studies import TABLES, TableOptions
from offsupport.studies.ours import protocols
from offsupport.studies.ours.protocols import PARTS, PRINTED, ProtocolConfig, board, command, frontier

sys.path.append(str(Path(__file__).parent.parent / "report"))
from html_check import read

TABLE = TABLES["protocols"]


TWO = ("fog/5", "contrast/5")


def record(method, protocol, wrong, *, ms=1.0, part=None, seed=0, times=1, n=300, domains=TWO):
    """A result in which the first ``wrong`` of ``n`` images were wrong in all domains, each time they came."""
    piece = PARTS["small"][part or protocol]
    made = protocols._cell(piece, method, seed)
    correct = np.tile(np.arange(n) >= wrong, times)
    images = pack(np.tile(np.arange(n), times), correct)
    found = {"images": images, "error": wrong / n, "n": n * times}
    measured = {
        "n": len(domains) * n * times,
        "error": wrong / n,
        "domains": dict.fromkeys(domains, found),
        "passes": {"forward": 1.0, "backward": 0.5},
        "events": {},
        "warnings": [],
    }
    timing = {"seconds": 1.0, "cpu_seconds": ms * len(domains) * n * times / 1000, "grown_bytes": 12_000_000}
    return Record(made.key, made, measured, {"weights_sha256": "ab"}, timing)


def test_the_grid_has_every_protocol_and_every_method_that_can_run():
    cells = TABLE.cells("small", TableOptions())
    own = {(cell.config["protocol"], cell.config["model"].partition("@")[0]) for cell in cells}
    assert {name for name, _ in own} == set(PROTOCOLS)
    group = [cell for cell in cells if "-gn" in cell.config["model"]]
    assert {cell.config["protocol"] for cell in group} == {"sorted"}
    assert "bn" not in {cell.config["method"] for cell in group}
    assert len(cells) == len(set(cells))
    few = TABLE.cells("small", TableOptions(parts=("ccc",), methods=("tent", "cotta"), seeds=2))
    assert [(cell.config["method"], cell.config["seed"]) for cell in few] == [
        *(("tent", 0), ("tent", 1), ("cotta", 0), ("cotta", 1)),
    ]
    with pytest.raises(ConfigError, match="Did you mean 'recurring'"):
        TABLE.cells("small", TableOptions(parts=("recuring",)))


def test_cells_say_the_parameters_of_their_protocols():
    """A change of a protocol is another cell, not another result under the same name."""
    for name, piece in PARTS["small"].items():
        settings, known = piece.settings(), PROTOCOLS[piece.protocol]
        assert settings["batch_size"] == known.batch_size
        assert (settings["reset"], settings["window"]) == (known.reset, known.window)
        assert set(known.options) <= set(settings), name
        assert set(settings) <= {field.name for field in dataclasses.fields(ProtocolConfig)}


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_no_scale_has_fewer_images_than_its_protocols_need(scale):
    for piece in PARTS[scale].values():
        needed, _ = PROTOCOLS[piece.protocol].needs(10, piece.batch_size or PROTOCOLS[piece.protocol].batch_size)
        assert piece.limit >= needed


def test_the_frontier_is_what_nobody_betters():
    points = {
        "slow": (9.0, 5.0),
        "quick": (1.0, 20.0),
        "a little quicker": (0.95, 30.0),  # by less than times vary
        "worse": (2.0, 21.0),
        "middle": (2.0, 9.0),
        "twin": (2.1, 9.0),
        "slow twin": (3.0, 9.0),
    }
    assert frontier(points) == {"slow", "quick", "middle", "twin"}
    best = sorted(points[name] for name in frontier(points))
    assert [error for _, error in best] == sorted((error for _, error in best), reverse=True)


def test_lines_have_error_cost_and_command_best_first():
    found = [
        record("source", "continual", 150),
        record("tent", "continual", 60, ms=3.0),
        record("bn", "continual", 90, ms=4.0),
        record("tent", "sorted", 90, part="sorted-group-norm"),
    ]
    lines = board(found)
    assert [(line.network, line.protocol, line.method) for line in lines] == [
        ("supervised", "continual", "tent"),
        ("supervised", "continual", "bn"),
        ("supervised", "continual", "source"),
        ("group-norm", "sorted", "tent"),
    ]
    first = lines[0]
    assert (first.error.value, first.error.n) == (pytest.approx(0.2), 600)
    assert (first.milliseconds, first.megabytes, first.passes) == (pytest.approx(3.0), 12.0, (1.0, 0.5))
    assert [line.frontier for line in lines] == [True, False, True, True]
    assert first.command == "offsupport reproduce protocols --scale small --parts continual --methods tent --data DATA"
    assert "--parts sorted-group-norm " in lines[3].command
    assert [line.norm for line in lines][:3] == ["any, on batch norm", "batch, on batch norm", "none, on batch norm"]
    assert lines[3].norm == "any, on group norm"
    assert command([found[0], record("source", "continual", 150, seed=2)]).endswith("--seeds 3 --data DATA")


def test_the_overview_has_a_column_for_each_protocol_and_averages_of_methods_that_met_all():
    found = [
        *(record(method, "continual", wrong, ms=2.0) for method, wrong in (("source", 150), ("tent", 60), ("bn", 60))),
        *(record(method, "mixed", wrong, ms=4.0) for method, wrong in (("source", 30), ("tent", 90))),
        record("tent", "sorted", 270, part="sorted-group-norm"),
    ]
    listing = protocols.overview(board(found))
    assert listing.columns[4:] == ("continual", "mixed", "sorted, group-norm")
    assert listing.lines == [
        ("tent", 25.0, 1.5, 2.0, 20.0, 30.0, 90.0),
        ("source", 30.0, 2.0, 3.0, 50.0, 10.0, None),
        ("bn", None, None, 2.0, 20.0, None, None),
    ]
    assert TABLE.summaries(found)[0].name == "overview"


def test_a_lead_that_could_be_chance_is_shared():
    lines = board([record("tent", "mixed", 60), record("bn", "mixed", 61), record("source", "mixed", 150)])
    assert {line.method: line.leads for line in lines} == {"tent": True, "bn": True, "source": False}


@pytest.mark.parametrize(("protocol", "domains"), [("recurring", TWO), ("mixed", ("mixed",))])
def test_images_that_come_again_are_no_further_evidence(protocol, domains):
    made = (record("tent", protocol, 60, times=times, domains=domains) for times in (1, 20))
    once, often = (board([each])[0].error for each in made)
    assert often.n == 20 * once.n
    assert (often.value, often.low, often.high) == pytest.approx((once.value, once.low, once.high))


def test_claims_say_who_leads_and_whether_the_printed_order_holds():
    errors = {"source": 250, "roid": 30, "eata": 60, "bn": 40, "lame": 251, "t3a": 120}
    found = [record(method, "continual", wrong) for method, wrong in errors.items()]
    verdicts = {claim.claim: claim.verdict for claim in TABLE.claims(found)}
    assert verdicts == {
        "roid leads on supervised/continual": "holds",
        "roid errs less than eata on supervised/continual, as printed (16.2 and 17.9)": "holds",
        "eata errs less than bn on supervised/continual, as printed (17.9 and 20.4)": "does-not-hold",
        "bn errs less than source on supervised/continual, as printed (20.4 and 43.5)": "holds",
        "source errs less than lame on supervised/continual, as printed (43.5 and 64.3)": "undecided",
    }
    listed = {listing.name: listing for listing in TABLE.summaries(found)}
    (order,) = listed["printed_order"].lines
    assert order[:2] == ("continual", "supervised")
    assert order[2].startswith("roid 16.2, eata 17.9, bn 20.4")
    assert order[3].startswith("roid 10.0, bn 13.3, eata 20.0")
    assert order[4] == "9 of 10"
    assert TABLE.claims([record("tent", "ccc", 10)]) == []
    assert TABLE.summaries([]) == []


def test_printed_numbers_are_of_methods_there_are():
    assert {method for own in PRINTED.values() for method in own} <= set(METHODS)
    assert PRINTED["group-norm", "sorted"]["lame"] == 11.3
    assert "bn" not in PRINTED["group-norm", "sorted"]


@pytest.fixture
def mine():
    """A method from outside, which predicts as the source model does."""
    info = dataclasses.replace(METHODS["source"].info, name="as-before")
    offsupport.register_method(info, METHODS["source"].config_class)(type("AsBefore", (METHODS["source"],), {}))
    yield "as-before"
    del METHODS._items["as-before"]


def test_the_page_shows_all_that_its_folder_holds(tmp_path, mine):
    """One command with one method puts it beside what is there."""
    from offsupport.report.run_page import write_report

    store = Store(tmp_path)
    cells = {}
    for method in ("source", "tent", mine):
        (cell,) = TABLE.cells("smoke", TableOptions(methods=(method,), parts=("continual",)))
        request = {"verb": "reproduce", "table": "protocols", "scale": "smoke"}
        request["options"] = {"runs": None, "seeds": None, "methods": [method], "parts": ["continual"]}
        store.add_to_grid([cell], request)
        outcome = compute(cell, Place(tmp_path))
        store.write(cell, outcome)
        cells[method] = outcome
    path, measured = write_report(tmp_path)
    assert {row.method: row.value for row in measured.rows} == {
        "source": pytest.approx(100 * cells["source"].deterministic["error"]),
        "tent": pytest.approx(100 * cells["tent"].deterministic["error"]),
        mine: pytest.approx(100 * cells["source"].deterministic["error"]),
    }
    assert cells["tent"].deterministic["n"] == 256
    assert cells["tent"].deterministic["passes"]["backward"] > 0
    assert cells["source"].timing["cpu_seconds"] > 0
    reader = read(path.read_text())
    assert reader.findings == []
    words = [words.strip() for _, words in reader.texts]
    assert "offsupport reproduce protocols --scale smoke --parts continual --methods source" in words
    selects = [attributes["data-column"] for tag, attributes in reader.tags if tag == "select"]
    columns = next(listing for listing in measured.listings if listing.name == "leaderboard").columns
    assert [columns[int(at)] for at in selects] == ["protocol", "network", "ms per image", "norm layers"]
    assert any("on the frontier are" in word for word in words)


def test_a_reset_comes_with_each_domain_or_never(monkeypatch):
    from offsupport.studies.ours import regret

    seen = []
    take = regret.Walk.take

    def noted(self, x, y, rows, *, fresh):
        seen.append(fresh)
        take(self, x, y, rows, fresh=fresh)

    monkeypatch.setattr(regret.Walk, "take", noted)
    for name, expected in (("online", 1), ("continual", 0)):
        seen.clear()
        (cell,) = TABLE.cells("smoke", TableOptions(methods=("bn",), parts=(name,)))
        found = compute(cell, Place(Path()))
        assert sum(seen) == expected
        assert list(found.deterministic["domains"]) == ["fog/5", "contrast/5"]
        assert len(seen) == 8
