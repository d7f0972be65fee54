"""`hangscope serve --admission`: a real process, asked over TLS as the API server asks, and by whoever means harm."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def certificate(folder: Path, name: str = "tls") -> tuple[Path, Path]:
    key, crt = folder / f"{name}.key", folder / f"{name}.crt"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(crt)]
    subprocess.run(words, check=True, capture_output=True)
    return crt, key


class Served:
    def __init__(self, folder: Path) -> None:
        self.crt, self.key = certificate(folder)
        words = ["-m", "hangscope", "serve", "--admission", "127.0.0.1:0"]
        words += ["--tls-cert", str(self.crt), "--tls-key", str(self.key)]
        environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self.process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True, env=environ)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.port = int(line.rpartition(":")[2])

    def ask(self, body: bytes, path: str = "/", method: str = "POST") -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(self.crt))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(30) == 0


def review(**request: Any) -> bytes:
    pod = {"metadata": {"labels": {"hangscope": "on"}}, "spec": {"containers": [{"name": "train"}]}}
    asked = {"uid": "u-1", "kind": {"kind": "Pod"}, "object": pod, **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()


def test_a_pod_is_allowed_with_a_patch(served: Served) -> None:
    """The answer has the request's uid and version, and the patch in base64."""
    status, body = served.ask(review())
    value = json.loads(body)
    assert (status, value["apiVersion"], value["kind"]) == (200, "admission.k8s.io/v1", "AdmissionReview")
    answer = value["response"]
    assert (answer["uid"], answer["allowed"], answer["patchType"]) == ("u-1", True, "JSONPatch")
    assert json.loads(base64.b64decode(answer["patch"]))[0]["path"] == "/spec/containers/0/env"


def test_what_is_no_pod_is_allowed_as_it_is(served: Served) -> None:
    """Another kind, a deletion without an object, a pod that nobody asked for."""
    bare = {"spec": {"containers": [{"name": "train"}]}}
    for request in ({"kind": {"kind": "Service"}}, {"object": None}, {"object": bare}, {"object": [1]}):
        value = json.loads(served.ask(review(**request))[1])
        assert value["response"] == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"request": {}}',
        b'{"request": {"uid": 7}}',
        b"[" * 200_000,
        b'{"request":' + b'{"a":' * 50_000,
        b'{"n": ' + b"9" * 100_000 + b"}",
        b"\xff\xfe" * 1000,
        json.dumps({"request": {"uid": "u" * 100_000}}).encode(),
    ],
    ids=["empty", "cut", "a list", "no uid", "a number", "deep", "deeper", "digits", "no text", "a long uid"],
)
def test_hostile_bodies_are_refused_in_a_moment(served: Served, body: bytes) -> None:
    """And the next pod is answered as before."""
    begun = time.monotonic()
    assert served.ask(body)[0] == 400
    assert time.monotonic() - begun < 10
    assert served.ask(review())[0] == 200


def test_too_much_is_not_read(served: Served) -> None:
    """By its length, before a byte of it."""
    context = ssl.create_default_context(cafile=str(served.crt))
    connection = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=20, context=context)
    connection.putrequest("POST", "/")
    connection.putheader("Content-Length", "99999999")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert served.ask(b"", "/healthz", "GET") == (200, b'"ok"')


def test_clients_that_say_nothing_keep_nobody_waiting(served: Served) -> None:
    """More of them than there are places: each has its seconds, and the API server is answered again after those."""
    idle = [socket.create_connection(("127.0.0.1", served.port), timeout=20) for _ in range(80)]
    until = time.monotonic() + 30
    while True:
        try:
            if served.ask(review())[0] == 200:
                break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.3)
    for each in idle:
        each.close()


def test_it_needs_a_certificate(tmp_path: Path) -> None:
    """The API server asks nobody without; a mistake is said at the start."""
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-m", "hangscope", "serve", "--admission", "127.0.0.1:0"]
    done = subprocess.run(words, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr
    (tmp_path / "none").write_text("no certificate")
    words += ["--tls-cert", str(tmp_path / "none"), "--tls-key", str(tmp_path / "none")]
    done = subprocess.run(words, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
