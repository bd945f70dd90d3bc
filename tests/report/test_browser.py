"""The page in a real browser: it sorts, tells where numbers come from, fits a phone, can be read in the dark."""

import json

import pytest
from browser import chromium, missing, show
from run_maker import make_run

from offsupport.bench.runs import Status
from offsupport.report import page as page_module
from offsupport.report.run_page import run_page, write_report
from offsupport.results.rows import Listing, Measured

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "present")]
EVIL = "<img src=x onerror=document.title='broken'>"
CONTRAST = """
const light = (colour) => {
  const v = colour.map((x) => x / 255).map((x) => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
  return .2126 * v[0] + .7152 * v[1] + .0722 * v[2];
};
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgb = (colour) => {
  paint.clearRect(0, 0, 1, 1);
  paint.fillStyle = colour;
  paint.fillRect(0, 0, 1, 1);
  return [...paint.getImageData(0, 0, 1, 1).data];
};
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const colour = rgb(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
const shown = [...document.querySelectorAll("body *")];
return shown.filter((e) => own(e) && e.checkVisibility() && !e.closest("svg, script")).map((e) => {
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  return [(a + .05) / (b + .05), e.className + ": " + e.textContent.slice(0, 30)];
});
"""
"""Contrast (WCAG) of every element with words of its own against what is behind it."""


@pytest.fixture(scope="module")
def driver():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    request = {"verb": "reproduce", "table": "table2", "scale": "smoke"}
    request["options"] = {"runs": None, "seeds": None, "methods": ["source", "bn", "tesla+sc"]}
    from offsupport.data import STANDARD

    methods = request["options"]["methods"]
    folder = tmp_path_factory.mktemp("run")
    return write_report(make_run(folder, request=request, method=methods, corruption=STANDARD))[0]


def column(driver, at):
    """The words in one column of the first table of results, row by row."""
    table = driver.find_element("css selector", "#part-2 table")
    return [cell.text for cell in table.find_elements("css selector", f"tbody td:nth-child({at})")]


def test_a_click_sorts_and_another_one_turns_it_round(driver, page):
    show(driver, page)
    heading = driver.find_elements("css selector", "#part-2 table")[0].find_elements("css selector", "th .sort")[1]
    assert heading.text == "measured"
    heading.click()
    up = [float(word) for word in column(driver, 2)]
    assert up == sorted(up)
    assert len(set(up)) == 3
    heading.click()
    assert [float(word) for word in column(driver, 2)] == up[::-1]
    assert heading.find_element("xpath", "..").get_attribute("aria-sort") == "descending"


def test_the_keyboard_opens_the_drawer_and_closes_it(driver, page):
    show(driver, page)
    number = driver.find_element("css selector", "#part-2 .number")
    driver.execute_script("arguments[0].focus()", number)
    number.send_keys("\ue007")
    drawer = driver.find_element("css selector", "#drawer")
    assert drawer.get_attribute("open")
    for words in ("source, digits-c/avg", "The 15 cells behind it", "weights_sha256", "offsupport reproduce table2"):
        assert words in drawer.text
    listed = drawer.find_elements("css selector", "details")
    assert len(listed) == 15
    listed[0].find_element("css selector", "summary").click()
    assert "cells/" in listed[0].text
    driver.switch_to.active_element.send_keys("\ue00c")
    assert not drawer.get_attribute("open")
    assert driver.switch_to.active_element == number


def test_claims_open_the_cells_of_both_methods(driver, page):
    show(driver, page)
    driver.find_element("css selector", "#part-1 .number").click()
    assert "The 30 cells behind it" in driver.find_element("css selector", "#drawer").text


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_and_can_be_read(driver, page, width, dark):
    show(driver, page, width, dark=dark)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    driver.execute_script("document.querySelector('#part-2 .number').click()")
    assert driver.execute_script("return document.querySelector('dialog').scrollWidth") <= width
    found = driver.execute_script(CONTRAST)
    assert len(found) > 100
    assert [words for ratio, words in found if ratio < 4.5] == []
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_wide_table_says_so_and_keeps_its_first_column(driver, page, width):
    show(driver, page, width)
    wide = driver.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 2).map((e) => ["
        "e.previousElementSibling.className, getComputedStyle(e.querySelector('td')).position, (e.scrollLeft = 9999,"
        " Math.round(e.querySelector('td').getBoundingClientRect().left - e.getBoundingClientRect().left))])"
    )
    assert wide
    assert all(found == ["cue", "sticky", 1] for found in wide), wide


@pytest.fixture(scope="module")
def leaderboard(tmp_path_factory):
    lines = [
        ("fog", "tent", 3.5, "any"),
        ("fog", EVIL, 0.5, "none"),
        ("snow", "tent", 12.0, "any"),
        ("snow", "bn", None, ""),
    ]
    listing = Listing("board", ("stream", "method", "ms", "norm"), lines, filters=("stream", "ms", "norm"))
    path = tmp_path_factory.mktemp("board") / "report.html"
    page_module.write(run_page("Board", "", Measured(rows=(), listings=[listing]), Status()), path)
    return path


def shown(driver):
    rows = driver.find_elements("css selector", "tbody tr")
    return [row.find_elements("css selector", "td")[1].text for row in rows if row.is_displayed()]


def test_filters_leave_lines_out_by_word_and_by_number(driver, leaderboard):
    show(driver, leaderboard)
    by_stream, by_time, by_norm = driver.find_elements("css selector", ".filters select")

    def choices(select):
        return [option.text for option in select.find_elements("css selector", "option")]

    def choose(select, words):
        next(each for each in select.find_elements("css selector", "option") if each.text == words).click()

    assert (choices(by_stream), choices(by_norm)) == (["all", "fog", "snow"], ["all", "any", "none"])
    assert choices(by_time) == ["all", "at most 1", "at most 2", "at most 5", "at most 10"]
    assert shown(driver) == ["tent", EVIL, "tent", "bn"]
    choose(by_stream, "fog")
    assert shown(driver) == ["tent", EVIL]
    choose(by_time, "at most 2")
    assert shown(driver) == [EVIL]
    assert driver.find_element("css selector", ".filters output").text == "1 of 4"
    choose(by_stream, "all")
    choose(by_time, "at most 10")
    assert shown(driver) == ["tent", EVIL]  # what has no number is not below one
    driver.find_elements("css selector", "th .sort")[2].click()
    assert shown(driver) == [EVIL, "tent"]
    choose(by_time, "all")
    choose(by_norm, "any")
    assert shown(driver) == ["tent", "tent"]
    assert driver.get_log("browser") == []


def test_hostile_names_do_nothing(driver, tmp_path):
    folder = make_run(tmp_path, method=["source", EVIL], corruption=["fog", "'\"></script><b>"])
    show(driver, write_report(folder)[0])
    for number in driver.find_elements("css selector", ".number")[:4]:
        driver.execute_script("arguments[0].click()", number)
        driver.execute_script("document.getElementById('drawer').close()")
    assert driver.title.startswith("Benchmark")
    assert not driver.find_elements("css selector", "img, main b")
    assert driver.get_log("browser") == []
    data = driver.execute_script("return document.getElementById('data').textContent")
    assert EVIL in {row["method"] for row in json.loads(data)["rows"]}
