"""A Ray cluster in an incident: ray/cluster.json (what Ray knows of itself), ray/processes.json of each node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from hangscope.model import Frame, Gap, Source
from hangscope.model.numbers import integer, is_number
from hangscope.model.ray_cluster import (
    ActorEnd,
    RayActor,
    RayCluster,
    RayNodeState,
    RayProcess,
    RayTask,
    RayThread,
    TaskState,
)
from hangscope.model.values import host_name, number, rank_number, text, whole
from hangscope.sources.ray.schema import CLUSTER_SCHEMAS, NODE_SCHEMAS
from hangscope.sources.report import SourceFile, SourceReport, WhoIsWho, together

_MOST = 20_000
_MOST_PROCESSES = 4_096
_MOST_THREADS = 512
_MOST_FRAMES = 256
_LONG = 1_000
_LONGEST_DEATH = 4_000
_ON_PURPOSE = ("OUT_OF_SCOPE", "REF_DELETED", "RAY_KILL", "OWNER_DIED")
_INTENDED = ("INTENDED_USER_EXIT", "INTENDED_SYSTEM_EXIT", "exit_actor()")
_OUT_OF_MEMORY = ("memory monitor", "due to the node running low on memory")
_WENT_AWAY = ("End of file", "Connection reset by peer")
"""What the raylet says when a worker's connection is gone: the worker had not said that it would end."""
_EXIT_CODE = re.compile(r"exit code (-?\d{1,9})")
_BY_KIND = {
    "oom": ActorEnd.MEMORY,
    "creation_task_failure": ActorEnd.CONSTRUCTOR,
    "runtime_env_failed": ActorEnd.ENVIRONMENT,
    "actor_unschedulable": ActorEnd.UNSCHEDULABLE,
}


def recognise_object(value: Mapping[str, Any]) -> bool:
    return str(value.get("schema", "")).startswith((CLUSTER_SCHEMAS, NODE_SCHEMAS))


def read_object(value: Mapping[str, Any], file: str) -> SourceReport:
    """What one file says: the cluster's own, or one node's processes."""
    return _node(value, file) if str(value.get("schema")).startswith(NODE_SCHEMAS) else _cluster(value, file)


def join(files: Sequence[SourceFile], who: WhoIsWho) -> SourceReport:
    """All files as one cluster."""
    del who
    found = together(each.report for each in files).ray
    said = [part for part in found if part.source is not None]
    base = max(said, key=lambda each: each.at_s or 0.0, default=RayCluster())
    processes = [process for part in found for process in part.processes]
    actor_of = {(actor.node, actor.pid): actor for actor in base.actors.values() if actor.pid is not None}
    named = [
        replace(process, job=process.job or actor.job)
        if (actor := actor_of.get((process.node, process.pid)))
        else process
        for process in processes
    ]
    whole = replace(base, processes=tuple(sorted(named, key=lambda each: (each.node, each.pid))))
    return SourceReport(ray=(whole,))


# ---- a node ----------------------------------------------------------------------------------------------------------


def _node(value: Mapping[str, Any], file: str) -> SourceReport:
    node = host_name(text(value.get("node"))) or "?"
    rows = islice(_rows(value.get("processes")), _MOST_PROCESSES)
    processes = [
        process for index, row in rows if (process := _process(row, node, Source(file, f"processes[{index}]")))
    ]
    return SourceReport(ray=(RayCluster(processes=tuple(processes)),), gaps=tuple(_unseen(processes, node, file)))


def _unseen(processes: Sequence[RayProcess], node: str, file: str) -> Iterator[Gap]:
    """That processes were there whose stacks were not to be had, with the first reason."""
    unseen = [process for process in processes if process.no_stack and not process.samples]
    if unseen:
        what = f"stacks of {len(unseen)} of {len(processes)} processes of Ray on {node}"
        yield Gap(what, unseen[0].no_stack, node=node, source=Source(file))


def _process(row: Mapping[str, Any], node: str, source: Source) -> RayProcess | None:
    pid = whole(row.get("pid"))
    if pid is None:
        return None
    environ = row.get("environ")
    said: Mapping[str, Any] = environ if isinstance(environ, Mapping) else {}
    samples = row.get("samples")
    works = row.get("works")
    return RayProcess(
        pid=pid,
        node=node,
        driver=row.get("kind") == "driver",
        title=(text(row.get("title")) or "")[:_LONG],
        source=source,
        job=(text(said.get("RAY_JOB_ID")) or "")[:64],
        rank=_rank_in(said),
        state=text(row.get("state")),
        works=works if isinstance(works, bool) else None,
        cpu_share=number(row.get("cpu_share")),
        samples=tuple(_sample(sample) for sample in (samples[:4] if isinstance(samples, list) else ())),
        no_stack=(text(row.get("no_stack")) or "")[:_LONG],
        code=dict(_code(row.get("code"))),
    )


def _rank_in(environ: Mapping[str, Any]) -> int | None:
    said = text(environ.get("RANK")) or ""
    return rank_number(integer(said)) if is_number(said, 7) else None


def _sample(value: object) -> tuple[RayThread, ...]:
    threads = []
    for _, row in islice(_rows(value), _MOST_THREADS):
        frames = row.get("frames")
        awaited = row.get("waits_for")
        call = text(row.get("waits_in")) or ""
        threads.append(
            RayThread(
                (text(row.get("name")) or "")[:200],
                tuple(_frames(frames)),
                row.get("active") is True,
                call if call in ("ray.get", "ray.wait") else "",
                tuple(str(each)[:64] for each in awaited[:_MOST]) if isinstance(awaited, list) else None,
                (text(row.get("name")) or "").startswith("AsyncIO Thread"),
                whole(row.get("switches")),
            )
        )
    return tuple(threads)


def _frames(value: object) -> Iterator[Frame]:
    for row in value[:_MOST_FRAMES] if isinstance(value, list) else ():
        if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[1], str):
            yield Frame(row[0][:_LONG], row[1][:_LONG], whole(row[2]) or 0)


def _code(value: object) -> Iterator[tuple[tuple[str, int], str]]:
    for place, line in islice(value.items(), 1000) if isinstance(value, Mapping) else ():
        file, _, number_text = str(place).rpartition(":")
        if is_number(number_text, 8) and isinstance(line, str):
            yield (file, integer(number_text)), line[:400]


# ---- the cluster -----------------------------------------------------------------------------------------------------


def _cluster(value: Mapping[str, Any], file: str) -> SourceReport:
    names = {text(row.get("id")) or "": host_name(text(row.get("name"))) or "" for _, row in _rows(value.get("nodes"))}
    chosen = value.get("chosen_jobs")
    jobs = {str(job) for job in chosen} if isinstance(chosen, list) else set()
    cluster = RayCluster(
        actors={each.id: each for each in _actors(value, names) if not jobs or each.job in jobs},
        tasks={each.id: each for each in _tasks(value, names) if not jobs or each.job in jobs},
        nodes=tuple(_nodes(value, names)),
        drivers=dict(_drivers(value, jobs)),
        pending_groups=tuple(_groups(value.get("placement_groups"))),
        at_s=number(value.get("at")),
        ended_during_capture=whole(value.get("ended_during_capture")) or 0,
        source=Source(file),
    )
    return SourceReport(ray=(cluster,))


def _actors(value: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[RayActor]:
    exits = {(_node_of(row, names), whole(row.get("pid"))): row for _, row in _rows(value.get("workers"))}
    return (_actor(row, names, exits) for _, row in _rows(value.get("actors")))


def _end(said: Mapping[str, Any], words: str) -> ActorEnd:
    """How an actor died, by Ray's reason and the words of its worker's end."""
    if text(said.get("reason")) in _ON_PURPOSE or any(word in words for word in _INTENDED):
        return ActorEnd.ON_PURPOSE
    by_kind = _BY_KIND.get(text(said.get("kind")) or "")
    if by_kind is not None:
        return by_kind
    if any(word in words for word in _OUT_OF_MEMORY):
        return ActorEnd.MEMORY
    if text(said.get("reason")) == "NODE_DIED":
        return ActorEnd.NODE
    if any(word in words for word in _WENT_AWAY):
        return ActorEnd.SILENT
    return ActorEnd.EXIT if _EXIT_CODE.search(words) is not None else ActorEnd.UNKNOWN


def _tasks(value: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[RayTask]:
    tasks = value.get("tasks")
    return (_task(row, names) for _, row in _rows(tasks.get("open") if isinstance(tasks, Mapping) else None))


def _node_of(row: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    return names.get(text(row.get("node")) or "") or None


def _actor(row: Mapping[str, Any], names: Mapping[str, str], exits: Mapping[Any, Mapping[str, Any]]) -> RayActor:
    death = row.get("death")
    said: Mapping[str, Any] = death if isinstance(death, Mapping) else {}
    node = _node_of(row, names)
    pid = whole(row.get("pid"))
    worker = exits.get((node, pid), {})
    ended = text(worker.get("exit_detail")) or "" if worker.get("alive") is False else ""
    words = f"{ended}\n{text(said.get('text')) or ''}".strip()
    return RayActor(
        id=(text(row.get("id")) or "")[:64],
        class_name=(text(row.get("class")) or "?")[:200],
        name=(text(row.get("name")) or "")[:200],
        job=(text(row.get("job")) or "")[:64],
        state=(text(row.get("state")) or "")[:64],
        node=node,
        pid=pid,
        restarts=whole(row.get("restarts")) or 0,
        death=words[:_LONGEST_DEATH],
        ended_by=_end(said, words) if said else None,
        exit_code=integer(code[1]) if (code := _EXIT_CODE.search(words)) is not None else None,
        resources=_amounts(row.get("resources")),
        started_at_s=number(row.get("started_at")),
        ended_at_s=number(row.get("ended_at")),
    )


def _task(row: Mapping[str, Any], names: Mapping[str, str]) -> RayTask:
    state = whole(row.get("state")) or 0
    return RayTask(
        id=(text(row.get("id")) or "")[:64],
        name=(text(row.get("name")) or "?")[:300],
        kind=(text(row.get("kind")) or "")[:64],
        job=(text(row.get("job")) or "")[:64],
        actor=(text(row.get("actor")) or "")[:64],
        parent=(text(row.get("parent")) or "")[:64],
        state=TaskState(state) if state in TaskState._value2member_map_ else TaskState.NOT_KNOWN,
        node=_node_of(row, names),
        pid=whole(row.get("pid")),
        since_ns=whole(row.get("since_ns")) or 0,
        created_ns=whole(row.get("created_ns")) or 0,
        resources=_amounts(row.get("resources")),
    )


def _nodes(value: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[RayNodeState]:
    available = value.get("available")
    free: Mapping[str, Any] = available if isinstance(available, Mapping) else {}
    for _, row in _rows(value.get("nodes")):
        number_of = text(row.get("id")) or ""
        name = names.get(number_of)
        if name:
            death = (text(row.get("death")) or "")[:_LONG]
            left = _amounts(free.get(number_of))
            yield RayNodeState(name, row.get("alive") is True, death, _amounts(row.get("resources")), left)


def _drivers(value: Mapping[str, Any], jobs: set[str]) -> Iterator[tuple[str, int]]:
    for _, row in _rows(value.get("jobs")):
        job = text(row.get("id"))
        pid = whole(row.get("driver_pid"))
        if job and pid and row.get("dead") is not True and (not jobs or job in jobs):
            yield job, pid


def _groups(value: object) -> Iterator[Mapping[str, float]]:
    for _, row in _rows(value):
        total: dict[str, float] = {}
        for _, bundle in _rows(row.get("bundles")):
            for name, amount in _amounts(bundle).items():
                total[name] = total.get(name, 0.0) + amount
        yield total


def _amounts(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    pairs = ((str(name)[:100], number(amount)) for name, amount in islice(value.items(), 100))
    return {name: amount for name, amount in pairs if amount is not None}


def _rows(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list that anybody may have written."""
    for index, row in enumerate(value[:_MOST] if isinstance(value, list) else ()):
        if isinstance(row, Mapping):
            yield index, row
