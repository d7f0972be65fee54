"""`hangscope collect --ray`: each host of a Ray cluster as a source of files, reached by a task in place of ssh.

The same scripts run there as over ssh, in a shell that the task starts; the session's logs are looked for where the
node's own raylet writes them. What Ray knows of its actors comes along as ray/cluster.json.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from hangscope.cluster import ray_shell_task
from hangscope.cluster.ray_snapshot import CLUSTER_FILE, RayNode, cluster_file, named_nodes, own_job, roster
from hangscope.incident.collect import remote_script
from hangscope.incident.collect.fetch_sources import Deadline, Entry, Sink, Unreachable
from hangscope.incident.collect.remote_node import Node
from hangscope.incident.layout import as_bytes, as_json
from hangscope.incident.manifest import Missing
from hangscope.safeio.safe_files import write_below

SESSION_LOGS = (
    "worker-*",
    "raylet*",
    "gcs_server*",
    "job-driver-*",
    "python-core-*",
    "monitor*",
    "train/*",
)
"""What of a session's logs says anything of a job."""
_BATCH_BYTES = 128 << 20
"""What one task sends: it is held in memory on both sides."""
_FIND_S = 45.0


class RayHost(Node):
    """One host of a cluster, by a node that is alive there."""

    def __init__(self, ray: Any, node: RayNode, patterns: Sequence[str], defaults: bool) -> None:
        super().__init__(node.name, (), patterns, defaults)
        self._ray = ray
        strategies = import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        task = ray.remote(num_cpus=0, max_retries=0)(ray_shell_task.in_shell)
        self._task = task.options(scheduling_strategy=there, name="hangscope")
        self._given_up = threading.Event()

    def stop(self) -> None:
        self._given_up.set()

    def fetch(self, wanted: Sequence[Entry], sink: Sink, deadline: Deadline) -> None:
        for batch in _batches(wanted):
            super().fetch(batch, sink, deadline)

    @contextmanager
    def _run(self, script: str, deadline: Deadline) -> Iterator[IO[bytes]]:
        deadline.check()
        if self._given_up.is_set():
            raise Unreachable("interrupted")
        ref = self._task.remote(script, deadline.left)
        done, _ = self._ray.wait([ref], timeout=deadline.left)
        if not done:
            self._ray.cancel(ref, force=True)
            raise Unreachable(f"no answer within {deadline.seconds:g} s")
        try:
            out, complaint = self._ray.get(ref)
        except Exception as error:
            raise Unreachable((str(error).strip().splitlines() or [repr(error)])[-1][:300]) from None
        _, found, answer = out.partition(f"{remote_script.BEGIN}\n".encode())
        if not found:
            raise Unreachable(complaint or "it said nothing")
        yield io.BytesIO(answer)


def _batches(wanted: Sequence[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    room = _BATCH_BYTES
    for entry in wanted:
        if batch and (entry.size or 0) > room:
            yield batch
            batch = []
            room = _BATCH_BYTES
        batch.append(entry)
        room -= entry.size or 0
    if batch:
        yield batch


def hosts(
    ray: Any, folder: Path, *, patterns: Sequence[str] = (), defaults: bool = True
) -> tuple[list[RayHost], list[Missing]]:
    """A source for each host, and the nodes that cannot be asked. Writes what Ray knows of itself below `folder`."""
    ray.cloudpickle.register_pickle_by_value(ray_shell_task)
    found = roster(ray)
    nodes = named_nodes(found["nodes"])
    jobs = {row["id"]: row for row in found["jobs"] if row["id"] != own_job(ray)}
    write_below(folder, CLUSTER_FILE, as_bytes(as_json(cluster_file(found, found, nodes, jobs))), wary=True)
    by_host = _one_per_host(found["nodes"], nodes)
    gone = [
        Missing(f"evidence of {node.name}", node.death or "the node is dead, by Ray's word", node.name)
        for node in nodes
        if not node.alive
    ]
    logs = _log_folders(ray, list(by_host)) if defaults else {}
    sources = []
    for node in by_host:
        where = logs.get(node.id, "")
        own = [f"{where}/{name}" for name in SESSION_LOGS] if where else []
        sources.append(RayHost(ray, node, (*patterns, *own), defaults))
    return sources, gone


def _one_per_host(rows: Sequence[Any], nodes: Sequence[RayNode]) -> list[RayNode]:
    """Several raylets on one host see the same files."""
    host_of = {row["id"]: row["host"] or row["address"] for row in rows}
    found: dict[str, RayNode] = {}
    for node in nodes:
        if node.alive:
            found.setdefault(host_of[node.id], node)
    return [RayNode(node.id, host, node.head, True) for host, node in found.items()]


def _log_folders(ray: Any, nodes: Sequence[RayNode]) -> dict[str, str]:
    """Node → where its raylet writes its logs, as far as it answers."""
    strategies = import_module("ray.util.scheduling_strategies")
    task = ray.remote(num_cpus=0, max_retries=0)(ray_shell_task.log_folder)
    refs = {}
    for node in nodes:
        there = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        refs[task.options(scheduling_strategy=there, name="hangscope").remote()] = node.id
    done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_FIND_S) if refs else ([], [])
    found = {}
    for ref in done:
        try:
            found[refs[ref]] = str(ray.get(ref))
        except Exception:
            continue  # the node's own listing says why it does not answer
    return found
