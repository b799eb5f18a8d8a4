"""A real browser for the tests of our pages.

A page handles events in its own time: `toggle`, `resize` and pointer events arrive after the call that caused them
returned. So a test reads what an event changes by `expect`, which waits for it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(os.environ.get("RLCLUSTER_SCREENSHOTS", "test-artefacts"))
DEADLINE_SECONDS = 60.0
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,2400"),
)


@contextmanager
def open_browser(profile: Path) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver here (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


def open_page(browser: Any, page: Path, scheme: str = "light") -> None:
    """Loads the page; its scripts have run and reported no error."""
    emulate(browser, scheme)
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []


def emulate(browser: Any, scheme: str, media: str = "") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    expect(browser, f"matchMedia('(prefers-color-scheme: {scheme})').matches", True)
    expect(browser, f"matchMedia('{media or 'screen'}').matches", True)


def script(browser: Any, text: str) -> Any:
    """The value of a JavaScript expression, now."""
    return browser.execute_script(f"return {text}")


def expect(browser: Any, text: str, value: Any) -> None:
    """Waits until a JavaScript expression has this value."""
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.wait import WebDriverWait

    try:
        WebDriverWait(browser, DEADLINE_SECONDS, poll_frequency=0.05).until(lambda _: script(browser, text) == value)
    except TimeoutException:
        assert script(browser, text) == value


@contextmanager
def window_of(browser: Any, width: int, height: int = 900) -> Iterator[None]:
    """A window of this inner size, narrower than a real one can be."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        expect(browser, "window.innerWidth", width)
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def background_brightness(browser: Any) -> float:
    background = script(browser, "getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in background.strip("rgba()").split(",")[:3]) / 3
