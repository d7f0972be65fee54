"""How fast a full server answers: lists, searches, pages and pushes, beside /healthz in the same run.

    python benchmarks/bench_server.py                                  # Postgres (Debian's package), 100,000 incidents
    python benchmarks/bench_server.py --sqlite --incidents 10000 --nodes 1000 --exposures 100000

A database is filled, `hangscope serve` is started on it as a process, and each question is asked in turn, so that what
else the machine does meets all of them alike. Times are of whole requests over one kept connection, as a browser or an
agent sees them. What counts beside the milliseconds is the ratio to /healthz, which asks the database for nothing.
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
from pathlib import Path
from typing import Any

from sqlalchemy import Table, text

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


def measure(client: Client, rounds: int, *, incidents: int, nodes: int) -> dict[str, list[float]]:
    chance = random.Random(1)
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, path in questions(incidents, nodes).items():
            asked = path.format(
                node=chance.randrange(nodes),
                incident=chance.randrange(1, incidents),
                job=chance.randrange(1, incidents),
                older=time.time() - chance.random() * 80 * DAY_S,
            )
            took = client.ask("GET", asked)
            if number:  # the first round fills caches
                found[name].append(took)
        sent, accepted = push(client, number)
        if number:
            found["push: a chunk of 30 bytes"].append(sent)
            found["push: accepted"].append(accepted)
    return found


def serve(database: str | None, data: Path) -> tuple[subprocess.Popen[str], int]:
    words = ["serve", "--data", str(data), "--listen", "127.0.0.1:0", "--digesters", "1"]
    environ = {**os.environ, **({"HANGSCOPE_DATABASE": database} if database else {})}
    server = subprocess.Popen(
        [sys.executable, "-m", "hangscope", *words], env=environ, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    for line in server.stderr:
        if "listening on" in line:
            return server, int(line.rstrip().rpartition(":")[2])
    raise SystemExit("the server did not start")


def await_summary(client: Client, database: Database) -> float:
    """Seconds until the first summary of history is there: it is made by a process beside the server."""
    began = time.monotonic()
    while time.monotonic() - began < 600:
        with database.read() as connection:
            if connection.execute(text("SELECT count(*) FROM summaries WHERE value <> ''")).scalar():
                return time.monotonic() - began
        time.sleep(0.5)
    raise SystemExit("no summary within ten minutes")


def show(found: dict[str, list[float]]) -> None:
    base = statistics.median(found["healthz"])
    print(f"{'':28} {'median ms':>10} {'95 % ms':>10} {'median / healthz':>18}")
    for name, times in found.items():
        ordered = sorted(times)
        late = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        median = statistics.median(times)
        print(f"{name:28} {median * 1000:10.1f} {late * 1000:10.1f} {median / base:18.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--incidents", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--exposures", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        url = None if given.sqlite else stack.enter_context(postgres.running_postgres()).database()
        options = ServeOptions(data=Path(folder), database=url)
        opened = open_stores(options)
        with opened.database.write() as connection:
            project = access_tokens.project(connection, "default")
            token = access_tokens.make(connection, project, "bench", access_tokens.SCOPES)
        began = time.monotonic()
        size = {"incidents": given.incidents, "nodes": given.nodes}
        fill(opened.database, project, exposures=given.exposures, **size)
        print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)
        server, port = serve(url, Path(folder))
        try:
            client = Client(port, token)
            took = await_summary(client, opened.database)
            load = os.getloadavg()[0]
            found = measure(client, given.rounds, **size)
            print(
                f"{'SQLite' if given.sqlite else 'Postgres'}, {given.incidents:,} incidents, {given.nodes:,} nodes, "
                f"{given.exposures:,} exposures, {given.rounds} requests each; {os.cpu_count()} cores, load "
                f"{load:.1f} before and {os.getloadavg()[0]:.1f} after; history summarised in {took:.0f} s"
            )
            show(found)
        finally:
            server.terminate()
            server.wait()
            opened.database.close()


if __name__ == "__main__":
    main()
