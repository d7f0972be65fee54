"""The docs as a site: built strictly, made from the code where they can be, and without a request to anybody."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.cli.main import VERBS

pytest.importorskip("mkdocs", reason="mkdocs is not installed: the extra docs has it")

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
ENV = {**os.environ, "PYTHONPATH": str(Path(hangscope.__file__).parents[1]), "NO_MKDOCS_2_WARNING": "1"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site. A link that leads nowhere, or to no heading, ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_what_is_made_from_the_code(site: Path) -> None:
    """The reference has every verb and every field, the gallery every kind, the demo is a real page of an incident."""
    reference = (site / "reference-cli.html").read_text()
    assert all(f"hangscope {verb}" in reference for verb in VERBS)
    fields = (site / "reference-json.html").read_text()
    assert all(f"<code>{name}</code>" in fields for name in ("outcome", "culprits", "facts"))
    gallery = re.sub("<[^>]*>", "", (site / "gallery.html").read_text())
    for word in ("absent", "dead", "frozen", "GPU", "mismatch", "deadlock", "link", "SLOW"):
        assert word in gallery
    assert {"HANG", "CRASH", "SLOW", "OK"} <= set(re.findall(r"^[A-Z]+(?= )", gallery, re.MULTILINE))
    assert "rank 6" in (site / "demo" / "incident.html").read_text()
    assert 'href="run.html"' in (site / "index.html").read_text()


def test_the_site_names_nobody_elses_server_to_load_from(site: Path) -> None:
    """No script, style, font, picture or frame comes from another place; links that people follow may lead anywhere."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//", text), page
        assert not re.findall(r"<link(?![^>]*canonical)[^>]*href=\"?(?:https?:)?//", text), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?https?:|@import\s+[\"']?http", style.read_text(encoding="utf-8")), style


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make test-deps` installs it where it can")
def test_an_open_page_asks_nobody_for_anything(site: Path) -> None:
    """The front page and the demo, opened in Chromium from files, load nothing but files."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page: Any = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "demo-page.html"):
            page.goto((site / name).as_uri())
            page.wait_for_load_state("load")
        browser.close()
    assert len(asked) > 4
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_man_pages_come_from_the_same_source(tmp_path: Path) -> None:
    """Every verb has a man page with its options, which `man` shows without a warning."""
    command = [sys.executable, str(ROOT / "release" / "man_pages.py"), "--out", str(tmp_path)]
    subprocess.run(command, env=ENV, check=True, capture_output=True, timeout=60)
    assert {path.stem for path in tmp_path.iterdir()} == {"hangscope", *(f"hangscope-{verb}" for verb in VERBS)}
    assert r"\-\-json" in (tmp_path / "hangscope-diagnose.1").read_text()
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff here to look at the pages")
    for page in sorted(tmp_path.iterdir()):
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww", "-z", str(page)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), page.name
