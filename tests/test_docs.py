"""The documentation site: its pages, its references, and that a broken link fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlcluster
from rlcluster.settings.schema import setting_fields

from chromium import expect, open_page, script

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import docs  # noqa: E402 - scripts/docs.py


def test_links_lead_to_pages_next_to_each_other_and_lists_stand_alone() -> None:
    text = "See [a](docs/a.md#b), [c](../ARCHITECTURE.md), [d](README.md):\n- one\n- two\n```\nx\n- y\n```\n"
    assert docs.adjusted(text) == (
        "See [a](a.md#b), [c](ARCHITECTURE.md), [d](index.md):\n\n- one\n- two\n```\nx\n- y\n```\n"
    )


def test_the_reference_has_every_setting_with_its_flag_and_every_public_name() -> None:
    settings, api = docs.settings_reference(), docs.api_reference()
    for field in setting_fields():
        assert f"| `{field.name}` | `{docs.flag_names(field)[0]}`" in settings, field.key
    for name in set(rlcluster.__all__) - {"__version__"}:
        assert f".{name}\n" in api, name


def test_every_document_is_a_page_of_the_site() -> None:
    """The tag is that of a Python function, which only mkdocs may call."""
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), loader)["nav"]
    listed = str(nav)
    for page in [file.name for file in ROOT.glob("docs/*.md")] + list(docs.TOP.values()):
        assert f"'{page}'" in listed, page


def build(folder: Path, kernels: str) -> subprocess.CompletedProcess[str]:
    """The site in `folder`/build/site, with another text on the page of the kernels."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'rl-cluster-benchmark[docs]'")
    docs.gather(folder / "build" / "pages")
    (folder / "build" / "pages" / "kernels.md").write_text(kernels)
    config = (ROOT / "mkdocs.yml").read_text().replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    (folder / "mkdocs.yml").write_text(config)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["nowhere.md", "guide.md#nowhere"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    assert build(tmp_path, f"# Kernels\n[a link]({link})\n").returncode != 0


@pytest.mark.slow
def test_the_site_is_searched_from_its_files_and_loads_nothing_from_elsewhere(tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By

    result = build(tmp_path, "# Kernels\n[a link](guide.md). The word quokkaberry stands here alone.\n")
    assert result.returncode == 0, result.stderr
    open_page(browser, tmp_path / "build" / "site" / "guide.html")
    query = browser.find_element(By.CSS_SELECTOR, "[data-md-component=search-query]")
    browser.execute_script("arguments[0].focus()", query)
    query.send_keys("quokkaberry")
    page = "document.querySelector('.md-search-result__link')?.pathname.split('/').pop()"
    expect(browser, page, "kernels.html")
    loaded = script(browser, "performance.getEntriesByType('resource').map(one => one.name)")
    assert [name for name in loaded if not name.startswith("file:")] == []
    assert browser.get_log("browser") == []
