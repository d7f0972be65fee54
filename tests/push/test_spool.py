"""What waits on disk until a server takes it."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from hangscope.cli.verbs.node_check import command as node_check
from hangscope.cli.verbs.push import _report
from hangscope.push.send_spooled import send_all
from hangscope.push.server_client import ServerClient
from hangscope.push.spool import Spool


def test_a_new_account_gets_its_spool(tmp_path: Path) -> None:
    """Where nothing of ~/.local/state is there yet, the folders above are made, and the spool is the user's alone."""
    folder = tmp_path / "state" / "hangscope" / "spool" / "host"
    spool = Spool(folder)
    spool.add("end", {"job": "j"})
    assert [entry.value for entry in spool.entries()] == [{"job": "j"}]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


class Server(BaseHTTPRequestHandler):
    """Answers what a test put into `answer`: a status, or "trickle"."""

    answer: int | str = 422

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.answer == "trickle":
            for _ in range(100):
                self.wfile.write(b"H")
                self.wfile.flush()
                time.sleep(0.1)
            return
        self.send_response(int(self.answer))
        self.end_headers()
        self.wfile.write(b'{"error": "no"}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_what_a_server_refuses_is_kept_aside(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that a server will never take is not lost and not sent again: it lies aside with the reason, what came
    after it is sent, and the status says so."""
    monkeypatch.setattr(Server, "answer", 422)
    spool = Spool(tmp_path / "spool")
    spool.add("end", {"job": "j"}, server=server)
    client = ServerClient(server, "hs_x")
    sent = send_all(client, spool, lambda said: None)
    assert (sent.refused, sent.left, spool.entries()) == (1, 0, [])
    (reason,) = (tmp_path / "spool" / "refused").glob("*.reason")
    assert "refuses it: no" in reason.read_text()
    assert _report(sent, server) == 1
    client.close()


def test_what_waits_for_one_server_is_not_sent_to_another(tmp_path: Path, server: str) -> None:
    """An entry goes to the server that it was kept for, or to the one that is said to be the same."""
    spool = Spool(tmp_path / "spool")
    spool.add("end", {"job": "j"}, server="https://a.example")
    client = ServerClient(server, "hs_x")
    sent = send_all(client, spool, lambda said: None)
    assert (sent.others, sent.refused, sent.others_left) == (0, 0, ("https://a.example",))
    assert send_all(client, spool, lambda said: None, ["https://a.example/"]).refused == 1
    client.close()


def test_a_server_that_trickles_is_not_waited_for(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question has one deadline, however a server lets its answer drip: `node-check` says that nothing is known."""
    monkeypatch.setattr(Server, "answer", "trickle")
    monkeypatch.setattr("hangscope.cli.verbs.node_check.TIMEOUT_S", 0.5)
    began = time.monotonic()
    given = ["--server", server, "--node", "n1"]
    for words, status in ((given, 2), ([*given, "--prolog"], 0)):
        done = CliRunner().invoke(node_check, words, env={"HANGSCOPE_TOKEN": "hs_x"}, standalone_mode=False)
        assert done.return_value == status, done.output
    assert time.monotonic() - began < 8
