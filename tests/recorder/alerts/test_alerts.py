"""Alerts of a hang, against a real server: what arrives, what is never said, and that nobody waits for it."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hangscope.cli import post_alert
from hangscope.errors import SettingsError
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.alerts.alert_targets import AlertTarget, alert_target
from hangscope.recorder.alerts.send_alerts import Alerts

SECRET = "T0K3N-in-the-address"
VERDICT: dict[str, Any] = {
    "outcome": "hang",
    "kind": "dead",
    "confidence": "high",
    "headline": "rank 1 ended with ValueError: password=hunter2-Secret <!channel>",
    "summary": "Rank 1 ended.",
    "waiting_s": 31.0,
    "culprits": [
        {
            "rank": 1,
            "node": "n1",
            "why": "ended",
            "where": {"file": "/job/train.py", "line": 8, "function": "load", "code": "secret_line()", "frames": []},
        }
    ],
    "next_steps": ["look at it"],
}
ABOUT = {"job": "j7", "attempt": "0"}


class Hook:
    """An address that takes alerts; `statuses` are its first answers, then 200."""

    def __init__(self, *statuses: int, silent: bool = False) -> None:
        self.got: list[dict[str, Any]] = []
        self.asked = 0
        answers = list(statuses)
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.asked += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if silent:
                    hook.released.wait(30)
                    return
                status = answers.pop(0) if answers else 200
                if status == 200:
                    hook.got.append(json.loads(body))
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.released = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{SECRET}"

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def in_file(tmp_path: Path, address: str, name: str = "hook") -> Path:
    path = tmp_path / name
    path.write_text(f"{address}\n")
    return path


def send(targets: list[AlertTarget], tmp_path: Path, **more: Any) -> list[str]:
    said: list[str] = []
    alerts = Alerts(targets, wandb=False, say=said.append)
    for thread in alerts.send(tmp_path / "incident", {**VERDICT, **more}, ABOUT, ()):
        thread.join(60)
    return said


def test_a_webhook_gets_a_few_stable_fields(tmp_path: Path, hook: Hook) -> None:
    """Who, where, what and how sure, redacted; no source text and no frames."""
    assert send([AlertTarget("webhook", in_file(tmp_path, hook.address))], tmp_path) == []
    (alert,) = hook.got
    assert alert["schema"] == "hangscope.alert/1"
    assert (alert["outcome"], alert["kind"], alert["confidence"], alert["job"]) == ("hang", "dead", "high", "j7")
    assert alert["incident"] == str(tmp_path / "incident")
    assert alert["culprits"] == [
        {
            "rank": 1,
            "node": "n1",
            "why": "ended",
            "where": {"file": "/job/train.py", "line": 8, "function": "load"},
        }
    ]
    assert "hunter2" not in json.dumps(alert)
    assert "secret_line" not in json.dumps(alert)


def test_slack_gets_its_own_shape(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text, in which evidence can neither call a channel nor hide a link; the address is in a variable."""
    monkeypatch.setenv("SLACK_HOOK", hook.address)
    assert send([AlertTarget("slack", variable="SLACK_HOOK")], tmp_path) == []
    (body,) = hook.got
    assert list(body) == ["text"]
    assert body["text"].startswith("*HANG* in job j7: rank 1 ended with ValueError")
    assert "rank 1 on n1 at /job/train.py:8 in load" in body["text"]
    assert "&lt;!channel&gt;" in body["text"]
    assert "hunter2" not in body["text"]


def test_an_alert_without_a_verdict_says_so(tmp_path: Path, hook: Hook) -> None:
    """Where nobody could diagnose, people hear of the stall all the same."""
    said: list[str] = []
    alerts = Alerts([AlertTarget("webhook", in_file(tmp_path, hook.address))], wandb=False, say=said.append)
    for thread in alerts.send(tmp_path, {}, ABOUT, ()):
        thread.join(60)
    assert said == []
    assert (hook.got[0]["outcome"], hook.got[0]["culprits"]) == ("unknown", [])


def test_what_fails_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two refusals of a busy server are no reason to tell nobody; a wrong address is not asked twice."""
    monkeypatch.setattr(post_alert, "PAUSE_S", 0.05)
    busy = Hook(503, 429)
    assert post_alert.post(busy.address, {"a": 1}) == ""
    assert busy.asked == 3
    busy.close()
    wrong = Hook(404)
    assert post_alert.post(wrong.address, {"a": 1}) == "the other side answered 404"
    assert wrong.asked == 1
    wrong.close()


def test_nobody_is_led_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect is not followed: the verdict goes where the user said."""
    monkeypatch.setattr(post_alert, "PAUSE_S", 0.05)
    moved = Hook(302)
    assert post_alert.post(moved.address, {"a": 1}) == "the other side answered 302"
    moved.close()


def test_a_channel_that_hangs_delays_nobody_and_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting an alert takes no time; what went wrong is one line without the address, however often."""
    monkeypatch.setattr("hangscope.recorder.alerts.send_alerts.SENT_S", 2.0)
    silent = Hook(silent=True)
    said: list[str] = []
    target = AlertTarget("webhook", in_file(tmp_path, silent.address))
    alerts = Alerts([target], wandb=False, say=said.append)
    begun = time.monotonic()
    threads = [*alerts.send(tmp_path, VERDICT, ABOUT, ()), *alerts.send(tmp_path, VERDICT, ABOUT, ())]
    assert time.monotonic() - begun < 1.0
    listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout
    assert SECRET not in listed
    for thread in threads:
        thread.join(60)
    silent.close()
    (line,) = said
    assert line == f"warning: --on-hang webhook:{tmp_path}/hook: not sent within 2 s"


def test_an_address_on_the_command_line_is_refused_and_not_repeated() -> None:
    """Everybody can read a command line; the message does not hold what must not be there."""
    with pytest.raises(SettingsError, match="can be read by everyone") as refused:
        alert_target(f"slack:https://hooks.example.com/{SECRET}", {})
    assert SECRET not in f"{refused.value}{refused.value.hint}"


@pytest.mark.parametrize("text", ["", "\n", "hooks.example.com/x", "file:///etc/passwd", "https://", "http://a b/"])
def test_a_file_without_an_address_is_found_before_the_job(tmp_path: Path, text: str) -> None:
    """A slip is an error at the start that quotes nothing of the file."""
    path = in_file(tmp_path, text)
    with pytest.raises(SettingsError, match="no http:// or https:// address"):
        OnHang.of((f"webhook:{path}",))


def test_the_words_of_on_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alerts, commands and kill may be given together; a variable that is not set, and no file, are slips."""
    path = in_file(tmp_path, "https://example.com/hook")
    found = OnHang.of(("kill", f"slack:{path}", "wandb", "cat > /dev/null"))
    assert (found.kill, found.wandb, found.commands) == (True, True, ("cat > /dev/null",))
    assert found.alerts == (AlertTarget("slack", path),)
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    for word in ("slack:env:NO_SUCH_HOOK", f"slack:{tmp_path}/none", "webhook:"):
        with pytest.raises(SettingsError):
            OnHang.of((word,))


def test_kubeflow_gets_the_verdict_over_tls_with_the_pods_token(tmp_path: Path, hook: Hook) -> None:
    """Five short metrics and the time; to a server that the pod's authority has signed, and to no other."""
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    words += ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "ca.crt")]
    words += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key")
    hook.server.socket = context.wrap_socket(hook.server.socket, server_side=True)
    address = hook.address.replace("http:", "https:")
    (tmp_path / "token").write_text("pods-own-token\n")
    body = post_alert.kubeflow(post_alert.alert_of(VERDICT, "i", "j7", "0"))
    ca, token = str(tmp_path / "ca.crt"), str(tmp_path / "token")
    assert post_alert.post_status(address, body, token, ca) == ""
    (got,) = hook.got
    assert {each["name"]: each["value"] for each in got["trainerStatus"]["metrics"]} == {
        "hangscope_outcome": "hang",
        "hangscope_kind": "dead",
        "hangscope_confidence": "high",
        "hangscope_culprits": "1",
        "hangscope_where": "train.py:8",
    }
    assert got["trainerStatus"]["lastUpdatedTime"].endswith("Z")
    assert "no connection" in post_alert.post_status(address, body, token, None)
    assert "cannot be read" in post_alert.post_status(address, body, str(tmp_path / "none"), ca)
    assert len(hook.got) == 1


def test_kubeflow_needs_a_pod_of_a_trainjob() -> None:
    """Elsewhere it is a slip, said at the start; in one the address is the controller's."""
    with pytest.raises(SettingsError, match="KUBEFLOW_TRAINER_STATUS_URL is not set"):
        alert_target("kubeflow", {})
    target = alert_target("kubeflow", {"KUBEFLOW_TRAINER_STATUS_URL": "https://trainer.kubeflow.svc/status"})
    assert target is not None
    assert (target.kind, target.name) == ("kubeflow", "kubeflow")
