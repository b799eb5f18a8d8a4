"""The page in a real browser: no errors, visible curves, selectable axes, light and dark."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from colorsys import rgb_to_hls
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from rlcluster.reports.comparison import Options, compare
from rlcluster.reports.drawing import COLORS
from rlcluster.reports.page import page_text
from rlcluster.runs.reader import read_run

from chromium import SCREENSHOTS, background_brightness, emulate, expect, open_page, script, window_of
from conftest import evaluation_of, publish_runs, write_run

A4_PIXELS, LANDSCAPE_PIXELS = 688, 1016  # 210 and 297 mm without margins of 14 mm, at 96 pixels per inch
TIP = "document.querySelector('#charts .tip')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, two games, a broken clip, OpenAI's curves and, for one game, a published one of ours."""
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
    publish_runs(folder / "published", "ppo_fast", {("coinrun", 1): 8.0})
    file = folder / "comparison.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlcluster.reports.published.published_folder", lambda: folder / "published")
        comparison = compare([read_run(run) for run in runs], options=Options(with_reference=True))
        file.write_text(page_text(comparison, "A comparison"))
    return file


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One game: five runs of a method, enough for an interval, three of another, and one of a third."""
    folder = tmp_path_factory.mktemp("few")
    rewards = [5 + 4 * k / 600 + (k % 5) / 10 for k in range(600)]
    runs = []
    for algorithm, mode, num_runs in (("ppo", "sequential", 5), ("ppo", "parallel", 3), ("a2c", "parallel", 1)):
        for seed in range(1, num_runs + 1):
            flags = {"algorithm": algorithm, "mode": mode, "env.seed": str(seed)}
            own = [reward + seed / 4 for reward in rewards]
            evaluation = evaluation_of(7.0 + seed / 10, 8.0)
            runs.append(write_run(folder / f"{algorithm}_{mode}_{seed}", flags, own, 900.0, evaluation=evaluation))
    file = folder / "comparison.html"
    file.write_text(page_text(compare([read_run(run) for run in runs]), "A few"))
    return file


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each of two methods: the results are of runs, with longer names than methods have."""
    folder = tmp_path_factory.mktemp("pair")
    runs = [
        write_run(folder / f"ppo_{mode}_coinrun_seed1", {"mode": mode}, 20 * [6.5], evaluation=evaluation_of(7.1, 8.2))
        for mode in ("sequential", "parallel")
    ]
    file = folder / "comparison.html"
    file.write_text(page_text(compare([read_run(run) for run in runs]), "A pair"))
    return file


def test_a_profile_of_negative_scores_stays_within_its_chart(browser, tmp_path):
    runs = [
        write_run(tmp_path / f"{mode}_{seed}", {"mode": mode, "env.seed": str(seed)}, [seed / 2, 1 + seed / 2] * 10)
        for mode in ("sequential", "parallel")
        for seed in range(5)
    ]  # below coinrun's 5, which counts as 0
    file = tmp_path / "comparison.html"
    file.write_text(page_text(compare([read_run(run) for run in runs]), "Below"))
    open_page(browser, file)
    box = "document.querySelector('#profile svg').getBBox()"
    assert script(browser, f"{box}.x >= 0 && {box}.width <= document.querySelector('#profile svg').clientWidth")
    sizes = "[...document.querySelectorAll('svg text')].map(text => getComputedStyle(text).fontSize)"
    assert set(script(browser, sizes)) == {"12px"}  # of the profile as of every other chart
    assert script(browser, "document.querySelectorAll('#scores .key button').length") == 2  # its own legend


Colour = tuple[float, float, float]  # red, green and blue from 0 to 1


def colour_of(text: str) -> Colour:
    red, green, blue = (int(text[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    """By WCAG 2.1: the ratio of relative luminances, each raised by 0.05."""

    def luminance(colour: Colour) -> float:
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_have_the_hues_of_the_figures_and_enough_contrast(browser, few, scheme):
    open_page(browser, few, scheme)
    variable = "getComputedStyle(document.body).getPropertyValue"
    panel, *lines = (
        colour_of(script(browser, f"{variable}('--{name}')")) for name in ("panel", *(f"c{k}" for k in range(7)))
    )
    assert min(contrast(line, panel) for line in lines) >= 3
    for line, of_the_figure in zip(lines, map(colour_of, COLORS), strict=True):
        assert abs(rgb_to_hls(*line)[0] - rgb_to_hls(*of_the_figure)[0]) < 5 / 360


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_page_shows_its_curves_in_light_and_dark(browser, page, scheme, is_dark):
    open_page(browser, page, scheme)
    assert browser.title == "A comparison"
    # reward of each game by steps (with OpenAI's, one with ours) and by wall-clock, speed, timesteps: a line per method
    count = "[...document.querySelectorAll('#charts figure')].map(f => f.querySelectorAll('path.line').length)"
    assert script(browser, count) == [4, 2, 3, 2, 2, 2]
    assert script(browser, "document.querySelectorAll('#charts figure:nth-child(1) path.band').length") == 2
    keys = script(browser, "[...document.querySelectorAll('#key > span')].map(entry => entry.textContent.trim())")
    assert [key.split(" (")[0] for key in keys] == ["OpenAI's PPO", "ours: ppo_fast, 1 seed"]
    browser.find_element("css selector", "input[value=runs]").click()
    expect(browser, count, [6, 4, 5, 4, 8, 8])  # of each run
    browser.find_element("css selector", "input[value=methods]").click()
    expect(browser, count, [4, 2, 3, 2, 2, 2])
    assert (background_brightness(browser) < 128) == is_dark
    assert script(browser, "document.querySelectorAll('.bar').length") == 2
    assert "cannot be shown" in browser.page_source  # the broken clip
    SCREENSHOTS.mkdir(exist_ok=True)
    assert browser.save_screenshot(str(SCREENSHOTS / f"comparison_{scheme}.png"))


def test_the_axis_can_be_changed(browser, page):
    open_page(browser, page)
    title = "document.querySelector('#charts svg').getAttribute('aria-label')"
    assert "over environment steps." in script(browser, title)
    browser.find_element("css selector", "input[value=core_hours]").click()
    expect(browser, f"{title}.includes('over core-hours.')", True)
    browser.find_element("css selector", "input[value=seconds]").click()
    expect(browser, f"{title}.includes('over wall-clock (minutes).')", True)
    assert browser.get_log("browser") == []


KEPT = r"text => text.replace(/[^[\](),to]/g, '')"  # brackets and what separates two bounds
TITLES = "[...document.querySelectorAll('#charts h4')].map(heading => heading.textContent)"


def titles_of(axis: str, games: Sequence[str]) -> list[str]:
    """Rewards by the chosen axis and, where that is another one, by wall-clock; speed and timesteps."""
    both = dict.fromkeys((axis, "wall-clock"))
    rewards = [f"Episode reward by {by}{game}" for game in games for by in both]
    return [*rewards, "Speed", "Timesteps against wall-clock"]


@pytest.mark.parametrize("games", [("",), (": coinrun", ": starpilot")], ids=["one game", "two games"])
def test_each_axis_has_its_charts_and_no_others(browser, page, few, games):
    open_page(browser, page if len(games) == 2 else few)
    axes = {"steps": "environment steps", "seconds": "wall-clock", "core_hours": "core-hours"}
    for name in ("seconds", "core_hours", "seconds", "steps"):
        browser.find_element("css selector", f"input[value={name}]").click()
        expect(browser, TITLES, titles_of(axes[name], games))


def test_a_method_can_be_hidden(browser, page):
    open_page(browser, page)
    count = "document.querySelectorAll('#charts figure:nth-child(2) path.line').length"
    assert script(browser, count) == 2
    browser.find_element("css selector", "#key button").click()
    expect(browser, count, 1)


def test_the_pointer_shows_the_values_below_it(browser, page):
    from selenium.webdriver import ActionChains

    open_page(browser, page)
    chart = browser.find_element("css selector", "#charts svg")
    ActionChains(browser).move_to_element(chart).perform()
    expect(browser, f"{TIP}.hidden", False)
    assert "PPO_Sequential: " in script(browser, f"{TIP}.innerText")


def test_the_arrow_keys_read_a_curve(browser, page):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, page)
    chart = browser.find_element("css selector", "#charts svg")
    chart.send_keys(Keys.END)
    chart.send_keys(Keys.ARROW_LEFT)
    before_end = f"{TIP}.innerText.includes('environment steps: 588 k')"  # two hundredths before the end at 600 k
    expect(browser, before_end, True)
    assert "PPO_Parallel: " in script(browser, f"{TIP}.innerText")
    chart.send_keys(Keys.ESCAPE)
    expect(browser, f"{TIP}.hidden", True)


def test_every_chart_has_its_data_as_a_table(browser, page):
    open_page(browser, page)
    browser.find_element("css selector", "#charts figure details summary").click()
    headings = "[...document.querySelectorAll('#charts figure:nth-child(1) th[scope=col]')].map(th => th.textContent)"
    methods = ["PPO_Sequential", "PPO_Parallel", "ours: ppo_fast, 1 seed", "OpenAI's PPO"]
    expect(browser, headings, ["environment steps", *methods])  # the table is made when it is opened
    assert script(browser, "document.querySelectorAll('#charts figure:nth-child(1) tbody tr').length") > 10
    assert script(browser, "document.querySelectorAll('figure svg').length") == script(
        browser, "document.querySelectorAll('figure details').length"
    )


def test_intervals_are_in_brackets_and_ranges_in_parentheses(browser, few):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, few)
    browser.find_element("css selector", "#charts svg").send_keys(Keys.END)
    brackets = ["[,]", "(to)", "[,]"]  # of five runs, of three, and of one, over its episodes
    lines = f"{TIP}.innerText.trim().split('\\n').slice(1).map(line => line.split(': ')[1])"
    expect(browser, f"{lines}.map({KEPT})", brackets)
    browser.find_element("css selector", "#charts figure details summary").click()
    second_row = "[...document.querySelectorAll('#charts figure:nth-child(1) tbody tr:nth-child(2) td')]"
    expect(browser, f"{second_row}.map(cell => cell.textContent).map({KEPT})", brackets)


def test_single_runs_of_repeated_methods_have_no_bands(browser, few):
    open_page(browser, few)
    bands, note = (
        "document.querySelectorAll('#charts path.band').length",
        "document.getElementById('band-note').textContent",
    )
    assert script(browser, bands) > 0
    assert script(browser, note).startswith("Bands: ")
    browser.find_element("css selector", "input[value=runs]").click()
    expect(browser, bands, 0)
    expect(browser, f"{note}.startsWith('Single runs are drawn without bands.')", True)


def test_words_are_aligned_to_the_left_and_numbers_to_the_right(browser, page):
    open_page(browser, page)
    by_game = "[...document.querySelectorAll('#results > h3 + .wide tr:last-child > *')]"
    alignments = "map(cell => getComputedStyle(cell).textAlign)"
    assert script(browser, f"{by_game}.{alignments}")[:4] == [
        "left",
        "left",
        "right",
        "right",
    ]  # game, method, runs, reward
    settings = "[...document.querySelectorAll('#settings tbody tr:first-child > *')]"
    assert set(script(browser, f"{settings}.{alignments}")) == {"left"}  # columns of words and numbers


def test_the_results_fit_a_window_of_1280_pixels(browser, page):
    open_page(browser, page)
    box = "document.querySelector('#results .wide')"
    assert script(browser, f"{box}.scrollWidth <= {box}.clientWidth")


def test_a_printed_page_is_light_and_has_all_tables(browser, page):
    open_page(browser, page, "dark")
    emulate(browser, "dark", media="print")
    assert script(browser, "getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert script(browser, "getComputedStyle(document.querySelector('fieldset')).display") == "none"
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    expect(browser, "document.querySelectorAll('#results details[open] table').length", 2)


BROKEN_WORDS = """(selector => {
  const broken = [];
  for (const cell of document.querySelectorAll(selector)) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[^\\s\\/-]+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})"""


@pytest.mark.parametrize(
    ("width", "tables"),
    [(A4_PIXELS, "main > section > .wide table"), (LANDSCAPE_PIXELS, "#results > details table")],
    ids=["upright", "landscape"],
)
@pytest.mark.parametrize("name", ["page", "few", "pair"])
def test_a_printed_table_fits_its_page_and_breaks_no_words(browser, request, name, width, tables):
    """The browser would shrink all that it prints for one table that is too wide."""
    open_page(browser, request.getfixturevalue(name))
    with window_of(browser, width):
        emulate(browser, "light", media="print")
        browser.execute_script("dispatchEvent(new Event('beforeprint'))")
        expect(browser, "document.querySelectorAll('#results details:not([open])').length", 0)
        widths = f"[...document.querySelectorAll('{tables}')].map(table => table.scrollWidth)"
        assert 0 < max(script(browser, widths)) <= width
        assert script(browser, f"{BROKEN_WORDS}('{tables} :is(th, td)')") == []
        sides = f"[...document.querySelectorAll('{tables} td')].map(cell => getComputedStyle(cell).paddingLeft)"
        assert set(script(browser, f"{sides}.map(parseFloat).map(Math.round)")) == {5}  # columns are told apart


def printed(browser: Any) -> bytes:
    options = {"preferCSSPageSize": True, "printBackground": False}
    return base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", options)["data"])


def test_wide_tables_are_printed_on_pages_of_their_own_in_landscape(browser, few):
    open_page(browser, few)
    sizes = re.findall(rb"/MediaBox \[0 0 (\d+)[.\d]* (\d+)", printed(browser))
    turned = [int(width) > int(height) for width, height in sizes]
    assert turned[0] is turned[-1] is False
    assert turned.count(True) == 1  # both tables of runs


def test_a_wide_table_of_results_is_printed_on_the_page_of_its_title_and_note(browser, tmp_path):
    """Ten columns: the methods have unlike numbers of cores."""
    runs = []
    for mode, num_cores in (("sequential", 1), ("parallel", 2)):
        for seed in (1, 2):
            flags = {"mode": mode, "env.seed": str(seed)}
            run = write_run(tmp_path / f"{mode}_{seed}", flags, 600 * [6.5], evaluation=evaluation_of(7.1, 8.2))
            summary = json.loads((run / "benchmark_metrics.json").read_text())
            (run / "benchmark_metrics.json").write_text(json.dumps(summary | {"num_cores": num_cores}))
            runs.append(run)
    file = tmp_path / "comparison.html"
    file.write_text(page_text(compare([read_run(run) for run in runs]), "Unlike cores"))
    open_page(browser, file)
    assert script(browser, "document.querySelectorAll('#results > .many').length") == 1
    sizes = re.findall(rb"/MediaBox \[0 0 (\d+)[.\d]* (\d+)", printed(browser))
    turned = [int(width) > int(height) for width, height in sizes]
    assert [is_turned for is_turned, _ in groupby(turned)] == [False, True, False]  # all results between the others


def test_printed_charts_are_drawn_for_half_a_page_and_their_tables_have_titles(browser, few):
    open_page(browser, few)
    emulate(browser, "light", media="print")
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    viewed = "document.querySelector('#charts svg').getAttribute('viewBox')"
    expect(browser, f"{viewed}.split(' ')[2]", "310")  # its text is not scaled
    titles = "[...document.querySelectorAll('#results summary')].filter(title => title.offsetHeight)"
    assert script(browser, f"{titles}.map(title => title.innerText)") == ["Single runs", "All details of the runs"]
    before_others = "[...document.querySelectorAll('h2, h3, .key, .controls, #phases > p, #results summary')]"
    assert set(script(browser, f"{before_others}.map(one => getComputedStyle(one).breakAfter)")) == {"avoid"}
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    expect(browser, f"{viewed}.split(' ')[2] !== '310'", True)


def test_the_page_is_not_wider_than_a_narrow_window(browser, page):
    open_page(browser, page)
    with window_of(browser, 400):
        expect(browser, "document.documentElement.scrollWidth <= window.innerWidth", True)  # after it was drawn again


def test_a_shadow_shows_that_a_table_continues_to_the_right(browser, few):
    open_page(browser, few)
    with window_of(browser, 400):
        table = browser.find_element("css selector", "#results > .wide")
        assert script(browser, "document.querySelector('#results > .wide').scrollWidth > 600")
        image = imread(io.BytesIO(table.screenshot_as_png))  # [height, width, colours], from 0 to 1
        middle = slice(image.shape[0] // 3, 2 * image.shape[0] // 3)
        assert np.median(image[middle, -1, :3]) < 0.9  # the paper is 1.0
