"""A server under attack, by hand: what another project, and a probe, notice of it.

    cd tests && python -m kits.attack_server --minutes 5                 # poison pills, silence and floods at once
    cd tests && python -m kits.attack_server --minutes 5 --postgres      # the same against two servers on one Postgres
    cd tests && python -m kits.attack_server --crowd --minutes 1         # 10,000 idle connections, 200 slow clients,
                                                                         # 1,000 wrong tokens a second

The attackers have push tokens of one project each, and a process of their own. Another project pushes a bundle every
two seconds and waits until it is diagnosed; a probe asks /healthz ten times a second, of the server and, for what the
machine itself does at that moment, of one that nobody attacks. At the end: how long each took.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import re
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.server.serve_process import ServeOptions, open_stores
from hangscope.server.store import access_tokens
from kits import postgres
from kits.fleet import bundle, push_value, sha


@dataclass
class Seen:
    """What took how long, and what was answered."""

    took: dict[str, list[float]] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str, seconds: float, answer: object = "") -> None:
        with self.lock:
            self.took.setdefault(what, []).append(seconds)
            self.answers[f"{what}: {answer}"] += 1

    def count(self, what: str, number: int = 1) -> None:
        with self.lock:
            self.answers[what] += number


def ask(
    port: int, method: str, path: str, token: str = "", body: bytes = b"", timeout: float = 60
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def again_and_again(over: threading.Event, seen: Seen, what: str, act: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        while not over.is_set():
            try:
                seen.count(f"{what}: {act()}")
            except (OSError, http.client.HTTPException) as error:
                seen.count(f"{what}: {type(error).__name__}")
                time.sleep(0.05)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# ---- whoever only wants to work --------------------------------------------------------------------------------------


def probe(over: threading.Event, seen: Seen, ports: list[int], what: str = "health") -> None:
    while not over.wait(0.1):
        began = time.monotonic()
        try:
            status, _ = ask(random.choice(ports), "GET", "/healthz", timeout=30)
        except (OSError, http.client.HTTPException) as error:
            status = type(error).__name__  # type: ignore[assignment]
        seen.note(what, time.monotonic() - began, status)


def work(over: threading.Event, seen: Seen, ports: list[int], token: str) -> None:
    """Push a small real incident, and wait for its diagnosis."""
    original = bundle("sleep")
    number = 0
    while not over.wait(2.0):
        number += 1
        data = original + number.to_bytes(4, "big")  # behind its end, gzip reads no further
        port = random.choice(ports)
        began = time.monotonic()
        try:
            ask(port, "PUT", f"/api/v1/blobs/{sha(data)}", token, data)
            value = push_value(data, job=f"good-{number}")
            status, raw = ask(port, "POST", "/api/v1/incidents", token, json.dumps(value).encode())
            seen.note("push", time.monotonic() - began, status)
            if status != 202:
                continue
            incident = json.loads(raw)["incident"]
            while True:
                _, raw = ask(port, "GET", f"/api/v1/incidents/{incident}", token)
                state = json.loads(raw).get("state")
                if state != "accepted" or time.monotonic() - began > 300:
                    break
                time.sleep(0.1)
            seen.note("digest", time.monotonic() - began, state)
        except (OSError, http.client.HTTPException) as error:
            seen.note("push", time.monotonic() - began, type(error).__name__)


# ---- attackers -------------------------------------------------------------------------------------------------------


def poison(port: int, token: str) -> object:
    """A bundle whose group's name no database takes, with a tail that makes it another one each time."""
    from server.test_digest import renamed_group

    data = renamed_group(random.choice(("dp\\ud800", "dp\\u0000", "\\udce9"))) + secrets.token_bytes(8)
    ask(port, "PUT", f"/api/v1/blobs/{sha(data)}", token, data)
    value = push_value(data, job=secrets.token_hex(4))
    return ask(port, "POST", "/api/v1/incidents", token, json.dumps(value).encode())[0]


def roster(port: int, token: str) -> object:
    """As many new machines as fit into one request."""
    name = secrets.token_hex(3)
    nodes = [{"node": f"{name}{n}", "nics": [f"i{i}" for i in range(60)]} for n in range(1500)]
    return ask(port, "POST", "/api/v1/jobs", token, json.dumps({"job": name, "nodes": nodes}).encode())[0]


def large(port: int, token: str) -> object:
    """Two chunks of eight MiB, claimed as two GiB."""
    chunks = [bytes([n]) * (8 << 20) for n in (1, 2)]
    for chunk in chunks:
        ask(port, "PUT", f"/api/v1/blobs/{sha(chunk)}", token, chunk)
    order = [random.choice(chunks) for _ in range(200)]
    whole = hashlib.sha256()
    for chunk in order:
        whole.update(chunk)
    said = {"sha256": whole.hexdigest(), "size": 200 * (8 << 20), "chunks": [sha(chunk) for chunk in order]}
    value = {"job": secrets.token_hex(4), "bundle": said}
    return ask(port, "POST", "/api/v1/incidents", token, json.dumps(value).encode())[0]


def silent(port: int, connections: list[socket.socket], most: int) -> object:
    """One more connection that says nothing; the oldest goes where there are `most`."""
    connections.append(socket.create_connection(("127.0.0.1", port), timeout=30))
    time.sleep(0.01)
    if len(connections) > most:
        connections.pop(0).close()
    return "opened"


def trickle(port: int, over: threading.Event, token: str) -> object:
    """A head, or with a token a body, a byte a second."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        if token:
            head = f"PUT /api/v1/blobs/{'0' * 64} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            connection.sendall(f"{head}Content-Length: 8000000\r\n\r\n".encode())
        else:
            connection.sendall(b"GET / HTTP/1.1\r\nX-A: ")
        while not over.wait(1.0):
            connection.sendall(b"a")
    return "kept to the end"


def wrong_tokens(over: threading.Event, seen: Seen, port: int, a_second: float) -> threading.Thread:
    """So many requests a second with tokens that are none, over connections that are kept."""

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        due = time.monotonic()
        while not over.is_set():
            due = max(due + 1 / a_second, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                connection.request("GET", "/api/v1/jobs", headers={"Authorization": f"Bearer hs_{random.random()}"})
                answer = connection.getresponse()
                answer.read()
                seen.count(f"wrong token: {answer.status}")
            except (OSError, http.client.HTTPException) as error:
                seen.count(f"wrong token: {type(error).__name__}")
                connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


PARTS = {False: ("finding",), True: ("idle", "slow", "tokens")}
"""Of an attack: each has a process of its own."""


def attack(ports: list[int], tokens: list[str], over: threading.Event, seen: Seen, part: str) -> None:
    port = ports[0]
    held: list[socket.socket] = []
    if part == "idle":
        again_and_again(over, seen, "idle connections", lambda: _ten_thousand(port, held, over))
    elif part == "slow":
        for _ in range(200):
            again_and_again(over, seen, "slow client", lambda: trickle(port, over, ""))
    elif part == "tokens":
        for _ in range(10):
            wrong_tokens(over, seen, port, 100)
    if part != "finding":
        return
    again_and_again(over, seen, "silent connection", lambda: silent(port, held, 2000))
    for token in tokens:
        for one in (poison, roster, large):
            for _ in range(2):
                again_and_again(over, seen, one.__name__, lambda one=one, token=token: one(random.choice(ports), token))
        for _ in range(10):
            again_and_again(over, seen, "slow body", lambda token=token: trickle(port, over, token))


def _ten_thousand(port: int, held: list[socket.socket], over: threading.Event) -> object:
    while len(held) < 10_000 and not over.is_set():
        held.append(_from_somewhere(port, len(held)))
        time.sleep(0.001)
    while not over.wait(0.5):
        for index, each in enumerate(held):  # whatever was closed is opened again
            each.setblocking(False)
            try:
                gone = not each.recv(1)
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone and not over.is_set():
                each.close()
                held[index] = _from_somewhere(port, index)
                time.sleep(0.002)
    return "over"


def _from_somewhere(port: int, number: int) -> socket.socket:
    """A connection from one of a hundred addresses."""
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(f"127.0.1.{number % 100 + 1}", 0))


# ---- together --------------------------------------------------------------------------------------------------------


def start(options: ServeOptions, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    words = ["serve", "--data", str(options.data), "--listen", "127.0.0.1:0", "--project-gib", "1"]
    more = ["--database", options.database] if options.database else []
    with log.open("wb") as err:
        process = subprocess.Popen([sys.executable, "-m", "hangscope", *words, *more], stderr=err)
    until = time.monotonic() + 60
    while not (found := re.search(r"listening on \S+:(\d+)", log.read_text())):
        assert time.monotonic() < until and process.poll() is None, log.read_text()
        time.sleep(0.1)
    return process, int(found[1])


def attacker() -> None:
    """The attackers' process: what to do comes on stdin, and until that ends they go on."""
    order = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    over, seen = threading.Event(), Seen()
    attack(order["ports"], order["tokens"], over, seen, order["part"])
    sys.stdin.read()
    over.set()
    time.sleep(2)
    print(json.dumps(seen.answers), flush=True)
    os._exit(0)  # threads may still wait for the server


def play(folder: Path, database: str | None, *, minutes: float, servers: int, crowd: bool, projects: int) -> Seen:
    options = ServeOptions(data=folder, database=database)
    opened = open_stores(options)
    with opened.database.write() as connection:
        made = {
            name: access_tokens.make(connection, access_tokens.project(connection, name), "x", ["push", "read"])
            for name in ("good", *(f"evil{number}" for number in range(projects)))
        }
    opened.database.close()
    seen = Seen()
    over = threading.Event()
    started = [start(options, folder / f"log{number}") for number in range(servers)]
    ports = [port for _, port in started]
    started.append(start(ServeOptions(data=folder / "quiet"), folder / "log-quiet"))
    largest = 0
    evil: list[subprocess.Popen[bytes]] = []
    try:
        threads = [
            threading.Thread(target=probe, args=(over, seen, ports), daemon=True),
            threading.Thread(target=probe, args=(over, seen, [started[-1][1]], "health elsewhere"), daemon=True),
            threading.Thread(target=work, args=(over, seen, ports, made.pop("good")), daemon=True),
        ]
        for thread in threads:
            thread.start()
        words = [sys.executable, "-m", "kits.attack_server", "--attacker"]
        for part in PARTS[crowd]:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdin is not None
            order = {"ports": ports, "tokens": list(made.values()), "part": part}
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            evil.append(process)
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            time.sleep(1)
            temporary = Path(tempfile.gettempdir()).glob("hangscope-digest-*/in/*")
            largest = max(largest, sum(_size(path) for path in temporary))
        over.set()
        for process in evil:
            seen.answers.update(json.loads(process.communicate()[0]))
        for thread in threads:
            thread.join(320)
    finally:
        over.set()
        for process, _ in started:
            process.kill()
            process.wait()
    seen.answers["bytes in folders of digests, at most"] = largest
    return seen


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--crowd", action="store_true")
    parser.add_argument("--projects", type=int, default=1, help="attackers' projects")
    parser.add_argument("--attacker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attacker:
        attacker()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hangscope-attack-")))
        url = stack.enter_context(postgres.running_postgres()).database() if given.postgres else None
        seen = play(
            folder,
            url,
            minutes=given.minutes,
            servers=2 if given.postgres else 1,
            crowd=given.crowd,
            projects=given.projects,
        )
        for what, took in seen.took.items():
            took.sort()
            high = [took[min(len(took) - 1, int(len(took) * share))] for share in (0.95, 0.99)]
            print(
                f"{what}: {len(took)}, median {statistics.median(took) * 1000:.0f} ms, 95 % {high[0] * 1000:.0f} ms, "
                f"99 % {high[1] * 1000:.0f} ms, longest {took[-1] * 1000:.0f} ms"
            )
        for what, count in sorted(seen.answers.items()):
            print(f"{count:>9,} {what}")
        print(f"load of this machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
