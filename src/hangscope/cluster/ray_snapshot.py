"""`hangscope snapshot --ray`: all nodes of a Ray cluster captured at once, and what the cluster knows of itself.

A task without resources is sent to every node, so that a full cluster answers too; what each saved comes back over Ray,
so that no file system need be shared. What does not answer in time is a gap with the node's name.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hangscope.__about__ import __version__
from hangscope.cluster import ray_node_task, ray_roster
from hangscope.cluster.ray_connection import connected
from hangscope.errors import DamagedError, NotFoundError, SettingsError
from hangscope.incident import manifest
from hangscope.incident.layout import as_bytes, as_json, safe_name
from hangscope.incident.manifest import Missing
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity
from hangscope.safeio.safe_files import write_below
from hangscope.safeio.tar_stream import TarReader

CLUSTER_FILE = "ray/cluster.json"
SCAN_S = 60.0
CAPTURE_S = 120.0
ALL = "all"
_MOST_RANK = 1 << 22
_LATE = "its raylet started no task of ours in time"


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node by the name that people know: its host, with its id where several share the host."""

    id: str
    name: str
    head: bool
    alive: bool
    death: str = ""


def of_cluster(address: str, directory: Path | None, job: str | None, say: Callable[[str], None]) -> Path:
    """Capture the running job of a cluster. Returns the incident with every node's part."""
    with connected(address) as ray:
        first = roster(ray)
        nodes = named_nodes(first["nodes"])
        jobs = _chosen_jobs(first, job, own_job(ray))
        tasks = NodeTasks(ray)
        alive = [node for node in nodes if node.alive]
        scanned = tasks.run(alive, {node.id: _scan(node, jobs) for node in alive}, SCAN_S)
        ranks = _ranks(scanned, jobs, say)
        asked = {node.id: _capture(node, jobs, ranks.get(node.id), first) for node in alive}
        taken = tasks.run(alive, asked, CAPTURE_S)
        last = roster(ray)
    name = "-".join(sorted(jobs)) or "cluster"
    place = (directory or Path("hangscope") / f"snapshot-ray-{safe_name(name)}").absolute()
    with ExitStack() as kept:
        session = f"{os.uname().nodename}-{os.getpid()}-{manifest.now()}"
        root, _ = run_directory.claim(place, JobIdentity(f"ray-{name}", "0", ""), kept=kept, session=session)
        return _written(root, name, nodes, taken, cluster_file(first, last, nodes, jobs), say)


def own_job(ray: Any) -> str:
    return str(ray.get_runtime_context().get_job_id())


def roster(ray: Any) -> dict[str, Any]:
    """What the cluster knows of itself; over Ray Client (ray://) only a task in the cluster can ask."""
    if not ray.util.client.ray.is_connected():
        return ray_roster.roster()
    ray.cloudpickle.register_pickle_by_value(ray_roster)
    found: dict[str, Any] = ray.get(ray.remote(num_cpus=0)(ray_roster.roster).remote(), timeout=SCAN_S)
    return found


def named_nodes(rows: Iterable[Mapping[str, Any]]) -> list[RayNode]:
    """Nodes that are alive, and dead ones of hosts that have no other: a node that came back is not missing."""
    listed = list(rows)
    alive = [row for row in listed if row["alive"]]
    here = {row["host"] or row["address"] for row in alive}
    gone = {row["host"] or row["address"]: row for row in listed if not row["alive"]}
    shown = [*alive, *(row for host, row in gone.items() if host not in here)]
    hosts = Counter(row["host"] or row["address"] for row in shown)
    named = []
    for row in shown:
        host = row["host"] or row["address"]
        name = host if hosts[host] == 1 else f"{host}-{row['id'][:8]}"
        named.append(RayNode(row["id"], name, row["head"], row["alive"], row["death"]))
    return named


def _chosen_jobs(found: Mapping[str, Any], wanted: str | None, own: str) -> dict[str, Mapping[str, Any]]:
    """The job that was asked for, or the only one that runs."""
    others = {row["id"]: row for row in found["jobs"] if row["id"] != own and row["namespace"] != "_ray_internal_"}
    running = {number: row for number, row in others.items() if not row["dead"]}
    if wanted == ALL:
        return running
    if wanted is not None:
        chosen = {number: row for number, row in others.items() if number == wanted}
        if not chosen:
            raise NotFoundError(f"the Ray cluster knows no job {wanted}", hint=_listed(running))
        return chosen
    if len(running) > 1:
        raise SettingsError(f"{len(running)} jobs run on this Ray cluster", hint=_listed(running))
    return running or _last_of(others)


def _last_of(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The job that ended last: its dead actors and logs still say why."""
    if not jobs:
        raise NotFoundError("no job has run on this Ray cluster", hint="is it the right one?  --ray ADDRESS")
    last = max(jobs, key=lambda number: jobs[number]["ended_at"] or 0.0)
    return {last: jobs[last]}


def _listed(jobs: Mapping[str, Mapping[str, Any]]) -> str:
    shown = [
        f"--job {number} ({row['entrypoint'][:60] or 'driver ' + str(row['driver_pid'])})"
        for number, row in jobs.items()
    ]
    return "give one of them: " + "; ".join(shown[:8]) + f"; or --job {ALL}" if shown else "none runs now"


# ---- what is asked of each node --------------------------------------------------------------------------------------


def _scan(node: RayNode, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    drivers = [row["driver_pid"] for row in jobs.values() if row["driver_node"] == node.id and not row["dead"]]
    return {"act": "scan", "drivers": drivers}


def _capture(
    node: RayNode, jobs: Mapping[str, Mapping[str, Any]], ranks: dict[str, Any] | None, found: Mapping[str, Any]
) -> dict[str, Any]:
    tasks = found["tasks"]["open"] if isinstance(found["tasks"], Mapping) else []
    ended = [row["pid"] for row in found["workers"] if row["node"] == node.id and not row["alive"]][-200:]
    return {
        **_scan(node, jobs),
        "act": "capture",
        "node": node.name,
        "node_id": node.id,
        "head": node.head,
        "job": "ray-" + ("-".join(sorted(jobs)) or "cluster"),
        "ranks": ranks,
        "jobs": sorted(jobs),
        "ended": ended,
        "tasks": [
            row["id"] for row in tasks if row["job"] in jobs and row["kind"] != "DRIVER_TASK" and len(row["id"]) == 48
        ],
    }


def _ranks(
    scanned: Mapping[str, Any], jobs: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, dict[str, dict[str, int | None]]]:
    """Node → pid → rank, for the processes of one torch.distributed job; nobody where several run here. A node that did
    not answer is left out: it looks for itself."""
    groups: dict[tuple[str, ...], dict[tuple[str, str], dict[str, int | None]]] = {}
    for node, answer in scanned.items():
        for row in answer.get("processes", ()):
            found = _rank_of(row["environ"], jobs)
            if found is not None:
                where = [row["environ"].get(name, "") for name in ("RAY_JOB_ID", "MASTER_ADDR", "MASTER_PORT")]
                groups.setdefault((*where, str(found["world_size"])), {})[node, str(row["pid"])] = found
    twice = any(len({each["rank"] for each in group.values()}) < len(group) for group in groups.values())
    if len(groups) > 1 or twice:
        say("several torch.distributed jobs run here: their processes are shown as actors, without ranks")
        return {node: {} for node in scanned}
    ranks: dict[str, dict[str, dict[str, int | None]]] = {
        node: {} for node, answer in scanned.items() if "processes" in answer
    }
    for group in groups.values():
        for (node, pid), found in group.items():
            ranks[node][pid] = found
    return ranks


def _rank_of(environ: Mapping[str, str], jobs: Mapping[str, Any]) -> dict[str, int | None] | None:
    """Which rank a process is by its environment; None where it is none, or of another job."""
    rank = _number(environ.get("RANK"))
    size = _number(environ.get("WORLD_SIZE"))
    if rank is None or size is None or rank >= size or environ.get("RAY_JOB_ID", "") not in {*jobs, ""}:
        return None
    local = {name.lower(): _number(environ.get(name)) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    return {"rank": rank, "world_size": size, **local}


def _number(text: str | None) -> int | None:
    return (
        int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 and int(text) < _MOST_RANK else None
    )


class NodeTasks:
    """Runs the recorder on nodes by tasks that take no resources."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        ray.cloudpickle.register_pickle_by_value(ray_node_task)
        self._task = ray.remote(num_cpus=0, max_retries=0)(ray_node_task.on_node)
        self._package = ray.put(ray_node_task.packed_recorder())

    def run(self, nodes: Sequence[RayNode], asked: Mapping[str, Any], limit_s: float) -> dict[str, dict[str, Any]]:
        """Node's id → its answer, for those that gave one, or what kept them from it."""
        strategies = import_module("ray.util.scheduling_strategies")
        refs = {}
        for node in nodes:
            there = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
            started = self._task.options(scheduling_strategy=there, name="hangscope")
            refs[started.remote(self._package, asked[node.id], limit_s - 5.0)] = node.id
        done, late = self._ray.wait(list(refs), num_returns=len(refs), timeout=limit_s) if refs else ([], [])
        answers: dict[str, dict[str, Any]] = {}
        for ref in done:
            try:
                answers[refs[ref]] = self._ray.get(ref)
            except Exception as error:
                answers[refs[ref]] = {"problem": (str(error).strip().splitlines() or [repr(error)])[-1][:300]}
        for ref in late:
            answers[refs[ref]] = {"problem": _LATE}
            self._ray.cancel(ref, force=True)
        return answers


# ---- what is written -------------------------------------------------------------------------------------------------


def cluster_file(
    first: Mapping[str, Any], last: Mapping[str, Any], nodes: Sequence[RayNode], jobs: Mapping[str, Any]
) -> dict[str, Any]:
    """The cluster as it was when the capture ended, with the tasks that ended while it lasted."""
    names = {node.id: node.name for node in nodes}
    value = {**last, "hangscope": __version__, "first_at": first["at"], "chosen_jobs": sorted(jobs)}
    value["nodes"] = [{**row, "name": names.get(row["id"])} for row in last["nodes"]]
    ended = len(_open_ids(first, jobs) - _open_ids(last, jobs))
    value["ended_during_capture"] = max(ended, _finished(last, jobs) - _finished(first, jobs))
    return value


def _finished(found: Mapping[str, Any], jobs: Mapping[str, Any]) -> int:
    """Finished tasks of these jobs: our own finish while we look."""
    tasks = found["tasks"]
    return sum(tasks["finished"].get(job, 0) for job in jobs) if isinstance(tasks, Mapping) else 0


def _open_ids(found: Mapping[str, Any], jobs: Mapping[str, Any]) -> set[str]:
    tasks = found["tasks"]
    return {row["id"] for row in tasks["open"] if row["job"] in jobs} if isinstance(tasks, Mapping) else set()


def _written(
    root: Path,
    name: str,
    nodes: Sequence[RayNode],
    taken: Mapping[str, dict[str, Any]],
    cluster: Mapping[str, Any],
    say: Callable[[str], None],
) -> Path:
    gaps = [Missing(str(gap["what"]), str(gap["why"])) for gap in cluster["gaps"]]
    for node in nodes:
        answer = taken.get(node.id, {})
        problem = answer.get("problem") or ("" if "tar" in answer else node.death or "the node is dead")
        if not problem:
            problem = _unpacked(root, node.name, answer["tar"])
        if problem:
            say(f"{node.name}: {problem}")
            gaps.append(Missing(f"nothing from node {node.name}", problem, node.name))
    write_below(root, CLUSTER_FILE, as_bytes(as_json(cluster)), wary=True)
    given = manifest.Manifest(
        job=f"ray-{name}",
        reason="snapshot",
        detail="asked for",
        captured_at=manifest.now(),
        nodes_expected=tuple(node.name for node in nodes),
        versions={"ray": str(cluster["ray"])},
        gaps=tuple(gaps),
    )
    manifest.write(root, manifest.build(root, given))
    return root


def _unpacked(root: Path, node: str, packed: bytes) -> str:
    """Put one node's part in its place, and nothing anywhere else. What is wrong with it, empty where nothing is."""
    own = f"nodes/{safe_name(node)}/"
    try:
        for member, content in TarReader(io.BytesIO(packed), file=node):
            inside = member.name.removeprefix("./")
            if member.kind == "file" and inside.startswith(own):
                write_below(root, inside, b"".join(iter(content.read, b"")), wary=True)
    except (DamagedError, OSError) as error:
        return f"its answer could not be kept: {error}"
    return ""
