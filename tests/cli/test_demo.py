"""The tour, from its first command to its page."""

import json
import subprocess
import sys

import numpy as np
import pytest

from offsupport.cli import demo
from offsupport.data import load
from offsupport.report.demo_page import _theory


@pytest.mark.slow
def test_the_tour_ends_with_a_page_that_shows_every_part(tmp_path):
    command = [sys.executable, "-m", "offsupport", "demo", "--out", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = json.loads(done.stdout)
    page = (tmp_path / "demo" / "report.html").read_text()
    headings = ("Before and after", "A stream that changes", "Table 1 of the paper", "Can this shift be recovered?")
    places = [page.index(heading) for heading in headings]
    assert places == sorted(places)
    assert "{:.1f} % \u2192 {:.1f} %".format(*(100 * found["total"][name] for name in ("source", "auto"))) in page
    assert page.index('class="tiles"') < page.index("<img ") < page.index("<table>")
    assert page.partition('class="tiles"')[2].partition("</ul>")[0].count("<li") == 1  # one number opens it
    assert page.count("<img ") >= 16
    assert (tmp_path / "demo" / "table1" / "report.html").is_file()


def test_the_diagnosis_is_words_and_tables():
    """What a terminal shows in columns is no text for a page."""
    section = _theory(demo.diagnose_target())
    assert section.prose.count("\n\n") == 2
    assert "Recoverable: Theorem 1 (dense shifts) applies" in section.prose
    assert "the target is at 33 % of that" in section.prose
    assert not any(line.startswith(("+", "x ", "?")) or "  " in line for line in section.prose.splitlines())
    assert [(table.caption, len(table.rows)) for table in section.tables] == [
        ("Theorem 1 (dense shifts): holds.", 7),
        ("Theorem 2 (sparse shifts): fails.", 6),
    ]
    assert [row[1].tone for row in section.tables[1].rows] == ["good", "good", "good", "bad", "bad", "open"]
    assert all("#111111" not in drawing.svg for drawing in section.figures)


def test_the_stream_changes_is_sorted_in_a_part_and_keeps_some_images_apart(monkeypatch):
    monkeypatch.setattr(demo, "IMAGES", 24)
    stream, data = demo.changing_stream(0), load("digits", split="test")
    apart = data.images(demo._test_rows(data, 0)[: demo.CLEAN])
    stages = {stage.name: stage for stage in stream}
    assert list(stages) == [name for name, _, _ in demo.PLAN]
    assert [stage.name for stage in stream if stage.burst] == [demo.BURST]
    assert (np.diff(stages["sorted"].labels) >= 0).all()
    assert (np.diff(stages["fog"].labels) < 0).any()
    for stage in stream:
        shifted = not stage.name.startswith("clean")
        assert np.array_equal(stage.clean, stage.shown) != shifted
        assert not any((apart == picture).all((1, 2, 3)).any() for picture in stage.clean)


def test_a_method_walks_the_stream_and_bad_frames_are_not_scored(monkeypatch):
    import offsupport

    monkeypatch.setattr(demo, "IMAGES", 32)
    stream = demo.changing_stream(0)[4:6]
    walked = demo._walked(offsupport.adapt(offsupport.load_model(demo.MODEL), "source"), stream)
    assert len(walked.right) == 64
    truth = np.concatenate([stage.labels for stage in stream])
    assert walked.right == (np.concatenate(walked.predicted) == truth).tolist()
    assert walked.stage(1, 32).error == 1 - np.mean(walked.right[32:])
    assert not walked.estimates


def test_the_table_of_the_tour_starts_no_process(tmp_path, monkeypatch):
    """A worker takes longer to load torch than the cells of this table take to compute."""
    from offsupport.bench import executor

    def refused(*args: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(executor, "_start", refused)
    monkeypatch.setattr(demo, "ESTIMATORS", ("given-c",))
    table = demo.synthetic_table(tmp_path / "table1")
    assert {row.method for row in table.rows} == {"given-c"}
