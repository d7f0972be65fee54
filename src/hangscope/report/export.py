"""The verdict as JSON: the contract `hangscope.diagnosis/1`, whose JSON Schema is published beside this file.

Unknown values are null and never left out. Fields may be added at the end in later versions, never changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Any

from hangscope.diagnosis.verdict import (
    SCHEMA,
    ActorCulprit,
    Completeness,
    Culprit,
    Diagnosis,
    Finding,
    FirstReported,
    History,
    LastCompleted,
    Lateness,
    Link,
    LinkEnd,
    LogFact,
    OperationInFlight,
    Place,
    UnrankedCulprit,
)
from hangscope.engine_roles import Role
from hangscope.model import FileWait, Frame, Gap, GpuCore, Source
from hangscope.report.safe_text import whole
from hangscope.report.verdict_text import iso
from hangscope.sources.process_waits.chains import Chain, Step


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The verdict as plain JSON values, keys in the order of the contract."""
    d = diagnosis
    return {
        "schema": SCHEMA,
        "hang": bool(d.hang),
        "outcome": str(d.outcome),
        "kind": str(d.kind),
        "culprits": [
            *(_culprit(c) for c in sorted(d.culprits, key=lambda c: c.rank)),
            *(_unranked(each) for each in d.unranked),
        ],
        "victims": list(_victims(d)),
        "operation": None if d.operation is None else _operation(d.operation),
        "last_completed": None if d.last_completed is None else _last_completed(d.last_completed),
        "link": None if d.link is None else _link(d.link),
        "first_reported": _first_reported(d.first_reported),
        "confidence": d.confidence,
        "confidence_rule": _text(d.confidence_rule),
        "summary": whole(d.summary),
        "also_possible": _also_possible(d),
        "why": _findings(d.why),
        "ruled_out": [{"kind": str(item.kind), "why": whole(item.why)} for item in d.ruled_out],
        "next_steps": [whole(step) for step in d.next_steps],
        "evidence": _findings(d.evidence),
        "gaps": [_gap(gap) for gap in d.gaps],
        "headline": _text(d.headline),
        "waiting_s": _float(d.waiting_s),
        "lateness": [_lateness(item) for item in d.lateness],
        "nodes": {str(int(rank)): whole(node) for rank, node in sorted(d.nodes.items())},
        "completeness": None if d.completeness is None else _completeness(d.completeness),
        "versions": {whole(name): whole(value) for name, value in sorted(d.versions.items())},
        "inputs": [whole(path) for path in d.inputs],
        "facts": [_log_fact(fact) for fact in d.facts],
        **_where_there_is_more(d),
    }


def _where_there_is_more(d: Diagnosis) -> dict[str, Any]:
    """What only some jobs have: GPUs that were asked, an engine, a Ray cluster, a server with a history."""
    return {
        "gpu_cores": [_gpu_core(core) for core in d.gpu_cores],
        "engine": _engine(d),
        "actors": [_actor(actor) for actor in d.actors],
        **_programs(d),
        "history": None if d.history is None else _history(d.history),
        "waiting_is_least": bool(d.waiting_is_least),
    }


def _also_possible(d: Diagnosis) -> list[dict[str, Any]]:
    return [
        {"kind": str(item.kind), "culprits": _ranks(item.culprits), "why": whole(item.why)} for item in d.also_possible
    ]


def _lateness(item: Lateness) -> dict[str, Any]:
    return {
        "rank": int(item.rank),
        "late_ms_median": _float(item.late_ms_median),
        "share_of_step": _float(item.share_of_step),
        "times_last": int(item.times_last),
        "operations": int(item.operations),
    }


def _gpu_core(core: GpuCore) -> dict[str, Any]:
    return {
        "rank": _int(core.rank),
        "asked_at": iso(core.asked_ns),
        "kernels": [
            {
                "name": whole(kernel.name),
                "device": int(kernel.device),
                "grid": None if kernel.grid is None else list(kernel.grid),
                "block": None if kernel.block is None else list(kernel.block),
                "blocks": _int(kernel.blocks),
            }
            for kernel in core.kernels
        ],
        "source": whole(core.source.file),
    }


def _history(history: History) -> dict[str, Any]:
    seen = history.seen_before
    return {
        "server": whole(history.server),
        "track_records": [
            {
                "kind": whole(each.kind),
                "name": whole(each.name),
                "named": each.named,
                "jobs": each.jobs,
                "cluster_named": each.cluster_named,
                "cluster_jobs": each.cluster_jobs,
                "says": whole(each.says),
            }
            for each in history.track_records
        ],
        "answer": whole(history.answer),
        "rows": [
            {
                "what": whole(row.what),
                "counted": whole(row.counted),
                "speaks_for": whole(row.speaks_for),
                "holds": row.holds,
            }
            for row in history.rows
        ],
        "experiment": {
            "commands": [whole(command) for command in history.commands],
            "outcomes": [whole(outcome) for outcome in history.outcomes],
        }
        if history.commands
        else None,
        "issue": None
        if seen is None
        else {
            "id": seen.issue,
            "incidents": seen.incidents,
            "first_seen_at": None if seen.since_s is None else iso(int(seen.since_s * 1e9)),
            "url": whole(seen.url),
        },
    }


def _first_reported(first: FirstReported | None) -> dict[str, Any] | None:
    if first is None:
        return None
    return {
        "rank": int(first.rank),
        "node": _text(first.node),
        "at": iso(first.at_ns),
        "local_time": first.local_time,
        "operation": _text(first.operation),
    }


def _culprit(culprit: Culprit) -> dict[str, Any]:
    return {
        "rank": int(culprit.rank),
        "node": _text(culprit.node),
        "local_rank": _int(culprit.local_rank),
        "gpu": _text(culprit.gpu),
        "pid": _int(culprit.pid),
        "why": whole(culprit.why),
        "where": None if culprit.where is None else _place(culprit.where),
        "storage": None if culprit.storage is None else _storage(culprit.storage),
        "role": None if culprit.role is None else _role(culprit.role),
        "device": None,
        "task": None,
    }


def _unranked(culprit: UnrankedCulprit) -> dict[str, Any]:
    return {
        "rank": None,
        "node": _text(culprit.node),
        "local_rank": _int(culprit.local_rank),
        "gpu": None,
        "pid": _int(culprit.pid),
        "why": whole(culprit.why),
        "where": None,
        "storage": None,
        "role": None if culprit.role is None else _role(culprit.role),
        "device": _text(culprit.device),
        "task": _text(culprit.task),
    }


def _role(role: Role) -> dict[str, Any]:
    return {
        "engine": whole(role.engine),
        "name": whole(role.name),
        "replica": _text(role.replica),
        "says": whole(role.says),
    }


def _engine(d: Diagnosis) -> dict[str, Any] | None:
    """Which processes of an engine the ranks are, and which are none; null where there is no engine."""
    if not d.roles and not d.others:
        return None
    others = [
        {"pid": int(each.pid), "node": _text(each.node), "state": _text(each.state), "role": _role(each.role)}
        for each in d.others
    ]
    return {"roles": {str(int(rank)): _role(role) for rank, role in sorted(d.roles.items())}, "others": others}


def _programs(d: Diagnosis) -> dict[str, Any]:
    """The waits that lead from accused ranks to other programs, and the processes on the way."""
    processes = {}
    waits = []
    for rank, chain in sorted(d.program_waits.items()):
        for step, after in zip(chain.steps, (*chain.steps[1:], None), strict=True):
            if step.process is not None:
                processes[step.node, step.process.pid] = _program(step)
            if step.wait is not None and step.target is not None:
                waits.append(_program_wait(rank, chain, step, after))
    return {"processes": [row for _, row in sorted(processes.items())], "waits": waits}


def _program(step: Step) -> dict[str, Any]:
    process = step.process
    assert process is not None
    return {
        "node": _text(step.node),
        "pid": int(process.pid),
        "rank": _int(process.rank),
        "name": _text(process.name),
        "command": _text(process.command),
        "state": _text(process.state),
    }


def _program_wait(rank: int, chain: Chain, step: Step, after: Step | None) -> dict[str, Any]:
    """One edge. `to` is null where no process was seen at the other end; `sure_by` says how that end is known."""
    assert step.wait is not None and step.target is not None
    # In a circle the last one waits for the first.
    end = after if after is not None or chain.end != "cycle" else chain.steps[0]
    to = end.process if end is not None else None
    return {
        "of_rank": int(rank),
        "node": _text(step.node),
        "pid": int(step.wait.pid),
        "call": _text(step.wait.call),
        "kind": _text(step.target.kind),
        "what": _text(step.target.what),
        "to": None if end is None or to is None else {"node": _text(end.node), "pid": int(to.pid)},
        "sure_by": _text(step.target.sure),
        "end": chain.end if after is None else None,
    }


def _actor(actor: ActorCulprit) -> dict[str, Any]:
    return {
        "label": whole(actor.label),
        "class": _text(actor.class_name),
        "name": _text(actor.name),
        "actor_id": _text(actor.actor_id),
        "task": _text(actor.task),
        "node": _text(actor.node),
        "pid": _int(actor.pid),
        "rank": _int(actor.rank),
        "why": whole(actor.why),
        "where": None if actor.where is None else _place(actor.where),
    }


def _storage(wait: FileWait) -> dict[str, Any]:
    return {
        "call": whole(wait.call),
        "path": whole(wait.path),
        "mount": _text(wait.mount),
        "type": _text(wait.type),
        "source": _text(wait.source),
        "state": _text(wait.state),
        "wait_channel": _text(wait.wait_channel),
        "for_s": wait.for_s,
        "pid": _int(wait.pid),
    }


def _place(place: Place) -> dict[str, Any]:
    return {
        "file": whole(place.file),
        "line": int(place.line),
        "function": _text(place.function),
        "code": _text(place.code),
        "frames": _frames(place.frames),
        "around": [{"line": int(number), "text": whole(text)} for number, text in place.around],
        "seen_in": str(place.seen_in),
        "pid": _int(place.pid),
        "moves": bool(place.moves),
        "filename": whole(place.file),
        "name": _text(place.function),
        "through": None if place.through is None else _frames([place.through])[0],
    }


def _log_fact(fact: LogFact) -> dict[str, Any]:
    return {
        "quote": whole(fact.quote),
        "source": whole(str(fact.source)),
        "kind": _text(fact.kind),
        "rank": _int(fact.rank),
        "node": _text(fact.node),
        "peer_rank": _int(fact.peer_rank),
        "peer": _text(fact.peer),
        "code": _int(fact.code),
    }


def _last_completed(operation: LastCompleted) -> dict[str, Any]:
    return {
        "group": whole(operation.group),
        "seq": _int(operation.seq),
        "name": whole(operation.name),
        "frames": _frames(operation.frames),
        "at": iso(operation.at_ns),
    }


_MOST_AWAITED = 1 << 17
_LEAST_AWAITED = 16


def _victims(d: Diagnosis) -> Iterator[dict[str, Any]]:
    """Who waits, and for which ranks. Where thousands wait for thousands, each lists a share of them and says how many
    there are: the ranks that the verdict accuses, the next one on the way there, and the lowest others."""
    most = _MOST_AWAITED
    if sum(len(v.waits_for) for v in d.victims) > most:
        most = max(_LEAST_AWAITED, most // len(d.victims))
    culprits = {c.rank for c in d.culprits}
    shares: dict[int, tuple[set[int], list[int]]] = {}  # by list, which all share who wait in one operation
    for v in sorted(d.victims, key=lambda v: v.rank):
        if id(v.waits_for) not in shares:
            ranks = _ranks(v.waits_for)
            accused = [rank for rank in ranks if rank in culprits]
            shares[id(v.waits_for)] = set(ranks), list(dict.fromkeys((*accused, *ranks)))[:most]
        there, listed = shares[id(v.waits_for)]
        following = {rank for rank in v.chain[1:2] if rank in there}
        if not following.issubset(listed):
            listed = [*listed[:-1], *following]
        yield {
            "rank": int(v.rank),
            "waits_for": _ranks(listed),
            "group": _text(v.group),
            "operation": _text(v.operation),
            "chain": [int(rank) for rank in v.chain],
            "waits_for_count": len(v.waits_for),
        }


def to_json(diagnosis: Diagnosis) -> str:
    """The verdict as JSON text. Pure ASCII, so that no stream's encoding and no terminal can come to harm."""
    return json.dumps(to_dict(diagnosis), indent=1, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The published JSON Schema of `to_dict`'s result."""
    text = resources.files("hangscope.report").joinpath("diagnosis.schema.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def _operation(operation: OperationInFlight) -> dict[str, Any]:
    return {
        "group": whole(operation.group),
        "members": [int(rank) for rank in operation.members],
        "seq": _int(operation.seq),
        "name": whole(operation.name),
        "bytes": _int(operation.bytes),
        "dtypes": [whole(dtype) for dtype in operation.dtypes],
        "state_by_rank": {str(int(rank)): state for rank, state in sorted(operation.state_by_rank.items())},
        "frames": _frames(operation.frames),
    }


def _link(link: Link) -> dict[str, Any]:
    def end(value: LinkEnd) -> dict[str, Any]:
        return {"rank": int(value.rank), "node": _text(value.node), "nic": _text(value.nic)}

    return {
        "from": end(link.sender),
        "to": end(link.receiver),
        "channel": _int(link.channel),
        "evidence": whole(link.evidence),
    }


def _completeness(value: Completeness) -> dict[str, Any]:
    return {
        "ranks": int(value.ranks),
        "dumps": int(value.dumps),
        "stacks": int(value.stacks),
        "logs": int(value.logs),
        "nccl_logs": int(value.nccl_logs),
        "missing_dumps": _ranks(value.missing_dumps),
        "missing_nccl_logs": _ranks(value.missing_nccl_logs),
        "clock_skew_ms": _float(value.clock_skew_ms),
        "gpu_cores": int(value.gpu_cores),
    }


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "text": whole(finding.text),
            "source": _source(finding.sources[0]) if finding.sources else None,
            "sources": [{"file": whole(s.file), "place": _text(s.place)} for s in finding.sources],
            "detail": [whole(line) for line in finding.detail],
        }
        for finding in findings
    ]


def _gap(gap: Gap) -> dict[str, Any]:
    return {
        "what": whole(gap.what),
        "why": _text(gap.why),
        "rank": _int(gap.rank),
        "node": _text(gap.node),
        "source": _source(gap.source),
    }


def _source(source: Source | None) -> str | None:
    return None if source is None else whole(str(source))


def _frames(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [{"name": whole(f.name), "filename": whole(f.filename), "line": int(f.line)} for f in frames]


def _ranks(ranks: Iterable[int]) -> list[int]:
    return sorted(int(rank) for rank in ranks)


def _text(value: str | None) -> str | None:
    return whole(value) if value else None


def _int(value: int | None) -> int | None:
    return None if value is None else int(value)


def _float(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
