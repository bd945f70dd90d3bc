import json
import sys
from pathlib import Path

from html_check import read

sys.path.append(str(Path(__file__).parent.parent / "paper"))
from record_maker import make_record

from offsupport.bench import Cell
from offsupport.bench.runs import Status
from offsupport.report.page import render
from offsupport.report.run_page import run_page
from offsupport.studies import TABLES

EVIL = "<script>alert(1)</script>"


def records(names=("bn", "source")):
    return [make_record(m, c, [i % 9 > k for i in range(90)]) for k, m in enumerate(names) for c in ("fog", "snow")]


def page_of(found: list, status: Status | None = None) -> str:
    measured = TABLES["table2"].measure("smoke", found)
    return render(run_page("Table 2", "About it.", measured, status or Status(done=found)))


def test_page_shows_measured_beside_printed():
    text = page_of(records())
    reader = read(text)
    assert reader.findings == []
    words = [word.strip() for _, word in reader.texts]
    for expected in ("15.6", "29.1", "11.1", "holds", "All 4 cells have a result."):
        assert any(expected in word for word in words), expected
    turned = read(page_of(records(("source", "bn"))))
    assert "does not hold" in [word.strip() for _, word in turned.texts]


def test_it_opens_with_the_best_row_and_a_drawing():
    found = records()
    page = run_page("Table 2", "About it.", TABLES["table2"].measure("smoke", found), Status(done=found))
    assert "The lowest average error is that of bn" in page.intro
    assert "the model alone has" in page.intro
    (lead,) = page.lead
    text = render(page)
    assert text.index(lead.svg[:200]) < text.index("<h2>")
    assert all(lead is not drawing for section in page.sections for drawing in section.figures)


def test_page_embeds_what_reproduce_prints():
    reader = read(page_of(records()))
    embedded, *_ = [data for inside, data in reader.texts if inside == "script"]
    printed = TABLES["table2"].measure("smoke", records()).to_dict()
    assert json.loads(embedded) == json.loads(json.dumps(printed))


def test_hyper_parameters_are_listed():
    measured = TABLES["tableA2"].measure("smoke", [])
    words = [word.strip() for _, word in read(render(run_page("A2", "", measured, Status()))).texts]
    assert "Hyper parameters" in words
    (listing,) = measured.listings
    assert {line[0] for line in listing.lines} <= set(words)


def test_unfinished_cells_are_shown():
    failed, missing = (Cell("adapt", {"method": name}) for name in ("first", "second"))
    text = page_of(
        records(), Status(done=records(), failed={failed: "it broke"}, missing={missing: "not computed yet"})
    )
    words = "".join(word for _, word in read(text).texts)
    assert "4 of 6 cells have a result; 1 failed, 1 are missing." in words
    for expected in (f"first {failed.key[:8]}", "it broke", f"second {missing.key[:8]}", "not computed yet"):
        assert expected in words


def test_evil_names_stay_text():
    found = records((EVIL, "bn"))
    reader = read(page_of(found, Status(done=found, failed={Cell("adapt", {"method": EVIL}): EVIL})))
    assert reader.findings == []
    # What was measured, the cells behind it, and the only script that runs.
    types = [attrs.get("type") for tag, attrs in reader.tags if tag == "script"]
    assert types == ["application/json", "application/json", None]


def test_an_empty_run_still_has_a_page():
    assert read(page_of([], Status(missing={Cell("adapt", {}): "not computed yet"}))).findings == []
