"""The page of a profile in a real browser: no errors, nothing loaded, light, dark and narrow."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_findings import findings, process

from rlcluster.networks.operations import layer_works
from rlcluster.profiling.page import page_text
from rlcluster.settings.schema import PolicySettings

from chromium import SCREENSHOTS, background_brightness, expect, open_page, script, window_of


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks on two hosts, one late, with layers, linear ones too, memory and a name that must be escaped."""
    from rlcluster.environments.procgen import SPEC

    layers = {"forward": [0.5 + 0.1 * k for k in range(15)], "backward": [1.0] * 15}
    shares = {"convolutions": 50.0, "sync": 40.0, "simulator": 2.0}
    ranks = [
        process(0, shares, syncs=[[50.0, 90.0]], layers=layers),
        process(1, {**shares, "sync": 1.0}, syncs=[[89.0, 90.0]], layers=layers, host="<b>n2"),
    ]
    for number, one in enumerate(ranks):
        one["memory"] = [[10.0 * k, (0.5 + 0.3 * number) * (1 + 0.05 * k), 0.2] for k in range(10)]
        one["seconds"][one["paths"].index(["update", "forward", "linear"])] = 0.005
        one["amounts"][one["paths"].index(["update", "convolutions"])] = 3000.0
        one["paths"].append(["update", "backward"])
        one["paths"].append(["update", "backward", "convolutions"])
        one["seconds"] += [5.0, 5.0]
        one["counts"] += [1, 1]
        one["amounts"] += [0.0, 3000.0]
    found = findings(ranks, works=tuple(layer_works(PolicySettings(network="impala"), SPEC)))
    file = tmp_path_factory.mktemp("page") / "profile.html"
    file.write_text(page_text(found))
    return file


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_page_shows_sentence_tree_roofline_and_memory_in_light_and_dark(browser, page, scheme, is_dark):
    open_page(browser, page, scheme)
    assert browser.find_element("css selector", ".verdict").text.startswith(
        "20% of the time is waiting for rank 1 (<b>"
    )
    headings = [heading.text for heading in browser.find_elements("css selector", "h2")]
    assert headings == [
        *("Who works", "Ranks and hosts: computing and waiting", "Who waited for whom", "Phases", "Roofline", "Memory"),
        "Definitions",
    ]
    assert len(browser.find_elements("css selector", "circle.dot")) == 31
    lines = [key.text.strip() for key in browser.find_elements("css selector", ".legend > span")]
    assert lines == ["rank 0", "rank 1", "all processes", "/dev/shm of rank 0's host"]
    assert len(browser.find_elements("css selector", "polyline.line")) == len(lines)
    boxes = "[...document.querySelectorAll('svg')].map(s => s.getBBox()).every(b => b.x >= 0 && b.y >= 0)"
    assert script(browser, boxes)
    assert (background_brightness(browser) < 128) == is_dark
    SCREENSHOTS.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(SCREENSHOTS / f"profile_{scheme}.png"))


def test_the_page_is_not_wider_than_a_narrow_window(browser, page):
    open_page(browser, page)
    with window_of(browser, 400):
        expect(browser, "document.documentElement.scrollWidth <= window.innerWidth", True)
