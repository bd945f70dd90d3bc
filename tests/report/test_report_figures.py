import re
import xml.etree.ElementTree as ET

import pytest

from offsupport.report import figures

SVG = "{http://www.w3.org/2000/svg}"


def words(drawing: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(drawing).iter(f"{SVG}text")]


def test_intervals_name_groups_and_series():
    drawing = figures.intervals(
        {"bn": {"fog": (10, 8, 12), "snow": (20, 18, 23)}, "tent": {"fog": (9, 7, 11)}}, "error (%)"
    )
    assert {"bn", "tent", "fog", "snow", "error (%)"} <= set(words(drawing))
    assert figures.PALETTE[0] in drawing
    assert figures.PALETTE[1] in drawing


def test_drawings_scale_and_follow_the_text_colour():
    drawing = figures.traces({"a": [3.0, 2.0, 1.0]})
    root = ET.fromstring(drawing)
    assert "viewBox" in root.attrib
    assert "width" not in root.attrib
    assert "height" not in root.attrib
    assert "currentColor" in drawing
    assert "#010203" not in drawing
    assert "#000000" not in drawing


def test_drawings_are_deterministic():
    assert figures.traces({"a": [3.0, 2.0, 1.0]}) == figures.traces({"a": [3.0, 2.0, 1.0]})


def test_names_are_text_not_mathematics():
    assert "a$b$<i>" in words(figures.traces({"a$b$<i>": [1.0]}))


def test_two_figures_share_no_names_with_different_content():
    found: dict[str, str] = {}
    for drawing in (figures.traces({"a": [1.0, 2.0]}), figures.intervals({"a": {"g": (1, 0, 2)}})):
        for element in ET.fromstring(drawing).iter():
            if "id" in element.attrib:
                content = re.sub(r"\s+", "", ET.tostring(element, encoding="unicode"))
                assert found.setdefault(element.attrib["id"], content) == content


def test_styles_differ_for_many_series():
    assert len({tuple(figures.style(i).values()) for i in range(49)}) == 49


@pytest.mark.parametrize("count", [0, 1, 20])
def test_any_number_of_series(count):
    drawing = figures.intervals({f"m{i}": {"g": (i, i - 1, i + 1)} for i in range(count)})
    assert sum(word.startswith("m") for word in words(drawing)) == count


def test_running_mean():
    assert figures.running_mean([0.0, 1.0, 0.5]) == [0.0, 0.5, 0.5]


def test_names_along_an_axis_do_not_run_into_each_other():
    points = {float(i): (1.0, 1.0, 1.0) for i in range(7)}
    short, long = (dict.fromkeys(points, word) for word in ("n", "brightness"))
    flat, slanted = (figures.curves({"a": points}, "y", "x", ticks=ticks) for ticks in (short, long))
    assert "rotate(-30)" in slanted
    assert "rotate(-30)" not in flat


def test_drawings_made_elsewhere_follow_the_text_colour_too():
    drawing = figures.in_style(lambda axes: axes.plot([0, 1], [0, 1], color="#111111", label="target"))
    assert not re.search(r"#(111111|555555|010203|000000)", drawing)
    assert drawing.count("currentColor") > 5
    assert figures.shape(drawing) == pytest.approx(4.6 / 5.3, abs=0.01)
