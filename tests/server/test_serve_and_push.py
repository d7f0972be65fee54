"""The two commands on a fresh machine: `hangscope serve`, one `push`, and the incident is in the browser."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hangscope.push.spool import Spool
from kits.browser import CHROMIUM, FLAGS
from kits.fleet import INCIDENTS


def hangscope(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hangscope", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=120,
    )


@dataclass
class Served:
    url: str
    token: str
    incident: str
    folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server started by its command, to which one incident was pushed by another."""
    folder = tmp_path_factory.mktemp("served")
    said = folder / "stderr"
    with said.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "hangscope", "serve", "--data", folder / "data", "--listen", "127.0.0.1:0"],
            stderr=err,
        )
    try:
        until = time.monotonic() + 60
        while not (found := re.search(r"listening on (\S+)", said.read_text())):
            assert time.monotonic() < until and process.poll() is None, said.read_text()
            time.sleep(0.1)
        assert "hs_" not in said.read_text(), "a service's stderr is in journals, which many may read"
        first = folder / "data" / "first-token"
        assert first.stat().st_mode & 0o777 == 0o600
        token = [first.read_text().strip()]
        pushed = hangscope(
            "push",
            INCIDENTS / "sleep",
            "--server",
            found[1],
            HANGSCOPE_TOKEN=token[0],
            HANGSCOPE_SPOOL=str(folder / "spool"),
        )
        assert pushed.returncode == 0, pushed.stderr
        yield Served(found[1], token[0], pushed.stdout.strip(), folder)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    finally:
        process.kill()
        process.wait()


def test_a_push_prints_where_the_incident_is(served: Served) -> None:
    """stdout is the incident's address on the server, and nothing waits any more."""
    assert re.fullmatch(re.escape(served.url) + r"/incidents/\d+", served.incident)
    assert Spool(served.folder / "spool").entries() == []


def test_a_push_that_cannot_be_sent_waits(tmp_path: Path, served: Served) -> None:
    """With a wrong token or no server the bundle stays in the spool, status 1; the right token sends it. It is not sent
    to another server, but where that one is said to be the same."""
    spool = {"HANGSCOPE_SPOOL": str(tmp_path / "spool")}
    gone = hangscope("push", INCIDENTS / "stop", "--server", "http://127.0.0.1:9", HANGSCOPE_TOKEN="hs_x", **spool)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "1 still to be sent" in gone.stderr
    other = hangscope("push", "--server", served.url, HANGSCOPE_TOKEN="hs_wrong", **spool)
    assert (other.returncode, "what waits for http://127.0.0.1:9" in other.stderr) == (0, True)
    here = ("--server", served.url, "--moved-from", "http://127.0.0.1:9")
    wrong = hangscope("push", *here, HANGSCOPE_TOKEN="hs_wrong", **spool)
    assert wrong.returncode == 1
    assert "does not take the token" in wrong.stderr
    token_file = tmp_path / "token"
    token_file.write_text(served.token + "\n")
    token_file.chmod(0o644)
    sent = hangscope("push", *here, "--token-file", token_file, HANGSCOPE_TOKEN="hs_wrong", **spool)
    assert sent.returncode == 0
    assert "can be read by every user" in sent.stderr
    assert "/incidents/" in sent.stdout


def test_mistakes_of_options_are_said(tmp_path: Path) -> None:
    """No server, no token, no such path, no such address: one line each, and status 2."""
    spool = {"HANGSCOPE_SPOOL": str(tmp_path / "spool"), "HANGSCOPE_TOKEN": "hs_x"}
    assert "no server" in hangscope("push", ".").stderr
    assert "no such file" in hangscope("push", "/nowhere", "--server", "http://127.0.0.1:9", **spool).stderr
    assert "not a server's address" in hangscope("push", "--server", "ftp://x", **spool).stderr
    token = ("--new-token", "agents", "--scope", "push")  # a server waits a minute for its database, a token does not
    done = hangscope("serve", "--database", "postgresql://127.0.0.1:9/x", "--data", tmp_path, *token)
    assert done.returncode == 2
    assert "error: the database cannot be used" in done.stderr


def test_a_token_is_made_by_command(served: Served) -> None:
    """`--new-token` prints one token on stdout and nothing else."""
    made = hangscope("serve", "--data", served.folder / "data", "--new-token", "agents", "--scope", "push")
    assert re.fullmatch(r"hs_\S+\n", made.stdout)


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make test-deps` installs it where it can")
def test_a_browser_clicks_through_the_pages(served: Served) -> None:
    """Log in by the form, open the incident with its page, its issue, its node and its job; nothing breaks the policy
    and nothing is asked of another place."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    errors: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        page: Any = browser.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{served.url}/incidents")
        page.fill("input[name=token]", served.token)
        errors.clear()  # the first answer was a 401, as it should be
        page.click("button")
        until = time.monotonic() + 60
        while "stuck_in_loader" not in page.inner_text("main"):
            assert time.monotonic() < until
            page.wait_for_timeout(500)
            page.reload()
        page.click("text=stuck_in_loader")
        frame = page.frame_locator("iframe")
        assert "HANG" in frame.locator("#answer").inner_text()
        assert frame.locator("#matrix-table tr").count() > 1, "the page's own script runs in its sandbox"
        page.click("text=node gpu-worker-7")
        assert page.locator("svg.axis .mark").count() == 1
        page.click("table a >> nth=0")
        page.click("text=/^#\\d+$/")
        assert "Why these are one" in page.content()
        page.click("text=resolve")
        assert page.inner_text("h1").endswith("resolved")
        page.click("text=jobs")
        page.click("text=48537")
        assert "gpu-worker-6" in page.inner_text("main")
        page.click("text=log out")
        assert page.locator("input[name=token]").count() == 1
        browser.close()
    assert [each for each in errors if "401" not in each] == []
    assert [url for url in asked if not url.startswith((served.url, "data:"))] == []


def test_a_folder_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    """Where others of the machine could read it, nothing is kept, and the error says the cure; the files of a database
    are its user's alone."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    done = hangscope("serve", "--data", folder, "--new-token", "x")
    assert done.returncode == 2
    assert f"chmod 700 {folder}" in done.stderr
    folder.chmod(0o700)
    assert hangscope("serve", "--data", folder, "--new-token", "x").returncode == 0
    assert {path.stat().st_mode & 0o077 for path in folder.rglob("*")} == {0}


def test_small_answers_are_sent_at_once() -> None:
    """What is accepted inherits TCP_NODELAY from the listening socket: else the kernel holds it back for 40 ms."""
    serve_process = pytest.importorskip("hangscope.server.serve_process")
    with (
        serve_process._listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
