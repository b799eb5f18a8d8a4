"""The page in a real browser: no errors, visible curves, selectable axes, light and dark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcluster.reports.comparison import Options, compare
from rlcluster.reports.page import page_text
from rlcluster.runs.reader import read_run

from conftest import evaluation_of, write_run

SCREENSHOTS = Path(os.environ.get("RLCLUSTER_SCREENSHOTS", "test-artefacts"))
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,2400"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver here (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, two games, a reference and a broken clip."""
    folder = tmp_path_factory.mktemp("page")
    rewards = [5 + 4 * k / 600 + (k % 5) / 10 for k in range(600)]
    runs = []
    for mode, fps in (("sequential", 900.0), ("parallel", 1700.0)):
        for game in ("coinrun", "starpilot"):
            for seed in (1, 2):
                flags = {"mode": mode, "env.name": game, "env.seed": str(seed)}
                evaluation = evaluation_of(7.0 + seed / 10, 8.0)
                runs.append(write_run(folder / f"{mode}_{game}_{seed}", flags, rewards, fps, evaluation=evaluation))
    (runs[0] / "play.mp4").write_bytes(b"no video")
    comparison = compare([read_run(run) for run in runs], options=Options(with_reference=True))
    file = folder / "comparison.html"
    file.write_text(page_text(comparison, "A comparison"))
    return file


def test_a_profile_of_negative_scores_stays_within_its_chart(browser, tmp_path):
    runs = [
        write_run(tmp_path / f"{mode}_{seed}", {"mode": mode, "env.seed": str(seed)}, [1.0 + seed, 2.0 + seed] * 10)
        for mode in ("sequential", "parallel")
        for seed in (0, 1)
    ]  # below coinrun's 5, which counts as 0
    file = tmp_path / "comparison.html"
    file.write_text(page_text(compare([read_run(run) for run in runs]), "Below"))
    open_page(browser, file, "light")
    box = "document.querySelector('#profile svg').getBBox()"
    assert script(browser, f"{box}.x >= 0 && {box}.width <= 570")


def open_page(browser: Any, page: Path, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []


def script(browser: Any, text: str) -> Any:
    return browser.execute_script(f"return {text}")


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_page_shows_its_curves_in_light_and_dark(browser, page, scheme, is_dark):
    open_page(browser, page, scheme)
    assert browser.title == "A comparison"
    # reward of each game, speed, policy loss, progress: each with a line for each run, and two with OpenAI's
    lines = script(
        browser, "[...document.querySelectorAll('#charts figure')].map(f => f.querySelectorAll('path.line').length)"
    )
    assert lines == [5, 5, 8, 8, 8]
    background = script(browser, "getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in background.strip("rgba()").split(",")[:3]) / 3
    assert (brightness < 128) == is_dark
    assert script(browser, "document.querySelectorAll('.bar').length") == 8
    assert "cannot be shown" in browser.page_source  # the broken clip
    SCREENSHOTS.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(SCREENSHOTS / f"comparison_{scheme}.png"))


def test_the_axis_can_be_changed(browser, page):
    open_page(browser, page, "light")
    titles = "[...document.querySelectorAll('#charts svg')][0].getAttribute('aria-label')"
    assert script(browser, titles).endswith("over environment steps")
    browser.find_element("css selector", "input[value=core_hours]").click()
    assert script(browser, titles).endswith("over core-hours")
    browser.find_element("css selector", "input[value=seconds]").click()
    assert script(browser, titles).endswith("over wall-clock (minutes)")
    assert browser.get_log("browser") == []


def test_a_method_can_be_hidden(browser, page):
    open_page(browser, page, "light")
    count = "document.querySelectorAll('#charts figure:nth-child(3) path.line').length"
    assert script(browser, count) == 8
    browser.find_element("css selector", "#key button").click()
    assert script(browser, count) == 4


def test_the_pointer_shows_the_values_below_it(browser, page):
    from selenium.webdriver import ActionChains

    open_page(browser, page, "light")
    chart = browser.find_element("css selector", "#charts svg")
    ActionChains(browser).move_to_element(chart).perform()
    tip = browser.find_element("css selector", "#charts .tip")
    assert tip.is_displayed()
    assert "sequential_coinrun_1: " in tip.text


def test_the_page_is_not_wider_than_a_narrow_window(browser, page):
    open_page(browser, page, "light")
    browser.set_window_size(500, 900)
    try:
        assert script(browser, "document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        browser.set_window_size(1280, 2400)
