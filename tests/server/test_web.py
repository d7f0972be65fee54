"""The API and the pages on a real socket: what agents push is shown, and nobody sees more than a token allows."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from sqlalchemy import select, update

from hangscope.report.contract_schema import schema
from hangscope.server.digest import issue_groups
from hangscope.server.digest.fingerprint import fingerprint
from hangscope.server.retention import clear_expired
from hangscope.server.store.blob_store import BlobFolder
from hangscope.server.store.tables import AUDIT, BLOBS, INCIDENTS, WORK
from hangscope.server.web.guard import Guard, Rate
from hangscope.server.web.messages import message
from hangscope.server.web.webhooks import OLDEST_S, is_inside, is_signed, send, signature
from hangscope.verdict_words import is_trouble
from kits.fleet import RunningServer, access, bundle, push_value, running_server, sha

HTML = {"Accept": "text/html"}
EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}' OR 1=1 --"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def everything(server: RunningServer) -> str:
    return server.token("push", "read", "admin")


@pytest.fixture(scope="module")
def incident(server: RunningServer, everything: str) -> int:
    """One digested incident of a job with a roster."""
    roster = {"cluster": "west", "job": "48537", "nodes": [{"node": "gpu-worker-7", "ranks": [2, 3]}], "commit": "c1"}
    assert server.ask("POST", "/api/v1/jobs", everything, roster).status == 202
    number = server.push(everything, bundle("sleep"))
    assert server.digested(everything, number)["state"] == "digested"
    end = {"cluster": "west", "job": "48537", "exit_status": 1}
    assert server.ask("POST", "/api/v1/jobs/end", everything, end).status == 202
    return number


def routes(server: RunningServer, token: str) -> list[tuple[str, str]]:
    """Every method and path that the server has, with numbers in the place of parameters, but /healthz and /login."""
    described = server.ask("GET", "/openapi.json", token).json["paths"]
    found = [(method.upper(), path) for path, methods in described.items() for method in methods]
    pages = ["/incidents", "/incidents/1", "/incidents/1/page", "/issues", "/issues/1", "/nodes", "/nodes/x", "/jobs"]
    found += [("GET", path) for path in [*pages, "/jobs/1", "/openapi.json", "/metrics", "/incidents.atom"]]
    found.append(("POST", "/issues/1/resolve"))
    fill = {"{sha256}": "0" * 64, "{action}": "resolve", "{name}": "x"}
    filled = []
    for method, path in found:
        for name, value in fill.items():
            path = path.replace(name, value)
        while "{" in path:
            path = path[: path.index("{")] + "1" + path[path.index("}") + 1 :]
        filled.append((method, path))
    assert len(filled) > 25
    return filled


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_an_incident_is_in_the_api(server: RunningServer, everything: str, incident: int) -> None:
    """The incident has its verdict by the published schema, its fingerprint explained, its bundle as it was sent."""
    import jsonschema

    found = server.ask("GET", f"/api/v1/incidents/{incident}", everything).json
    assert found["explanation"]["function"] == "train.stuck_in_loader"
    named = {"kind": "node", "name": "gpu-worker-7", "cluster": "west", "role": "culprit"}
    assert named in found["accused"]
    verdict = server.ask("GET", f"/api/v1/incidents/{incident}/verdict", everything).json
    jsonschema.validate(verdict, schema())
    (part,) = server.ask("GET", f"/api/v1/incidents/{incident}/bundles", everything).json["bundles"]
    whole = server.ask("GET", f"/api/v1/incidents/{incident}/bundles/{part['id']}", everything)
    assert sha(whole.body) == sha(bundle("sleep"))


def test_incidents_are_found_by_words_and_filters(server: RunningServer, everything: str, incident: int) -> None:
    """Job, function, node and kind find it; what it is not does not; a wildcard is a plain character."""
    for found in ("q=48537", "q=stuck_in_loader+gpu-worker-7", "kind=absent", "node=gpu-worker-7", "state=digested"):
        answer = server.ask("GET", f"/api/v1/incidents?{found}", everything).json["incidents"]
        assert incident in [each["id"] for each in answer], found
    for missed in ("q=nothing-like-it", "kind=dead", "node=gpu-worker-6", "q=%25%25", "before=1"):
        answer = server.ask("GET", f"/api/v1/incidents?{missed}", everything).json["incidents"]
        assert incident not in [each["id"] for each in answer], missed


def test_every_page_shows_what_it_should(server: RunningServer, everything: str, incident: int) -> None:
    """Each page answers with its own words, a policy that allows one style and nothing else, and no script at all."""
    for path, words in {
        "/incidents": "stuck_in_loader",
        f"/incidents/{incident}": "fingerprint",
        "/issues": "absent in train.stuck_in_loader",
        "/issues/1": "Why these are one",
        "/nodes": "gpu-worker-7",
        "/nodes/gpu-worker-7": "Jobs on it",
        "/jobs": "48537",
        "/jobs/1": "Ran on",
    }.items():
        answer = server.ask("GET", path, everything, **HTML)
        assert answer.status == 200, path
        assert words in answer.text, path
        assert "<script" not in answer.text
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert "http://" not in answer.text.replace(server.url, "").replace("http://www.w3.org", "")


def test_the_incidents_page_has_no_rights_here(server: RunningServer, everything: str, incident: int) -> None:
    """The page made from a stranger's evidence runs in a sandbox without our origin."""
    answer = server.ask("GET", f"/incidents/{incident}/page", everything, **HTML)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in policy
    assert "<!doctype html>" in answer.text


def test_metrics_and_feed_are_well_formed(server: RunningServer, everything: str, incident: int) -> None:
    """Prometheus's text has its counts, the Atom feed is XML with the incident in it."""
    lines = server.ask("GET", "/metrics", everything).text.splitlines()
    assert 'hangscope_incidents{state="digested",kind="absent"} 1' in lines
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in lines)
    feed = ElementTree.fromstring(server.ask("GET", "/incidents.atom", everything).body)
    titles = [entry.findtext("{http://www.w3.org/2005/Atom}title") for entry in feed if entry.tag.endswith("entry")]
    assert any("stuck_in_loader" in (title or "") for title in titles)


def test_a_browser_logs_in_by_a_form(server: RunningServer, incident: int) -> None:
    """A token in the form becomes a session in a cookie that no script reads, and leads back."""
    token = server.token("read")
    form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    wrong = server.ask("POST", "/login", None, b"token=hs_wrong&next=/", **form)
    assert wrong.status == 401
    assert "not valid" in wrong.text
    done = server.ask("POST", "/login", None, f"token={token}&next=%2Fissues".encode(), **form)
    assert (done.status, done.headers["location"]) == (303, "/issues")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert token not in cookie
    shown = server.ask("GET", "/issues", None, Cookie=cookie.partition(";")[0], **HTML)
    assert shown.status == 200
    away = server.ask("POST", "/login", None, f"token={token}&next=%2F%2Fevil.example".encode(), **form)
    assert away.headers["location"] == "/"


# ---- trust -----------------------------------------------------------------------------------------------------------


def test_nothing_but_healthz_answers_without_a_token(server: RunningServer, everything: str, incident: int) -> None:
    """Every route of API and pages refuses a request without a token, and one whose token is none."""
    assert server.ask("GET", "/healthz").json == {"status": "ok"}
    for method, path in routes(server, everything):
        assert server.ask(method, path, None, {}).status == 401, path
    # Past so many wrong tokens a minute, the answer is 429: never anything else.
    assert {server.ask("GET", "/incidents", f"hs_{number}").status for number in range(40)} <= {401, 429}
    assert server.ask("GET", "/incidents", everything).status == 200


def test_a_scope_allows_what_it_says(server: RunningServer, everything: str, incident: int) -> None:
    """A push token reads nothing, a read token pushes and changes nothing, and neither makes tokens."""
    push, read = server.token("push"), server.token("read")
    for method, path in routes(server, everything):
        is_push = path.startswith(("/api/v1/lacking", "/api/v1/blobs")) or (method, path) in {
            ("POST", "/api/v1/incidents"),
            ("POST", "/api/v1/jobs"),
            ("POST", "/api/v1/jobs/end"),
        }
        is_read = method == "GET" and not path.startswith(("/api/v1/tokens", "/api/v1/webhooks", "/api/v1/audit"))
        is_read = is_read or path == "/api/v1/history"  # a question with a body: it changes nothing
        if not is_push:
            assert server.ask(method, path, push, {}).status == 403, path
        if not is_read:
            assert server.ask(method, path, read, {}).status == 403, path


def test_projects_do_not_see_each_other(server: RunningServer, everything: str, incident: int) -> None:
    """With another project's token there is no such incident, issue, job, node, bundle or blob."""
    other = server.token("push", "read", "admin", project="other")
    for path in (
        f"/api/v1/incidents/{incident}",
        f"/api/v1/incidents/{incident}/verdict",
        f"/api/v1/incidents/{incident}/page",
        f"/api/v1/incidents/{incident}/bundles/1",
        "/api/v1/issues/1",
        "/api/v1/jobs/1",
        "/api/v1/nodes/gpu-worker-7",
        f"/incidents/{incident}",
    ):
        assert server.ask("GET", path, other).status == 404, path
    for path in ("incidents", "issues", "jobs", "nodes", "tokens", "audit", "webhooks"):
        found = server.ask("GET", f"/api/v1/{path}", other).json[path]
        assert [each for each in found if path != "tokens"] == [], path
    assert server.ask("POST", "/api/v1/issues/1/resolve", other).status == 404
    # Who only knows a checksum has nothing by it.
    value = push_value(bundle("sleep"), job="theft")
    assert server.ask("POST", "/api/v1/incidents", other, value).json["lacking"] == [sha(bundle("sleep"))]
    assert server.ask("POST", "/api/v1/lacking", other, {"sha256": [sha(bundle("sleep"))]}).json["lacking"]


def test_a_form_of_another_site_changes_nothing(server: RunningServer, everything: str, incident: int) -> None:
    """With the cookie alone, a request that another site has the browser send is refused."""
    cookie = {"Cookie": server.session(everything), "Content-Type": "application/x-www-form-urlencoded"}
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}, {}):
        assert server.ask("POST", "/issues/1/resolve", None, b"", **cookie, **headers).status == 403
    assert server.ask("GET", "/api/v1/issues/1", everything).json["state"] == "open"


def test_injection_in_every_field_is_text(server: RunningServer, everything: str) -> None:
    """HTML, templates and SQL in every field that an agent or a person can fill in are shown as they are, escaped."""
    roster = {
        "cluster": EVIL,
        "job": EVIL,
        "attempt": EVIL,
        "image": EVIL,
        "commit": EVIL,
        "versions": {EVIL: EVIL},
        "nodes": [{"node": EVIL, "gpus": [{"uuid": EVIL}], "nics": [{"name": EVIL}], "leaf": EVIL, "mounts": [EVIL]}],
    }
    job = server.ask("POST", "/api/v1/jobs", everything, roster).json["job"]
    number = server.push(everything, b"no bundle at all", job=EVIL, cluster=EVIL, source=EVIL, hang=EVIL)
    server.digested(everything, number)
    name = quote(EVIL, safe="")
    words = quote(EVIL)
    for path in (
        "/incidents",
        f"/incidents?q={words}",
        f"/incidents?kind={quote(EVIL[:18])}",
        f"/incidents/{number}",
        f"/jobs/{job}",
        "/jobs",
        f"/nodes/{name}",
        f"/nodes?q={words}",
        f"/issues?state={quote(EVIL[:18])}",
    ):
        answer = server.ask("GET", path, everything, **HTML)
        assert answer.status in (200, 404), path
        assert "<script" not in answer.text, path
        assert "<img" not in answer.text, path
        assert "49" not in answer.text.partition("<body>")[2].replace("48537", "") or "{{7*7}}" in answer.text
    assert ElementTree.fromstring(server.ask("GET", "/incidents.atom", everything).body) is not None
    login = server.ask("GET", f"/incidents?q={words}", None, **HTML)
    assert "<script" not in login.text


def test_uploads_cannot_name_paths(server: RunningServer, everything: str, tmp_path: Path) -> None:
    """A blob's name is a checksum or nothing: no path, no encoded path, no other case."""
    for name in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e", "A" * 64, "0" * 63, "0" * 64 + "%00"):
        assert server.ask("PUT", f"/api/v1/blobs/{name}", everything, b"x").status in (400, 404), name


def test_bodies_that_are_too_much_are_refused(server: RunningServer, everything: str) -> None:
    """A chunk over its bound, JSON of a hundred thousand brackets, and JSON that grows are refused, and we live."""
    big = b"x" * ((8 << 20) + 1)
    assert server.ask("PUT", f"/api/v1/blobs/{sha(big)}", everything, big).status == 413
    for bomb in (b"[" * 100_000, b'{"job":' * 10_000, b"[" + b"[]," * 5_000_000 + b"[]]", b'{"job": ' + b"9" * 100_000):
        assert server.ask("POST", "/api/v1/jobs", everything, bomb).status in (400, 413)
    assert server.ask("POST", "/api/v1/jobs", everything, b"\xff\xfe").status == 400
    assert server.ask("GET", "/healthz").status == 200


def test_a_content_length_that_lies_does_no_harm(server: RunningServer, everything: str) -> None:
    """A body shorter than it says is never accepted, a huge length is refused at once, and a second length too."""

    def say(length: str, body: bytes, *, ends: bool = False) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            head = f"PUT /api/v1/blobs/{sha(b'abc')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {everything}\r\n"
            connection.sendall(f"{head}Connection: close\r\n{length}\r\n\r\n".encode() + body)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(4096), b""))

    assert b" 413 " in say("Content-Length: 99999999999", b"abc").partition(b"\r\n")[0]
    assert b" 201 " not in say("Content-Length: 50", b"abc", ends=True)
    assert b" 201 " not in say("Content-Length: 3\r\nContent-Length: 50", b"abc", ends=True)
    assert b" 201 " not in say("Content-Length: 2", b"abc")
    assert server.ask("POST", "/api/v1/lacking", everything, {"sha256": [sha(b"abc")]}).json["lacking"]
    assert b" 201 " in say("Content-Length: 3", b"abc")


def test_tokens_are_made_and_revoked(server: RunningServer, everything: str) -> None:
    """An administrator makes a token that works, and revokes it, and then it does not."""
    made = server.ask("POST", "/api/v1/tokens", everything, {"name": "agents", "scopes": ["read"], "days": 30})
    token = made.json["token"]
    assert server.ask("GET", "/api/v1/jobs", token).status == 200
    listed = server.ask("GET", "/api/v1/tokens", everything).json["tokens"]
    assert token not in json.dumps(listed)
    number = next(each["id"] for each in listed if each["name"] == "agents")
    assert server.ask("DELETE", f"/api/v1/tokens/{number}", everything).json == {"revoked": True}
    assert server.ask("GET", "/api/v1/jobs", token).status in (401, 429)
    assert server.ask("POST", "/api/v1/tokens", everything, {"name": "x", "scopes": ["root"]}).status == 422


def test_who_opened_what_is_written_down(server: RunningServer, everything: str, incident: int) -> None:
    """Opening a bundle or a page leaves a line with the token's name."""
    reader = server.token("read")
    server.ask("GET", f"/api/v1/incidents/{incident}/bundles/1", reader)
    server.ask("GET", f"/incidents/{incident}/page", reader)
    said = server.ask("GET", "/api/v1/audit", everything).json["audit"]
    assert {(each["who"], each["what"]) for each in said} >= {("test read", "bundle"), ("test read", "page")}


def test_issues_are_changed_over_the_api_and_by_forms(server: RunningServer, everything: str, incident: int) -> None:
    """Resolve, mute and reopen work for an administrator, and the page shows what happened."""
    form = {"Cookie": server.session(everything), "Sec-Fetch-Site": "same-origin"}
    done = server.ask("POST", "/issues/1/mute", None, b"days=3", **form)
    assert (done.status, done.headers["location"]) == (303, "/issues/1")
    assert server.ask("GET", "/api/v1/issues/1", everything).json["state"] == "muted"
    server.ask("POST", "/api/v1/issues/1/resolve", everything)
    assert server.ask("POST", "/api/v1/issues/1/reopen", everything).json == {"issue": 1}
    assert "muted by test push read admin" in server.ask("GET", "/issues/1", everything, **HTML).text
    assert server.ask("POST", "/api/v1/issues/1/eat", everything).status == 422
    assert server.ask("POST", "/api/v1/issues/1/merge", everything, {"into": 999}).status == 404


# ---- webhooks --------------------------------------------------------------------------------------------------------


class Receiver(BaseHTTPRequestHandler):
    taken: list[tuple[str, bytes]]
    answers: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.headers["X-Hangscope-Signature"], body))
        self.send_response(self.answers.pop(0) if self.answers else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Any]:
    kind = type("OneReceiver", (Receiver,), {"taken": [], "answers": [500]})
    http = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield http
    http.shutdown()
    http.server_close()


def test_a_new_hang_reaches_the_webhook_once(tmp_path: Path, receiver: Any) -> None:
    """A signed request with the incident arrives, again after an error of the receiver, and only once after that."""
    with running_server(tmp_path) as server:
        admin = server.token("push", "read", "admin")
        address = f"http://127.0.0.1:{receiver.server_port}/hook"
        hook = server.ask("POST", "/api/v1/webhooks", admin, {"url": address}).json
        server.digested(admin, server.push(admin, bundle("sleep")))
        taken = receiver.RequestHandlerClass.taken
        _until(lambda: len(taken) == 1)
        with server.opened.database.write() as connection:  # it waits for its second try: let it be now
            connection.execute(update(WORK).values(not_before=0.0))
        _until(lambda: len(taken) == 2)
        _until(lambda: not _work(server))
    (_, first), (header, second) = taken
    assert first == second
    assert is_signed(hook["secret"], header, second, time.time())
    value = json.loads(second)
    assert (value["event"], value["incident"]["kind"]) == ("new", "absent")


def _work(server: RunningServer) -> list[Any]:
    with server.opened.database.read() as connection:
        return list(connection.execute(select(WORK)).all())


def _until(done: Any) -> None:
    until = time.monotonic() + 30
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_replayed_webhook_is_not_signed() -> None:
    """What was signed long ago, for another body or with another secret is refused by whoever checks."""
    now = 1_800_000_000
    header = signature("secret", now, b"body")
    assert is_signed("secret", header, b"body", now + 10)
    assert not is_signed("secret", header, b"body", now + OLDEST_S + 1)
    assert not is_signed("secret", header, b"other", now)
    assert not is_signed("other", header, b"body", now)
    assert not is_signed("secret", header.replace(str(now), str(now + 400)), b"body", now + 400)
    assert not is_signed("secret", "", b"body", now)


def test_webhooks_have_the_shapes_that_others_read() -> None:
    """Slack gets text without its own markup, Alertmanager stable labels with job and node as annotations."""
    incident = {
        "id": 7,
        "headline": "rank 2 <!channel> & more",
        "job": "48537",
        "cluster": "west",
        "kind": "absent",
        "fingerprint": "hs1:0",
        "happened_at": 0.0,
        "accused": [
            {"kind": "node", "name": "n1", "role": "culprit"},
            {"kind": "rank", "name": "2", "role": "culprit"},
        ],
    }
    value = json.loads(message("slack", "new", incident, "http://x"))
    slack = value["text"]
    assert "<!channel>" not in slack
    assert "<http://x/incidents/7|open>" in slack
    buttons = {each["text"]["text"]: each["url"] for each in value["blocks"][-1]["elements"]}
    assert buttons == {"open": "http://x/incidents/7", "node": "http://x/nodes/n1"}
    assert {"type": "mrkdwn", "text": "*node*\nn1"} in value["blocks"][1]["fields"]
    (alert,) = json.loads(message("alertmanager", "new", incident, "http://x"))
    assert alert["labels"] == {
        "alertname": "HangscopeIncident",
        "cluster": "west",
        "node": "n1",
        "kind": "absent",
        "severity": "critical",
        "fingerprint": "hs1:0",
    }
    assert alert["endsAt"] > "1970-01-03"
    assert alert["annotations"]["nodes"] == "n1"


def test_webhooks_can_be_kept_out_of_our_own_network() -> None:
    """Where the operator says so, loopback and private addresses are not asked."""
    assert "address of this network" in send("http://127.0.0.1:9/x", "s", b"", private=False)
    assert "address of this network" in send("http://[::1]:9/x", "s", b"", private=False)


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("169.254.169.254", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("2002:7f00:1::", True),
        ("fe80::1%eth0", True),
        ("224.0.0.1", True),
        ("0.0.0.0", True),
        ("168.63.129.16", True),
        ("100.100.100.200", True),
        ("64:ff9b::7f00:1", True),
        ("64:ff9b::a9fe:a9fe", True),
        ("64:ff9b:1::808:808", True),
        ("::7f00:1", True),
        ("::ffff:0:10.0.0.1", True),
        ("fec0::1", True),
        ("fd00:ec2::254", True),
        ("2001:0:7f00:1::", True),
        ("2606:4700::5efe:10.0.0.1", True),
        ("64:ff9b::808:808", False),
        ("8.8.8.8", False),
        ("2606:4700:4700::1111", False),
    ],
)
def test_addresses_of_our_own_network_are_known_in_every_guise(address: str, inside: bool) -> None:
    """Loopback, private and link-local addresses, also as IPv6, are inside; public ones are not."""
    assert is_inside(address) is inside


def test_a_name_that_changes_its_address_does_not_lead_inside(monkeypatch: pytest.MonkeyPatch, receiver: Any) -> None:
    """A name that is public when it is checked and loopback when it is connected to reaches nobody: it is looked up
    once."""
    public = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))]
    asked: list[str] = []
    tried: list[str] = []

    def look_up(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        return public

    def connect(place: tuple[str, int], *_: Any, **__: Any) -> Any:
        tried.append(place[0])
        raise OSError("not from here")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    assert "not from here" in send("http://rebinding.example/x", "s", b"", private=False)
    assert (asked, tried) == (["rebinding.example"], ["8.8.8.8"])


def test_a_receiver_that_drips_has_one_deadline() -> None:
    """However a receiver lets its answer come, byte by byte, sending to it takes no longer than it may."""
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            while not over.wait(0.05):
                try:
                    connection.sendall(b"H")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        began = time.monotonic()
        said = send(f"http://127.0.0.1:{listening.getsockname()[1]}/", "s", b"", private=True, deadline_s=0.5)
        assert time.monotonic() - began < 5
        over.set()
    assert said == "no answer within 0.5 s"


def test_a_token_asks_so_often_and_no_more() -> None:
    """Past its requests of a minute a token is refused, while another one is not."""
    rate = Rate(3)
    assert [rate.allows("a") for _ in range(4)] == [True, True, True, False]
    assert rate.allows("b")


def test_a_token_past_its_limit_gets_429(tmp_path: Path) -> None:
    """The limit holds for requests over the socket, and says when to come again."""
    with running_server(tmp_path, digesters=0, guard=Guard(requests_a_minute=5)) as server:
        token = server.token("read")
        answers = [server.ask("GET", "/api/v1/jobs", token) for _ in range(7)]
    assert [answer.status for answer in answers] == [200] * 5 + [429] * 2
    assert answers[-1].headers["retry-after"]


@pytest.mark.parametrize("path", ["/incidents/", "/api/v1/incidents/", "/issues/", "/jobs/", "/api/v1/issues/"])
def test_a_number_that_no_row_has_is_no_error_of_the_server(server: RunningServer, everything: str, path: str) -> None:
    """Numbers that are too large for any database, or no numbers, are answered as such."""
    for number in ("99999999999999999999999", "2147483648", "-1", "1e9", "nan"):
        assert server.ask("GET", path + number, everything).status in (404, 422), number


def test_a_full_disk_accepts_nothing_and_says_so(tmp_path: Path) -> None:
    """Where the blob cannot be written the answer is 507, nothing is kept, and the same push goes through later."""

    class Full(BlobFolder):
        full = True

        def put(self, project_id: int, sha256: str, data: Iterable[bytes], most: int) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().put(project_id, sha256, data, most)

    blobs = Full(tmp_path / "blobs")
    with running_server(tmp_path, digesters=0, blobs=blobs) as server:
        token = server.token("push", "read")
        refused = server.ask("PUT", f"/api/v1/blobs/{sha(b'abc')}", token, b"abc")
        assert refused.status == 507
        assert "disk is full" in refused.json["error"]
        assert server.ask("POST", "/api/v1/incidents", token, push_value(b"abc")).status == 409
        blobs.full = False
        assert server.push(token, b"abc") == 1


def test_a_kind_of_another_version_is_grouped_and_shown(tmp_path: Path) -> None:
    """A verdict's outcome and kind that this version does not know are trouble: found by their name, with an issue."""
    with running_server(tmp_path, digesters=0) as server:
        token = server.token("read")
        who = access(server.opened.database)
        now = time.time()
        found = fingerprint("shift", "all_reduce", "tp", "step")
        with server.opened.database.write() as connection:
            number, event = issue_groups.assign(connection, who.project_id, found, now, "")
            values = {"outcome": "desync", "kind": "shift", "confidence": "high", "headline": "ranks differ"}
            connection.execute(
                INCIDENTS.insert().values(
                    project_id=who.project_id,
                    fingerprint_id=number,
                    identity="x",
                    state="digested",
                    received_at=now,
                    happened_at=now,
                    words="ranks differ",
                    **values,
                )
            )
        assert is_trouble("desync")
        assert not is_trouble("ok")
        page = server.ask("GET", "/incidents?kind=shift", token, **HTML).text
        assert "desync: shift" in page
        assert "<option selected>shift</option>" in page
        assert "shift</a>" in server.ask("GET", "/issues", token, **HTML).text
        assert event == "new"


def test_every_page_answers_on_both_databases(database_url: str, tmp_path: Path) -> None:
    """Every page, list, feed and search is answered by SQLite and by Postgres alike, with what was pushed in it."""
    with running_server(tmp_path, database_url, digesters=0) as server:
        token = server.token("push", "read", "admin")
        roster = {"job": "j", "nodes": [{"node": "n1", "leaf": "s1"}], "commit": "c1"}
        assert server.ask("POST", "/api/v1/jobs", token, roster).status == 202
        assert server.push(token, b"rubbish", job="j") == 1
        asked = [path for method, path in routes(server, token) if method == "GET"]
        asked += ["/suspects", "/incidents?q=j+x&kind=gpu&outcome=hang&state=accepted&before=5&before_id=3"]
        asked += [
            "/api/v1/incidents?node=n1&issue=1",
            "/nodes?q=n1&before=5",
            "/nodes/n1",
            "/jobs?before=9",
            "/issues?state=all",
        ]
        statuses = {path: server.ask("GET", path, token, **HTML).status for path in asked}
        assert {path: status for path, status in statuses.items() if status not in (200, 404)} == {}
        assert sum(status == 200 for status in statuses.values()) > 20
        assert server.ask("POST", "/api/v1/history", token, {"accused": [{"kind": "node", "name": "n1"}]}).status == 200
        assert "hangscope_incidents" in server.ask("GET", "/metrics", token).text


# ---- keeping and losing ----------------------------------------------------------------------------------------------


def test_what_a_project_keeps_no_longer_goes(tmp_path: Path) -> None:
    """After the days of its retention an incident goes with its blobs, counted from when it came, whatever a node's
    clock said; another project's stays."""
    with running_server(tmp_path, digesters=0) as server:
        mine, other = server.token("push", "admin"), server.token("push", "read", "admin", project="other")
        assert server.ask("PUT", "/api/v1/retention", mine, {"days": 30}).status == 200
        for token in (mine, other):
            old = server.push(token, b"old evidence")
            server.push(token, b"new evidence", job="later", captured_at=978307200)  # a clock without a battery: 2001
            with server.opened.database.write() as connection:
                long_ago = time.time() - 40 * 86400
                connection.execute(update(INCIDENTS).where(INCIDENTS.c.id == old).values(received_at=long_ago))
        blobs = server.opened.blobs
        assert clear_expired(server.opened.database, blobs) == 1
        with server.opened.database.read() as connection:
            kept = connection.execute(select(BLOBS.c.project_id, BLOBS.c.sha256)).all()
            assert len(connection.execute(select(INCIDENTS)).all()) == 3
            assert connection.execute(select(AUDIT.c.what)).scalars().all() == ["retention"]
        assert sorted(tuple(row) for row in kept) == sorted(
            [(1, sha(b"new evidence")), (2, sha(b"new evidence")), (2, sha(b"old evidence"))]
        )
        assert sum(path.is_file() for path in (tmp_path / "blobs").rglob("*")) == 3


@pytest.mark.postgres
def test_two_servers_on_one_postgres_share_the_work(postgres_server: Any, tmp_path: Path) -> None:
    """What one server accepts another digests, and each incident once."""
    url = postgres_server.database()
    with running_server(tmp_path / "a", url, digesters=0) as front:
        token = front.token("push", "read")
        number = front.push(token, bundle("sleep"))
        with running_server(tmp_path / "b", url, digesters=0) as back:
            back.opened.blobs = front.opened.blobs
            back.workers.start(1)
            assert front.digested(token, number)["kind"] == "absent"


@pytest.mark.postgres
def test_a_database_that_is_gone_is_said_and_nothing_is_accepted(tmp_path: Path) -> None:
    """While Postgres is stopped every request says so with 503, and afterwards the same push goes through."""
    from kits.postgres import BINARIES, REASON, running_postgres

    if BINARIES is None:
        pytest.skip(REASON)
    with running_postgres() as postgres, running_server(tmp_path, postgres.database(), digesters=0) as server:
        token = server.token("push")
        postgres.process.send_signal(signal.SIGINT)  # at once, without waiting for those who are connected
        server.opened.database.engine.dispose()
        postgres.process.wait(20)
        gone = server.ask("PUT", f"/api/v1/blobs/{sha(b'abc')}", token, b"abc")
        assert gone.status == 503
        assert "nothing was accepted" in gone.json["hint"]
        assert server.ask("GET", "/healthz").status == 503
