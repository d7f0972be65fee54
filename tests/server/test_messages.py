"""Messages to webhooks: alerts that close, suspects, what became of each message, and one more try."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from hangscope.server.history import marks
from hangscope.server.history.summary import make
from kits.fleet import RunningServer, access, bundle, running_server
from kits.past import fleet, hang


class Receiver(BaseHTTPRequestHandler):
    """Keeps what is posted; answers 500 while `broken`."""

    taken: ClassVar[list[Any]] = []
    broken = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).taken.append(json.loads(body))
        self.send_response(500 if type(self).broken else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Any]:
    handler = type("Handler", (Receiver,), {"taken": [], "broken": False})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    handler.url = f"http://127.0.0.1:{server.server_port}/"  # type: ignore[attr-defined]
    yield handler
    server.shutdown()
    server.server_close()


def until(done: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def hook(server: RunningServer, token: str, receiver: Any, shape: str) -> int:
    return int(server.ask("POST", "/api/v1/webhooks", token, {"url": receiver.url, "shape": shape}).json["id"])


def test_an_alert_closes_with_its_issue(tmp_path: Path, receiver: Any) -> None:
    """Alertmanager is sent the labels of the hang again, with an end: at first days away, now once it is resolved."""
    with running_server(tmp_path) as server:
        admin = server.token("push", "read", "admin")
        hook(server, admin, receiver, "alertmanager")
        number = server.push(admin, bundle("sleep"))
        issue = server.digested(admin, number)["issue_id"]
        until(lambda: receiver.taken)
        server.ask("POST", f"/api/v1/issues/{issue}/resolve", admin)
        until(lambda: len(receiver.taken) == 2)
    (fired,), (closed,) = receiver.taken
    assert fired["labels"] == closed["labels"]
    labels = fired["labels"]
    names = {"project": "llm", "cluster": "west", "node": "gpu-worker-7", "severity": "critical", "issue": str(issue)}
    assert names.items() <= labels.items()
    assert fired["endsAt"] > fired["startsAt"]
    assert closed["endsAt"] <= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 5))


def test_a_suspect_is_told_once_and_cleared_once(tmp_path: Path, receiver: Any) -> None:
    """Who becomes suspect is one message, with the node and its counts; once it is repaired there is one more."""
    with running_server(tmp_path) as server:
        database = server.opened.database
        project = access(database).project_id
        fleet(database, project, "west")
        admin = server.token("read", "admin")
        hook(server, admin, receiver, "json")
        for number in range(4):
            hang(database, project, "west", number, "node5", 5 + number)
        for _ in range(3):
            make(database, project, "", time.time())
        until(lambda: receiver.taken)
        metrics = server.ask("GET", "/metrics", admin).text
        assert 'hangscope_suspect{kind="node",name="node5",cluster="west",node="node5"}' in metrics
        assert 'hangscope_suspects{state="proposed"} 1' in metrics
        with database.write() as connection:
            node = marks.find_node(connection, project, "node5")
            marks.add(connection, project, node.id, "repaired", "ada", "", time.time(), time.time())
        for _ in range(2):
            make(database, project, "", time.time())
        until(lambda: len(receiver.taken) >= 2)
        time.sleep(1.5)
    first, last = receiver.taken
    assert (first["event"], first["suspect"]["name"]) == ("suspect", "node5")
    assert "was the culprit in 4 of its" in first["suspect"]["says"]
    assert first["url"].endswith("/nodes/node5?cluster=west")
    assert (last["event"], last["suspect"]["name"]) == ("suspect cleared", "node5")


def test_deliveries_are_listed_tested_and_tried_again(tmp_path: Path, receiver: Any) -> None:
    """A test message says what it is; a receiver that answers 500 is among the deliveries with its problem, and gets
    the same message again when somebody asks for that."""
    with running_server(tmp_path, digesters=0) as server:
        admin = server.token("read", "admin")
        number = hook(server, admin, receiver, "slack")
        receiver.broken = True
        assert server.ask("POST", f"/api/v1/webhooks/{number}/test", admin).status == 202
        until(lambda: server.ask("GET", "/api/v1/deliveries", admin).json["deliveries"][0]["problem"])
        (told,) = server.ask("GET", "/api/v1/deliveries?state=waiting", admin).json["deliveries"]
        assert (told["problem"], told["attempts"], told["event"]) == ("answered with status 500", 1, "test")
        receiver.broken = False
        assert server.ask("POST", f"/api/v1/deliveries/{told['id']}/retry", admin).status == 202
        until(lambda: server.ask("GET", "/api/v1/deliveries?state=delivered", admin).json["deliveries"])
        assert 'hangscope_deliveries{state="delivered"} 1' in server.ask("GET", "/metrics", admin).text
        assert server.ask("POST", "/api/v1/webhooks/99/test", admin).status == 404
        assert server.ask("POST", "/api/v1/deliveries/99/retry", admin).status == 404
        other = server.token("admin", project="other")
        assert server.ask("POST", f"/api/v1/deliveries/{told['id']}/retry", other).status == 404
        assert server.ask("GET", "/api/v1/deliveries", other).json["deliveries"] == []
    assert [each["blocks"][0]["text"]["text"] for each in receiver.taken] == [
        "*a test*: messages of hangscope arrive here"
    ] * 2
