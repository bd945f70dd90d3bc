"""The site of the docs as it is built: nothing raw, nothing fetched; in a browser nothing is cut off, search works."""

import html
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "report"))
from browser import chromium, missing, show

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "present")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def driver():
    with chromium() as found:
        yield found


def prose(page):
    text = re.sub(
        r"<(script|style|pre|code|math|head)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def test_nothing_is_left_raw(site):
    raw = re.compile(r"`|\$(?!OFFSUPPORT_)\S|\S\$|:(?:func|class|meth|mod|data|attr|exc):|>>>|\]\(|\*\*")
    found = {page.name: raw.findall(prose(page))[:3] for page in sorted(site.glob("*.html"))}
    assert {name: signs for name, signs in found.items() if signs} == {}


def test_the_reference_names_what_users_import_and_renders_examples(site):
    page = (site / "reference.html").read_text(encoding="utf-8")
    assert ">offsupport.adapt</span>" in page
    assert ">offsupport.engine.registry.adapt</span>" not in page
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "<blockquote>" not in page


def test_no_page_loads_anything_from_elsewhere(site):
    for page in site.glob("*.html"):
        found = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert found == [], page.name


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_search_works_from_disk(driver, site, width):
    show(driver, site / "index.html", width)
    time.sleep(1)
    if width < 600:
        driver.find_element("css selector", "label[for=__search]").click()
        time.sleep(0.5)
    box = driver.find_element("css selector", ".md-search__input")
    box.click()
    box.send_keys("freeze")
    end = time.monotonic() + 120
    while not (found := driver.find_elements("css selector", ".md-search-result__item")) and time.monotonic() < end:
        time.sleep(0.3)
    assert len(found) > 2
    assert driver.get_log("browser") == []


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off(driver, site, width):
    for page in sorted(site.glob("*.html")):
        show(driver, page, width)
        time.sleep(0.3)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, page.name
        cut = driver.execute_script(
            "return [...document.querySelectorAll('.language-python code, .language-console code')]"
            ".filter((e) => e.scrollWidth > e.clientWidth + 2).map((e) => e.textContent.slice(0, 60))"
        )
        assert cut == [], page.name
        bare = driver.execute_script(
            "return [...document.querySelectorAll('.md-typeset__scrollwrap')]"
            ".filter((e) => e.scrollWidth > e.clientWidth + 2 && !(e.classList.contains('wide')"
            " && e.previousElementSibling.classList.contains('cue')"
            " && getComputedStyle(e.querySelector('td')).position === 'sticky')).length"
        )
        assert bare == 0, page.name


@needs_browser
def test_it_follows_the_system_also_after_that_changed(driver, site):
    seen = []
    for dark in (False, True, False):
        show(driver, site / "index.html", dark=dark)
        time.sleep(0.5)
        seen.append(driver.execute_script("return document.body.getAttribute('data-md-color-scheme')"))
    assert seen == ["default", "slate", "default"]
