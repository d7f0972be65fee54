"""Agents push while server processes are killed with SIGKILL at random: what was accepted is there, once and whole.

    cd tests && python -m kits.kill_servers --agents 50 --kills 1000        # by hand; an hour or so on two cores
    cd tests && nice python -m kits.kill_servers --kills 1000 --minutes 60  # what an hour allows, checked all the same

Two servers share one Postgres (with --sqlite one server has a file) and one folder of blobs. An agent sends as `push`
does, and where the connection breaks it sends the same again, to whichever server answers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import func, select

from hangscope.errors import HangscopeError
from hangscope.push.server_client import ServerClient
from hangscope.server.serve_process import ServeOptions, open_stores
from hangscope.server.store import access_tokens
from hangscope.server.store.tables import INCIDENTS, PARTS, WORK
from kits import postgres


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Killed:
    """`servers` processes on one store, of which one after the other is killed and started again."""

    options: ServeOptions
    servers: int
    ports: list[int] = field(default_factory=list)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        self.ports = [free_port() for _ in range(self.servers)]
        self._processes = [self._start(port) for port in self.ports]

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        words = ["serve", "--data", str(self.options.data), "--listen", f"127.0.0.1:{port}", "--digesters", "0"]
        more = ["--database", self.options.database] if self.options.database else []
        return subprocess.Popen(
            [sys.executable, "-m", "hangscope", *words, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill_one(self, chance: random.Random) -> None:
        number = chance.randrange(self.servers)
        os.kill(self._processes[number].pid, signal.SIGKILL)
        self._processes[number].wait()
        self._processes[number] = self._start(self.ports[number])

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@dataclass
class Pushed:
    """What agents got an answer for: bundle's checksum → the incident's number."""

    accepted: dict[str, set[int]] = field(default_factory=dict)
    broken: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def push_many(name: str, token: str, killed: Killed, count: int, until: threading.Event, pushed: Pushed) -> None:
    """One agent: at least `count` bundles, and more until the killing is over."""
    chance = random.Random(name)
    number = 0
    while number < count or not until.is_set():
        data = f"evidence {number} of {name} ".encode() * chance.randrange(1, 5000)
        sha256 = hashlib.sha256(data).hexdigest()
        value = {
            "cluster": "c",
            "job": f"{name}-{number}",
            "bundle": {"sha256": sha256, "size": len(data), "chunks": [sha256]},
        }
        while True:
            client = ServerClient(f"http://127.0.0.1:{chance.choice(killed.ports)}", token, timeout_s=20)
            try:
                if client.lacking([sha256]):
                    client.put(sha256, data)
                incident = client.incident(value)
            except HangscopeError:
                pushed.broken += 1
                time.sleep(0.05 + chance.random() / 5)
                continue
            finally:
                client.close()
            with pushed.lock:
                pushed.accepted.setdefault(sha256, set()).add(incident)
            break
        number += 1


def kill_at_random(killed: Killed, pushed: Pushed, chance: random.Random, kills: int, until: float) -> int:
    """Kill `kills` times, or until it is late; how often it was."""
    for done in range(kills):
        before = len(pushed.accepted)
        patience = time.monotonic() + 30
        while len(pushed.accepted) == before and time.monotonic() < patience:  # a server is up again and answers
            time.sleep(0.01)
        time.sleep(chance.random() / 3)
        if time.monotonic() > until:
            return done
        killed.kill_one(chance)
        if done % 50 == 49:
            print(f"{done + 1} kills, {len(pushed.accepted)} accepted", file=sys.stderr, flush=True)
    return kills


def play(
    options: ServeOptions, *, servers: int, agents: int, kills: int, pushes: int, seed: int = 0, minutes: float = 1e9
) -> dict[str, int]:
    """Kill `kills` times while `agents` push; returns what was counted. Raises where something is lost or twice."""
    opened = open_stores(options)
    with opened.database.write() as connection:
        token = access_tokens.make(connection, access_tokens.project(connection, "llm"), "agents", ["push"])
    killed = Killed(options, servers)
    pushed = Pushed()
    over = threading.Event()
    killed.start()
    try:
        threads = [
            threading.Thread(target=push_many, args=(f"a{n}", token, killed, pushes, over, pushed), daemon=True)
            for n in range(agents)
        ]
        for thread in threads:
            thread.start()
        done = kill_at_random(killed, pushed, random.Random(seed), kills, time.monotonic() + minutes * 60)
        over.set()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive(), "an agent waits for ever"
    finally:
        killed.end()
    with opened.database.read() as connection:
        parts = connection.execute(select(PARTS)).all()
        incidents = connection.execute(select(func.count()).select_from(INCIDENTS)).scalar_one()
        waiting = connection.execute(select(func.count()).select_from(WORK)).scalar_one()
    by_sha = {part.sha256: part.incident_id for part in parts}
    assert len(by_sha) == len(parts) == incidents == waiting, "an incident is half, or twice"
    for sha256, numbers in pushed.accepted.items():
        assert numbers == {by_sha.get(sha256)}, f"accepted, but not there as it was accepted: {sha256}"
    for part in parts:
        for chunk in json.loads(part.chunks):
            data = b"".join(opened.blobs.read(part.project_id, chunk))
            assert hashlib.sha256(data).hexdigest() == chunk, "a blob is half"
    opened.database.close()
    return {"accepted": len(pushed.accepted), "kills": done, "broken connections": pushed.broken, "there": incidents}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sqlite", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="hangscope-kills-") as folder:
        url = None if given.sqlite else stack.enter_context(postgres.running_postgres()).database()
        options = ServeOptions(data=Path(folder), database=url)
        began = time.monotonic()
        counted = play(
            options,
            servers=1 if given.sqlite else 2,
            agents=given.agents,
            kills=given.kills,
            pushes=1,
            seed=given.seed,
            minutes=given.minutes,
        )
        print(", ".join(f"{count:,} {what}" for what, count in counted.items()), f"in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
