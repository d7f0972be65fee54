"""The docs as a site: built strictly, made from the code where they can be, and without a request to anybody."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.cli.main import VERBS

for package in ("mkdocs", "mike"):
    pytest.importorskip(package, reason=f"{package} is not installed: the extra docs has it")

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
ENV = {**os.environ, "PYTHONPATH": str(Path(hangscope.__file__).parents[1]), "NO_MKDOCS_2_WARNING": "1"}


OLDER = "site_name: hangscope\ntheme: {name: material, font: false}\nextra: {version: {provider: mike}}\nplugins: []\n"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the forge serves: the branch that `make site` writes, here with this version and a small older one.

    A link of this version that leads nowhere, or to no heading, ends its build.
    """
    folder = tmp_path_factory.mktemp("pages")
    (folder / "old" / "docs").mkdir(parents=True)
    (folder / "old" / "mkdocs.yml").write_text(OLDER)
    (folder / "old" / "docs" / "index.md").write_text("# The older version\n")
    clone = folder / "clone"
    git = ["git", "-C", str(clone), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", str(clone)], check=True)
    for key, value in (("user.name", "A"), ("user.email", "a@example.org")):
        subprocess.run([*git, "config", key, value], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Begin"], check=True)
    for words in (["0.1.0", "--config", str(folder / "old" / "mkdocs.yml")], ["0.2.0"]):
        command = [sys.executable, str(ROOT / "release" / "publish_site.py"), *words]
        done = subprocess.run(command, cwd=clone, env=ENV, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    subprocess.run([*git, "worktree", "add", "-q", str(folder / "served"), "gh-pages"], check=True)
    return folder / "served"


@pytest.fixture(scope="module")
def site(pages: Path) -> Path:
    """This version's site."""
    return pages / "0.2"


@pytest.fixture
def address(pages: Path) -> Iterator[str]:
    """The pages as a forge serves them: below a folder of an address."""
    handler = partial(QuietHandler, directory=str(pages.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{pages.name}/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def test_the_site_has_what_is_made_from_the_code(site: Path) -> None:
    """The reference has every verb and every field, the gallery every kind, the demo is a real page of an incident."""
    reference = (site / "reference-cli.html").read_text()
    assert all(f"hangscope {verb}" in reference for verb in VERBS)
    fields = (site / "reference-json.html").read_text()
    assert all(f"<code>{name}</code>" in fields for name in ("outcome", "culprits", "facts"))
    assert "<code>HANGSCOPE_DIR</code>" in (site / "reference-environment.html").read_text()
    gallery = re.sub("<[^>]*>", "", (site / "gallery.html").read_text())
    for word in ("absent", "dead", "frozen", "GPU", "mismatch", "deadlock", "link", "SLOW"):
        assert word in gallery
    assert {"HANG", "CRASH", "PAUSE", "SLOW", "OK"} <= set(re.findall(r"^[A-Z]+(?= )", gallery, re.MULTILINE))
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
    """The front page, the demo and the gallery, opened in Chromium from files, load nothing but files."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page: Any = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index.html", "demo-page.html", "gallery.html"):
            page.goto((site / name).as_uri())
            page.wait_for_load_state("load")
        browser.close()
    assert len(asked) > 4
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make test-deps` installs it where it can")
def test_a_reader_switches_between_versions(address: str) -> None:
    """The bare address leads to the latest release, in which one can search; the switcher leads to others and back."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page: Any = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.wait_for_url(f"{address}latest/**")
        listed = page.locator(".md-version__link")
        listed.first.wait_for(state="attached")
        assert [text.strip() for text in listed.all_text_contents()] == ["0.2.0", "0.1.0"]
        assert page.locator(".md-version__current").inner_text().startswith("0.2.0")
        page.locator(".md-search__input").press_sequentially("deadlock")
        page.locator(".md-search-result__link").first.wait_for()
        page.keyboard.press("Escape")
        page.locator(".md-version").hover()
        listed.nth(1).click()
        page.wait_for_url(f"{address}0.1/**")
        assert page.locator("h1").inner_text().startswith("The older version")
        page.locator(".md-version").hover()
        page.locator(".md-version__link", has_text="0.2.0").click()
        page.wait_for_url(f"{address}0.2/**")
        browser.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v0.2.0", ("0.2", "0.2.0", True)),
        ("0.2.1", ("0.2", "0.2.1", True)),
        ("0.3.0rc1", ("0.3.0rc1", "0.3.0rc1", False)),
        ("dev", ("dev", "dev", False)),
    ],
)
def test_only_a_release_becomes_the_latest(version: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate and main's docs lie beside the releases' and replace none; a patch replaces its predecessor."""
    monkeypatch.syspath_prepend(ROOT / "release")
    assert import_module("publish_site").listed_as(version) == expected


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
