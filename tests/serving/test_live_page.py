"""The live page in a browser, over a real server: what it shows of a stream, at two widths, light and dark."""

import contextlib
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from service_client import SIDE, images, listening, png, small_model

import offsupport
from offsupport.serving import Service
from offsupport.serving.web import make_app

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from browser import chromium, missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "none")]
HOSTILE = "<img src=x onerror=document.title='gone'>"


@contextlib.contextmanager
def serving(**options):
    model, clean = small_model(), images(200, 3)
    with torch.no_grad():
        model[-1].bias -= model(clean).mean(0)  # so that it sees all classes
    stats = offsupport.source_stats(model, clean.split(50), "minimal", labels=torch.arange(200) % 4)
    adapted = offsupport.adapt(model, "minimal", monitor=True, collapse="off", source=stats)
    opened = Service(adapted, size=SIDE, names=[HOSTILE, "bee", "cat", "dog"], model="small")
    with opened as service, listening(make_app(service, **options)) as url:
        yield service, url


def until(driver, words, seconds=60):
    """Wait until the page says so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = driver.find_element("tag name", "body").text
        if words in text:
            return text
        time.sleep(0.2)
    raise AssertionError(f"{words!r} is not in: {text}")


def look(driver, width, dark):
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def test_the_page_follows_a_stream_and_shows_hostile_names_as_text(tmp_path):
    with serving() as (service, url), chromium() as driver:
        driver.get(url)
        until(driver, "small · minimal")
        assert "Waiting for the first images" in driver.find_element("id", "verdict").text
        assert [each.text for each in driver.find_elements("css selector", "svg .nothing")] == ["nothing yet"] * 2
        for seed in range(3):
            service.predict(images(40, seed))
            time.sleep(1.2)
        text = until(driver, "120")
        assert "Latest images" in text
        assert len(driver.find_elements("css selector", "#recent li")) == 24
        verdict = driver.find_element("id", "verdict").text
        assert re.match(r"(Adapting (helps|harms|makes no difference)|Unclear whether adapting helps): \w", verdict)
        assert all("\nalone: " in each.text for each in driver.find_elements("css selector", "#recent li"))
        assert driver.find_elements("css selector", "#accuracy .curve.adapted, #accuracy .dot.adapted")
        assert driver.find_elements("css selector", "#shifts .dot.shift")
        assert driver.title == "offsupport: live"
        assert not driver.find_elements("css selector", "#recent img[onerror]")
        for width in (390, 1280):
            for dark in (False, True):
                look(driver, width, dark)
                overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert driver.execute_script(overflow) <= 0
                time.sleep(1.5)  # it draws anew every second, at the width it has
                letters = "return document.querySelector('#shifts text').getBoundingClientRect().height"
                assert driver.execute_script(letters) > 10
                # In one call: elements found first may be drawn anew before they are read.
                ticks = driver.execute_script(
                    "return [...document.querySelectorAll('#shifts text')].slice(0, 5).map(each => each.textContent)"
                )
                assert all(re.fullmatch(r"\d+(\.5)?", tick) for tick in ticks), ticks
                driver.save_screenshot(str(tmp_path / f"live-{width}-{'dark' if dark else 'light'}.png"))
        driver.find_element("id", "freeze").click()
        until(driver, "Thaw")
        assert service.find("default").frozen
        driver.find_element("id", "reset").click()
        until(driver, "reset by hand")
        service.predict(images(3), stream="camera-2")
        until(driver, "camera-2")
        refused = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert not [message for message in refused if "favicon" not in message]


def trouble(driver):
    """Return what the page says went wrong; nothing where it says nothing."""
    box = driver.find_element("id", "trouble")
    return driver.find_element("id", "said").text if box.is_displayed() else ""


def test_what_went_wrong_stays_until_the_person_acts(tmp_path):
    broken, good = tmp_path / "broken.png", tmp_path / "good.png"
    broken.write_bytes(b"no image")
    good.write_bytes(png())
    with serving() as (service, url), chromium() as driver:
        driver.get(url)
        until(driver, "small · minimal")
        files = driver.find_element("id", "files")
        files.send_keys(str(broken))
        until(driver, "cannot be read")
        service.predict(images(40))
        until(driver, "40")  # it looked again, more than once
        time.sleep(2.5)
        assert "cannot be read" in trouble(driver)
        driver.save_screenshot(str(tmp_path / "trouble.png"))
        files.send_keys(str(good))
        until(driver, "41")
        assert trouble(driver) == ""
        files.send_keys(str(broken))
        until(driver, "cannot be read")
        driver.find_element("id", "dismiss").click()
        assert trouble(driver) == ""


def test_a_service_that_is_gone_is_said_and_forgotten_when_it_is_back():
    with serving() as (_, url), chromium() as driver:
        driver.get(url)
        until(driver, "small · minimal")
        driver.execute_script("window.kept = window.fetch; window.fetch = () => Promise.reject(new TypeError('gone'))")
        until(driver, "The service does not answer.")
        assert not driver.find_element("id", "dismiss").is_displayed()
        driver.find_element("id", "reset").click()
        time.sleep(0.5)
        assert driver.find_element("id", "dismiss").is_displayed()
        driver.execute_script("window.fetch = window.kept")
        time.sleep(2.5)
        assert trouble(driver) == "The service does not answer."  # to what the person asked for; it was not done
        driver.find_element("id", "reset").click()
        until(driver, "reset by hand")
        assert trouble(driver) == ""


def test_the_page_asks_for_the_token():
    with serving(token="a token of some length") as (_, url), chromium() as driver:
        driver.get(url)
        until(driver, "asks for a token")
        driver.find_element("id", "token").send_keys("a token of some length")
        driver.find_element("css selector", "#ask button").click()
        until(driver, "small · minimal")
        assert not driver.find_element("id", "ask").is_displayed()
