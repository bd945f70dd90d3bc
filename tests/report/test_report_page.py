import base64
import io
import json

import numpy as np
import pytest
from html_check import read
from PIL import Image

from offsupport.report import figures
from offsupport.report.page import Badge, Figure, Page, Picture, Section, Table, render, write
from offsupport.report.tables import claims_table
from offsupport.results.intervals import Estimate
from offsupport.results.rows import below, shifted, within

EVIL = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> & \"quotes\" 'too'"


def full_page(word: str) -> Page:
    drawing = figures.intervals({word: {word: (10.0, 8.0, 12.0)}}, word[:40])
    curve = figures.traces({word: [1.0, 2.0]}, word[:40], word[:40])
    section = Section(
        word,
        prose=f"{word}\n\n{word}",
        tables=[Table([word, "b"], [[word, Badge(word, "good")]], word)],
        figures=[Figure(drawing, word), Figure(curve, word, wide=True)],
        notes=[word],
        code=word,
        facts={word: word},
    )
    return Page(word, word, [section] * 3, data={word: [word]})


def test_page_is_well_formed_and_self_contained():
    reader = read(render(full_page("plain")))
    assert reader.findings == []
    names = [tag for tag, _ in reader.tags]
    assert names.count("svg") == 6
    assert names.count("table") == 3
    policy = [attrs["content"] for tag, attrs in reader.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert "default-src 'none'" in policy[0]


def test_the_reader_of_these_tests_finds_what_it_should():
    bad = [
        "<p><b></p></b>",
        "<p>",
        '<img src="https://x.org/a.png">',
        "<style>@import 'a.css'</style>",
        "<p onclick=x></p>",
    ]
    assert all(read(text).findings for text in bad)


def test_names_are_escaped_everywhere():
    text = render(full_page(EVIL))
    reader = read(text)
    assert reader.findings == []
    assert [attrs.get("type") for tag, attrs in reader.tags if tag == "script"] == ["application/json", None]
    assert not [tag for tag, _ in reader.tags if tag == "img"]
    assert sum(EVIL in data for _, data in reader.texts) >= 10


def test_embedded_data_round_trips():
    value = {"evil": EVIL, "number": 0.1 + 0.2, "none": None}
    reader = read(render(Page("t", "", [], data=value)))
    embedded, _ = [data for inside, data in reader.texts if inside == "script"]
    assert json.loads(embedded) == value
    assert "<" not in embedded


def test_non_finite_data_is_refused():
    with pytest.raises(ValueError, match="Out of range"):
        render(Page("t", "", [], data=float("nan")))


def test_empty_parts_leave_no_trace():
    text = render(Page("t", "", [Section("only a heading")]))
    body = text[text.index("<main>") : text.index("</main>")]
    for tag in ("<p>", "<table", "<figure", "<ul", "<pre", "<details"):
        assert tag not in body
    assert "<nav" not in text


def test_write_is_what_render_says(tmp_path):
    write(full_page("x"), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == render(full_page("x"))


def test_pictures_carry_their_pixels_and_words_with_them():
    pixels = np.arange(300 * 200 * 3, dtype=np.uint32).astype(np.uint8).reshape(300, 200, 3)
    picture = Picture.of(pixels, [EVIL, "below"], "good")
    reader = read(render(Page("t", "", [Section("s", pictures=[picture])])))
    assert reader.findings == []
    (image,) = [attrs for tag, attrs in reader.tags if tag == "img"]
    assert image["alt"] == f"{EVIL}, below"
    shown = Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))
    assert shown.size == (128, 192)  # a large one is made smaller
    small = Picture.of(pixels[:8, :8], [])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(small.png))), pixels[:8, :8])


def test_a_claim_with_too_few_runs_says_so():
    few = below("a is better", Estimate(-25.0, -35.0, -20.0, 4), "a less b", unit="nats")
    many = below("a is better", Estimate(-25.0, -35.0, -20.0, 400), "a less b", unit="nats")
    assert [claims_table([claim]).rows[0][1].text for claim in (few, many)] == ["too few to decide", "holds"]


def test_a_bound_is_shown_as_one_and_the_verdict_is_what_the_drawing_shows():
    """The number is what was measured, not what is left of it; the dashed line stands at the bound."""
    plain = below("a errs less than b", Estimate(-0.03, -0.05, -0.01, 400), "a - b")
    claims = [
        below("at most 2 points", shifted(Estimate(0.01, 0.005, 0.015, 400), 0.02), "a - b, less 2"),
        below("at most 1 point", shifted(Estimate(0.01, 0.005, 0.015, 400), 0.01), "a - b, less 1"),
        within("within 2 points", Estimate(-0.03, -0.04, -0.025, 400), 0.02, "a - b"),
        plain,
    ]
    rows = claims_table(claims).rows
    assert [row[1].text for row in rows] == ["holds", "undecided", "does not hold", "holds"]
    assert [row[2].text for row in rows] == [
        "+1.00 (+0.50 to +1.50), bound +2",
        "+1.00 (+0.50 to +1.50), bound +1",
        "+3.00 (+2.50 to +4.00), bound +2",
        "-3.00 (-5.00 to -1.00)",
    ]
    sides = {(True, False): "holds", (False, True): "does not hold", (False, False): "undecided"}
    for _, verdict, _, bar in rows:
        assert sides[bar.high < bar.zero, bar.low > bar.zero] == verdict.text
    assert claims[0].to_dict()["evidence"]["value"] == pytest.approx(-1.0)  # what other programs read is as it was
