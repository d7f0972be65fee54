"""How fast a full server answers: lists, searches, pages and pushes, beside /healthz in the same run.

    python benchmarks/bench_server.py                                  # Postgres (Debian's package), 100,000 incidents
    python benchmarks/bench_server.py --sqlite --incidents 10000 --nodes 1000 --exposures 100000

A database is filled, `hangscope serve` is started on it as a process, and each question is asked in turn, so that what
else the machine does meets all of them alike. Times are of whole requests over one kept connection, as a browser or an
agent sees them. On a machine that others use, look at the CPU that a request takes in the server and in Postgres (from
/proc, nobody waits in it), and at the ratio to /healthz, which asks the database for nothing. The summary of history,
which a process beside the server makes when something has changed, is made before and timed by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Table, text

from hangscope.server.history.summary import make
from hangscope.server.serve_process import ServeOptions, open_stores
from hangscope.server.store import access_tokens
from hangscope.server.store.database import Database
from hangscope.server.store.tables import (
    ACCUSED,
    ENTITIES,
    EXPOSURES,
    FINGERPRINTS,
    INCIDENTS,
    ISSUES,
    JOBS,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from kits import postgres  # a Postgres of our own

DAY_S = 86400.0
NODES_A_JOB = 8
KINDS = ("absent", "absent", "absent", "dead", "gpu", "network", "mismatch", "frozen")
FUNCTIONS = ("read_shard", "save_checkpoint", "next_batch", "compile_step", "all_gather_params", "log_metrics")


def put(database: Database, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Many rows at once: COPY on Postgres, executemany on SQLite."""
    with database.write() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        names = ", ".join(columns)
        if database.is_sqlite:
            raw.executemany(f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' * len(columns))})", rows)
            return
        with raw.cursor() as cursor:
            with cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            if "id" in columns:
                cursor.execute(f"SELECT setval('{table.name}_id_seq', (SELECT max(id) FROM {table.name}))")


def fill(database: Database, project: int, *, incidents: int, nodes: int, exposures: int) -> None:
    """Jobs of twelve weeks on `nodes`, of which some hung; issues and accusations as a digest would keep them."""
    chance = random.Random(0)
    now = time.time()
    jobs = max(incidents, exposures // NODES_A_JOB)
    entity = ("id", "project_id", "kind", "name", "first_seen_at", "last_seen_at")
    put(
        database,
        ENTITIES,
        entity,
        ((n + 1, project, "node", f"gpu-worker-{n}", now - 84 * DAY_S, now - n) for n in range(nodes)),
    )
    started = sorted(now - chance.random() * 84 * DAY_S for _ in range(jobs))
    job = ("id", "project_id", "cluster", "name", "attempt", "started_at", "ended_at", "details")
    put(
        database,
        JOBS,
        job,
        (
            (n + 1, project, "west", f"train-{chance.randrange(40)}-{n}", "0", at, at + 3600, "{}")
            for n, at in enumerate(started)
        ),
    )
    put(database, EXPOSURES, ("job_id", "entity_id", "ranks"), _exposures(chance, jobs, nodes, exposures))
    issues = max(20, incidents // 50)
    issue = ("id", "project_id", "title", "state", "first_seen_at", "last_seen_at", "resolved_commits")
    titles = [f"absent in loader.{chance.choice(FUNCTIONS)}_{n}, all_reduce of mesh_dp" for n in range(issues)]
    put(
        database,
        ISSUES,
        issue,
        ((n + 1, project, titles[n], "open", now - 80 * DAY_S, now - n * 60, "[]") for n in range(issues)),
    )
    put(
        database,
        FINGERPRINTS,
        ("id", "project_id", "issue_id", "value", "explanation"),
        ((n + 1, project, n + 1, f"hs1:{n:016x}", json.dumps({"kind": "absent"})) for n in range(issues)),
    )
    hung = sorted(chance.sample(range(jobs), incidents))
    put(database, INCIDENTS, _INCIDENT, _incidents(chance, project, hung, started, nodes, titles))
    put(
        database,
        ACCUSED,
        ("incident_id", "entity_id", "role"),
        ((n + 1, _node_of(row, nodes) + 1, "culprit") for n, row in enumerate(hung)),
    )
    with database.write() as connection:
        connection.execute(text("ANALYZE"))


_INCIDENT = (
    *("id", "project_id", "job_id", "fingerprint_id", "identity", "state", "received_at", "happened_at"),
    *("digested_at", "outcome", "kind", "confidence", "headline", "summary", "words"),
)


def _node_of(job: int, nodes: int) -> int:
    return (job * 7919) % nodes


def _exposures(chance: random.Random, jobs: int, nodes: int, exposures: int) -> Iterator[tuple[int, int, str]]:
    left = exposures
    for job in range(jobs):
        first = _node_of(job, nodes)
        for each in range(min(NODES_A_JOB, left)):
            left -= 1
            yield job + 1, (first + each) % nodes + 1, str(each)


def _incidents(
    chance: random.Random,
    project: int,
    hung: Sequence[int],
    started: Sequence[float],
    nodes: int,
    titles: Sequence[str],
) -> Iterator[tuple[Any, ...]]:
    for n, job in enumerate(hung):
        at = started[job] + chance.random() * 3600
        issue = min(int(chance.paretovariate(0.7)) - 1, len(titles) - 1)
        node = f"gpu-worker-{_node_of(job, nodes)}"
        kind = chance.choice(KINDS)
        headline = f"rank {chance.randrange(64)} is in {titles[issue].partition(',')[0]}, never launched all_reduce"
        words = f"west train {job} {headline} hs1:{issue:016x} {node}".lower()
        state = ("digested", at, "hang", kind, chance.choice(("high", "high", "medium", "low")))
        identity = f"job-{job}"
        yield n + 1, project, job + 1, issue + 1, identity, state[0], at, at, *state[1:], headline, headline, words


def questions(incidents: int, nodes: int) -> dict[str, str]:
    """What people ask, with the least convenient among them."""
    return {
        "healthz": "/healthz",
        "incidents": "/incidents",
        "incidents, older": "/incidents?before={older}&before_id=1",
        "incidents, API, 200": "/api/v1/incidents?limit=200",
        "search: a node": "/incidents?q=gpu-worker-{node}",
        "search: a function": "/incidents?q=save_checkpoint",
        "search: part of a word": "/incidents?q=eckpoin",
        "search: two words": "/incidents?q=save_checkpoint+gpu-worker-{node}",
        "search: nothing": "/incidents?q=no-such-thing",
        "filter: kind": "/incidents?kind=network",
        "filter: kind that is rare": "/incidents?kind=deadlock",
        "filter: node": "/api/v1/incidents?node=gpu-worker-{node}",
        "issues": "/issues",
        "an issue": "/issues/1",
        "nodes": "/nodes",
        "nodes by name": "/nodes?q=worker-{node}",
        "a node": "/nodes/gpu-worker-{node}",
        "jobs": "/jobs",
        "a job": "/jobs/{job}",
        "suspects": "/suspects",
        "an incident": "/incidents/{incident}",
        "metrics": "/metrics",
    }


class Client:
    """One kept connection with a token."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "text/html"}

    def ask(self, method: str, path: str, body: bytes | None = None) -> float:
        """Seconds until the whole answer was here."""
        began = time.perf_counter()
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        answer.read()
        took = time.perf_counter() - began
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: status {answer.status}")
        return took


def push(client: Client, number: int) -> tuple[float, float]:
    """The chunk, then the incident: seconds of each."""
    data = f"evidence {number} {time.time_ns()}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    sent = client.ask("PUT", f"/api/v1/blobs/{sha256}", data)
    bundle = {"sha256": sha256, "size": len(data), "chunks": [sha256]}
    value = json.dumps({"cluster": "west", "job": f"pushed-{number}-{sha256[:8]}", "bundle": bundle}).encode()
    return sent, client.ask("POST", "/api/v1/incidents", value)


class Processor:
    """The CPU time that processes have used so far: the server, and every backend of its Postgres."""

    def __init__(self, server: int, database: int | None) -> None:
        self._roots = [server, *([] if database is None else [database])]

    def seconds(self) -> float:
        total = 0
        for root in self._roots:
            for process in (root, *_children(root)):
                for task in Path(f"/proc/{process}/task").glob("*/schedstat"):
                    try:
                        total += int(task.read_text().split()[0])
                    except OSError:  # it ended
                        continue
        return total / 1e9


def _children(process: int) -> list[int]:
    try:
        words = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words]


@dataclass
class Times:
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(client: Client, used: Processor, rounds: int, *, incidents: int, nodes: int) -> dict[str, Times]:
    chance = random.Random(1)
    found: dict[str, Times] = defaultdict(Times)
    for number in range(rounds + 1):
        for name, path in questions(incidents, nodes).items():
            asked = path.format(
                node=chance.randrange(nodes),
                incident=chance.randrange(1, incidents),
                job=chance.randrange(1, incidents),
                older=time.time() - chance.random() * 80 * DAY_S,
            )
            before = used.seconds()
            took = client.ask("GET", asked)
            if number:  # the first round fills caches
                found[name].wall.append(took)
                found[name].cpu.append(used.seconds() - before)
        before = used.seconds()
        sent, accepted = push(client, number)
        if number:
            found["push: a chunk of 30 bytes"].wall.append(sent)
            found["push: accepted"].wall.append(accepted)
            found["push: accepted"].cpu.append(used.seconds() - before)
    return found


def serve(database: str | None, data: Path) -> tuple[subprocess.Popen[str], int]:
    words = ["serve", "--data", str(data), "--listen", "127.0.0.1:0", "--digesters", "0"]
    environ = {**os.environ, **({"HANGSCOPE_DATABASE": database} if database else {})}
    server = subprocess.Popen(
        [sys.executable, "-m", "hangscope", *words], env=environ, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    for line in server.stderr:
        if "listening on" in line:
            return server, int(line.rstrip().rpartition(":")[2])
    raise SystemExit("the server did not start")


def late(times: Sequence[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]


def show(found: dict[str, Times]) -> None:
    """The CPU of a push is that of its chunk and its incident together."""
    base = statistics.median(found["healthz"].wall)
    print(f"{'':28} {'median ms':>10} {'95 % ms':>10} {'median / healthz':>17} {'CPU ms':>8} {'95 %':>8}")
    for name, times in found.items():
        median = statistics.median(times.wall)
        cpu = f"{statistics.median(times.cpu) * 1000:8.1f} {late(times.cpu) * 1000:8.1f}" if times.cpu else ""
        print(f"{name:28} {median * 1000:10.1f} {late(times.wall) * 1000:10.1f} {median / base:17.1f} {cpu}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--incidents", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--exposures", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        behind = None if given.sqlite else stack.enter_context(postgres.running_postgres())
        url = None if behind is None else behind.database()
        options = ServeOptions(data=Path(folder), database=url)
        opened = open_stores(options)
        with opened.database.write() as connection:
            project = access_tokens.project(connection, "default")
            token = access_tokens.make(connection, project, "bench", access_tokens.SCOPES)
        began = time.monotonic()
        size = {"incidents": given.incidents, "nodes": given.nodes}
        fill(opened.database, project, exposures=given.exposures, **size)
        print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)
        began_s = time.process_time()
        make(opened.database, project, "", time.time())
        took = time.process_time() - began_s
        server, port = serve(url, Path(folder))
        try:
            client = Client(port, token)
            load = os.getloadavg()[0]
            used = Processor(server.pid, None if behind is None else behind.process.pid)
            found = measure(client, used, given.rounds, **size)
            print(
                f"{'SQLite' if given.sqlite else 'Postgres'}, {given.incidents:,} incidents, {given.nodes:,} nodes, "
                f"{given.exposures:,} exposures, {given.rounds} requests each; {os.cpu_count()} cores, load "
                f"{load:.1f} before and {os.getloadavg()[0]:.1f} after; history summarised in {took:.0f} s of CPU"
            )
            show(found)
        finally:
            server.terminate()
            server.wait()
            opened.database.close()


if __name__ == "__main__":
    main()
