"""Each page in Chromium, on a phone and on a desk, light and dark: nothing runs out of it, no word is broken, all is
readable. `HANGSCOPE_PICTURES=DIR` keeps what was seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.server.history import marks
from hangscope.server.history.summary import make
from hangscope.server.intake.job_rosters import add_roster
from kits.browser import CHROMIUM, FLAGS
from kits.fleet import RunningServer, access, bundle, running_server
from kits.past import fleet, hang

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make test-deps` installs it where it can"),
]
LONG = "llama-70b-pretraining_with-a-very-long-name-of-its-experiment.2026-11-19"
MEASURE = (Path(__file__).parents[1] / "kits" / "measure_page.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str, list[str]]]:
    """A server with a real incident, a suspect, notes, two clusters, and names as long as people make them."""
    with running_server(tmp_path_factory.mktemp("data")) as server:
        database = server.opened.database
        project = access(database).project_id
        token = server.token("push", "read", "triage")
        number = server.push(token, bundle("sleep"), job=LONG)
        fleet(database, project, "east", "west")
        for each in range(4):
            hang(database, project, "west", each, "node5", 5 + each)
        nodes = [
            {"node": f"gpu-h200-{each}.rack-17.example.org", "gpus": [{"uuid": f"GPU-{each}"}]} for each in range(9)
        ]
        job = add_roster(database, project, {"cluster": "west", "job": LONG, "attempt": "1", "nodes": nodes})
        with database.write() as connection:
            node = marks.find_node(connection, project, "node5", "west")
            marks.add(
                connection, project, node.id, "note", "ada", "waits for a new power supply", time.time(), time.time()
            )
        issue = server.digested(token, number)["issue_id"]
        make(database, project, "", time.time())
        addresses = ["/", "/incidents", f"/incidents/{number}", "/issues", f"/issues/{issue}", "/suspects", "/nodes"]
        addresses += ["/nodes/node5?cluster=west", "/nodes/node5", "/jobs", f"/jobs/{job}", "/nowhere"]
        yield server, token, addresses


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_every_page_fits_and_can_be_read(filled: tuple[RunningServer, str, list[str]], width: int, scheme: Any) -> None:
    """Nothing scrolls sideways, no word of up to twelve letters is broken, all text has a contrast of 4.5 or more."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    server, token, addresses = filled
    name, _, value = server.session(token).partition("=")
    pictures = os.environ.get("HANGSCOPE_PICTURES")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto(f"{server.url}/login-first")
        measured = {"/login": page.evaluate(MEASURE)}
        context.add_cookies([{"name": name, "value": value, "url": server.url}])
        for address in addresses:
            page.goto(server.url + address)
            measured[address] = page.evaluate(MEASURE)
            if pictures:
                picture = f"{width}-{scheme}{address.replace('/', '_').replace('?', '_')}.png"
                page.screenshot(path=str(Path(pictures) / picture), full_page=True)
        browser.close()
    wrong = {
        address: found for address, found in measured.items() if found["over"] > 0 or found["broken"] or found["faint"]
    }
    assert not wrong


def test_a_server_that_has_nothing_says_how_to_send_the_first(tmp_path: Path) -> None:
    """The first page of an empty server has the commands with its own address."""
    with running_server(tmp_path, digesters=0) as server:
        page = server.ask("GET", "/", server.token("read"), Accept="text/html").text
        assert "Nothing was sent yet" in page
        assert f"hangscope run --server {server.url}" in page
