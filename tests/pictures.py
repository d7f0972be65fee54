"""Makes the pictures of the docs anew, from recorded cases, in Chromium: `python tests/pictures.py`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import hangscope
from hangscope.report.page.render_page import render_page

ROOT = Path(__file__).parents[1]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PICTURES = {
    "page": ("mesh_absent", "light", (1400, 960)),
    "page-dark": ("deadlock3", "dark", (1400, 960)),
    "page-mismatch": ("type_mismatch", "light", (1400, 900)),
    "page-slow": ("straggler8", "light", (1400, 850)),
    "page-phone": ("mesh_absent", "light", (390, 840)),
}
"""File → the recorded case, the colours, and the window."""


def main() -> None:
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as scratch:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, (case, colours, (width, height)) in PICTURES.items():
            job = hangscope.load(ROOT / "tests" / "cases" / case)
            file = Path(scratch) / f"{name}.html"
            file.write_text(render_page(hangscope.diagnose(job), job), encoding="utf-8")
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-drawn=yes]", state="attached")
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
