"""The documentation site: it builds without warnings, its links hold, it works offline and on phones."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import session
from installed import environment
from real import ROOT
from site_links import broken, foreign
from tenon.cli.catalogue import read_catalogue

CATALOGUES = ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES"
UNTRANSLATED = re.compile(r'<(?!img)\w+[^>]*class="[^"]*\buntranslated\b[^>]*>.{0,80}')
RESULTS = "[...document.querySelectorAll('#search-results li a')].map(a => a.href).join(' ')"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``scripts/docs`` builds it."""
    for package in ("sphinx", "myst_parser", "furo"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs" / "build.py"), str(made)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_links_anchors_and_images_exist(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 150
    assert not list(broken(site))


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    assert not list(foreign(site))


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="#gone">2</a><a href="b.html">3</a></p>'
    )
    (tmp_path / "c.html").write_text('<img src="https://example.org/x.png"><a href="a.html#here">4</a>')
    assert list(broken(tmp_path)) == ["a.html: #gone", "a.html: b.html"]
    assert list(foreign(tmp_path)) == ["c.html: https://example.org/x.png"]


def test_first_page_leads_to_the_newest_version(site: Path) -> None:
    listed = (site / "versions.js").read_text().partition("= ")[2].rstrip(";\n")
    (version,) = json.loads(listed)
    assert f'href="{version}/en/index.html"' in (site / "index.html").read_text()
    assert (site / version / "zh" / "index.html").exists()


def test_translations_are_shown(site: Path) -> None:
    """Sphinx leaves out a translation that is no paragraph: "1. Build" is a list, and has to be "1\\. Build"."""
    (version,) = (p.name for p in site.iterdir() if p.is_dir())
    for catalogue in sorted(CATALOGUES.rglob("*.po")):
        page = site / version / "zh" / catalogue.relative_to(CATALOGUES).with_suffix(".html")
        if page.exists() and not re.search(r'^msgstr ""\n(?!")|^#, fuzzy', catalogue.read_text(), re.MULTILINE):
            assert not UNTRANSLATED.findall(page.read_text()), page.name


def test_labels_of_the_theme_are_translated(site: Path) -> None:
    """The theme's labels are those of Chinese pages: no label of English pages stands on the same page in Chinese."""
    (version,) = (p.name for p in site.iterdir() if p.is_dir())
    labels = read_catalogue((CATALOGUES / "sphinx.po").read_text(encoding="utf-8"))
    for name in ("howto/quantise.html", "tutorials/stm32.html", "search.html"):
        english, chinese = ((site / version / language / name).read_text(encoding="utf-8") for language in ("en", "zh"))
        shown = {label for label in labels if label and re.search(rf'[>"]\s*{re.escape(label.strip())}\b', english)}
        assert {"Skip to content", "Back to top", "Toggle Light / Dark / Auto color theme", "Search"} <= shown
        assert all(labels[label].strip() in chinese for label in shown), name
        assert not {label for label in shown if re.search(rf'[>"]\s*{re.escape(label.strip())}\s*["<]', chinese)}, name


@pytest.mark.parametrize(("language", "query", "page"), [("en", "budget", "memory"), ("zh", "量化", "quantise")])
def test_search_works_without_a_server(language: str, query: str, page: str, site: Path, tmp_path: Path) -> None:
    (version,) = (p.name for p in site.iterdir() if p.is_dir())
    with session(tmp_path) as window:
        window.open(f"file://{site}/{version}/{language}/search.html?q={query}")
        window.until(f"{RESULTS}.includes('{page}')")


def test_pages_fit_a_phone_and_a_dark_room(site: Path, tmp_path: Path) -> None:
    (version,) = (p.name for p in site.iterdir() if p.is_dir())
    with session(tmp_path) as window:
        window.call("Emulation.setDeviceMetricsOverride", **PHONE)
        window.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        for page in ("index", "tutorials/stm32", "reference/operators", "reference/generated/commands/compile"):
            window.open(f"file://{site}/{version}/en/{page}.html")
            assert window.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], page
            color = window.evaluate("getComputedStyle(document.body).backgroundColor")
            assert sum(map(int, color.strip("rgba()").split(",")[:3])) < 200, color


def test_menu_of_versions_and_languages(site: Path, tmp_path: Path) -> None:
    (version,) = (p.name for p in site.iterdir() if p.is_dir())
    with session(tmp_path) as window:
        window.open(f"file://{site}/{version}/en/tutorials/stm32.html")
        assert window.evaluate("document.querySelector('.site-version').value") == version
        window.evaluate("document.querySelector('.site-language').click()")
        window.until("document.documentElement?.lang.startsWith('zh') && document.title.includes('STM32')")
