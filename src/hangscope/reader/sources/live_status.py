"""nodes/<node>/status.json of a run: what its agent saw of each rank last, some second before it ended.

Where nothing was captured (the job was cancelled, or its node died, before the stall was noticed) these counters are
all that is left. They take the form of a live poll's last answer, with no operations in it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hangscope.model import Failure, FailureKind, Frame, Process, Source, ThreadStack
from hangscope.model.statements import Statement, Trust
from hangscope.model.values import host_name, number, rank_number, text, whole
from hangscope.reader.dumps import dump_file

SCHEMA = "hangscope.status/"
STILL_S = 5.0
"""A counter that stood still for less may be in the middle of a step."""
_MOST_ROWS = 4_096
_MOST_GROUPS = 512
_NAMED = 8
_FROM_OUTSIDE = (128 + 1, 128 + 2, 128 + 15)
"""Terminals, people and schedulers send SIGHUP, SIGINT and SIGTERM."""


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """One node's last status, as far as it says what it should."""

    file: str
    node: str | None
    world_size: int | None
    rows: tuple[Mapping[str, Any], ...]
    at_s: float = 0.0
    machine: str | None = None
    """Of a pod, the machine that it ran on, empty where it did not know that; None where the node is one."""
    ended: int | None = None
    """The status that the command ended with, 128 + n where signal n ended it; None where it had not."""

    def without(self, ranks: Collection[int]) -> LiveStatus:
        """The same without ranks of which more is known."""
        return replace(self, rows=tuple(row for row in self.rows if row["rank"] not in ranks))


def read(value: Mapping[str, Any], file: str) -> LiveStatus:
    live = value.get("live")
    rows = live[:_MOST_ROWS] if isinstance(live, list) else []
    return LiveStatus(
        file,
        host_name(text(value.get("node"))),
        whole(value.get("world_size")),
        tuple(row for row in rows if isinstance(row, Mapping) and rank_number(row.get("rank")) is not None),
        number(value.get("at")) or 0.0,
        _machine(value.get("host")),
        whole(value.get("ended")),
    )


def _machine(value: object) -> str | None:
    return host_name(value) or "" if isinstance(value, str) else None


def newest(statuses: Sequence[LiveStatus]) -> list[LiveStatus]:
    """Each rank in the status that was written last: a copy may lie beside, or an earlier attempt."""
    left: list[LiveStatus] = []
    seen: set[int] = set()
    for status in sorted(statuses, key=lambda each: (-each.at_s, each.file)):
        left.append(status.without(seen))
        seen.update(row["rank"] for row in status.rows)
    return left


def stood_still(statuses: Sequence[LiveStatus]) -> bool:
    """Whether a rank had launched what it did not complete, and nothing of its group moved for seconds. A job of which
    every rank ended with 0 did not: on a busy machine its last seconds may go unseen."""
    rows = [(row, status) for status in statuses for row in status.rows]
    if all(whole(row.get("exit_status")) == 0 for row, _ in rows):
        return False
    return any(_waits(row, status.at_s) is not None for row, status in rows)


def unmoved_since(status: LiveStatus, captured_s: float) -> LiveStatus:
    """Ranks that are there, and whose counters have not moved since before that time: so they were then."""

    def unmoved(row: Mapping[str, Any]) -> bool:
        groups = [group for _, group in _groups(row)]
        there = row.get("state") != "gone" and row.get("exit_status") is None
        return there and bool(groups) and all(since(group) <= captured_s for group in groups)

    def since(group: Mapping[str, Any]) -> float:
        return status.at_s - (number(group.get("still_s")) or 0.0)

    return replace(status, rows=tuple(row for row in status.rows if captured_s <= status.at_s and unmoved(row)))


def ended_by_signal(statuses: Sequence[LiveStatus]) -> Iterator[Failure]:
    """That somebody ended the job while it moved: where commands ended, they all ended by a signal from outside."""
    ends = [status for status in newest(statuses) if status.ended is not None]
    if not ends or any(status.ended not in _FROM_OUTSIDE for status in ends) or stood_still(statuses):
        return
    first = ends[-1]
    nodes = sorted({status.node for status in ends if status.node is not None})
    said = f"the command ended with status {first.ended} on {', '.join(nodes[:_NAMED])}" + " …" * (len(nodes) > _NAMED)
    yield Failure(
        FailureKind.LAUNCHER_SIGNAL, said, Source(first.file), None, None, code=128 - (first.ended or 0), effect=True
    )


def dumps(status: LiveStatus) -> Iterator[dump_file.RawDump]:
    """Each rank's counters in the form of a poll's last answer. Those that moved a moment before say nothing: what came
    after nobody saw."""
    for row in status.rows:
        groups = [(name, group) for name, group in _groups(row) if (number(group.get("still_s")) or 0.0) >= STILL_S]
        if not groups:
            continue
        config = {name: _config(group, name, status.world_size) for name, group in groups}
        counters = {
            name: {
                "last_enqueued_collective": str(whole(group.get("enqueued"))),
                "last_started_collective": str(whole(group.get("completed"))),
                "last_completed_collective": str(whole(group.get("completed"))),
            }
            for name, group in groups
        }
        answer = {"version": "2.10", "entries": [], "pg_config": config, "pg_status": counters, "rank": row["rank"]}
        yield dump_file.read(
            json.dumps(answer).encode(), file=status.file, hint_rank=row["rank"], node=status.node, role="poll"
        )


def stacks(status: LiveStatus) -> Iterator[ThreadStack]:
    """The line at which a rank was that waits in nothing that anybody counts."""
    for index, row in enumerate(status.rows):
        at = row.get("code")
        waits = row.get("waiting") or row.get("meets_at") or any(_unfinished(group) for _, group in _groups(row))
        if waits or row.get("state") == "gone" or not isinstance(at, Mapping) or text(at.get("file")) is None:
            continue
        frame = Frame(text(at.get("function")) or "?", text(at.get("file")) or "", whole(at.get("line")) or 0)
        source = Source(status.file, f"live[{index}]")
        pid = whole(row.get("pid"))
        yield ThreadStack(row["rank"], pid, "MainThread", (frame,), source, main=True, node=status.node)


def _unfinished(group: Mapping[str, Any]) -> bool:
    return (whole(group["enqueued"]) or 0) > (whole(group["completed"]) or 0)


def statements(status: LiveStatus, *, waits: bool) -> Iterator[Statement]:
    """Who the ranks are, and with `waits` how long each had stood still in what it waits in."""
    for index, row in enumerate(status.rows):
        waits_s = _waits(row, status.at_s) if waits else None
        yield Statement(
            Trust.NODE,
            Process(
                row["rank"],
                node=status.node,
                pid=whole(row.get("pid")),
                local_rank=rank_number(row.get("local_rank")),
                waits_in="a collective" if waits_s is not None else None,
                stood_s=waits_s,
                unanswered=row.get("server_answers") is False,
                source=Source(status.file, f"live[{index}]"),
            ),
        )


def _groups(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    listed = row.get("groups")
    for group in listed[:_MOST_GROUPS] if isinstance(listed, list) else ():
        counted = isinstance(group, Mapping) and None not in (
            whole(group.get("enqueued")),
            whole(group.get("completed")),
        )
        if counted:
            yield text(group.get("name")) or text(group.get("group")) or "", group


def _config(group: Mapping[str, Any], name: str, world_size: int | None) -> dict[str, str]:
    """Its members are known where it is as large as the job."""
    size = whole(group.get("size"))
    everybody = json.dumps(list(range(size))) if size is not None and size == world_size and size <= _MOST_ROWS else ""
    return {"name": name, "desc": text(group.get("group")) or "", "ranks": everybody}


def _waits(row: Mapping[str, Any], at_s: float) -> float | None:
    """For how long a rank had stood still in something; None where it had not. What passed between the last answer of
    one that is gone and the file nobody saw."""
    last_s = number(row.get("last_poll_at"))
    unseen_s = max(0.0, at_s - last_s) if row.get("state") == "gone" and last_s is not None else 0.0
    still = [number(group.get("still_s")) or 0.0 for _, group in _groups(row) if _unfinished(group)]
    longest = max(still, default=0.0) - unseen_s
    return longest if longest >= STILL_S else None
