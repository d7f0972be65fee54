"""What this node shows of itself: status.json, for `watch` and for the agents of other nodes, and its metrics."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from hangscope import engine_roles
from hangscope.processes import linux_process
from hangscope.recorder.agent import announced_pauses
from hangscope.recorder.agent.incidents import Incidents
from hangscope.recorder.agent.job_events import JobEvents
from hangscope.recorder.agent.metrics import Metrics, Numbers
from hangscope.recorder.agent.never_seen import nodes_announced
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.rank_activity import RankActivity
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.safeio.safe_files import Patience

SCHEMA = "hangscope.status/1"
RATE_S = 15.0
WRITE_S = 5.0
"""For one write of the status: where the file system hangs, the next one tries again."""


class StatusWriter:
    """`command` is the pid of what was started."""

    def __init__(
        self,
        folders: RunFolders,
        node: NodeFacts,
        command: int,
        *,
        polling: Polling,
        activity: RankActivity,
        events: JobEvents,
        log: Incidents,
        metrics: Metrics | None = None,
    ) -> None:
        self._folders = folders
        self._node = node
        self._command = command
        self._polling = polling
        self._activity = activity
        self._events = events
        self._log = log
        self._metrics = metrics
        self._rates = Rates()
        self._patience = Patience(WRITE_S)

    def write(self) -> None:
        value = self._value()
        with contextlib.suppress(OSError):
            self._patience.ask("status", lambda: self._folders.write(run_directory.STATUS, value))
        if self._metrics is not None:
            ended = self._events.ended.is_set()
            self._metrics.publish(numbers(self._polling, self._log, ended=ended))

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    def _value(self) -> dict[str, Any]:
        first = next(iter(self._polling), None)
        pause = announced_pauses.of_this_node(self._polling)
        return {
            "schema": SCHEMA,
            "node": self._node.name,
            "host": self._node.machine,
            "job": self._node.job,
            "attempt": self._node.attempt,
            "at": time.time(),
            "agent_pid": os.getpid(),
            "command_pid": self._command,
            "sockets": str(self._polling.sockets),
            "world_size": first.process.world_size if first is not None else None,
            "local_world_size": first.process.local_world_size if first is not None else None,
            "nodes": nodes_announced(self._polling),
            "threshold_s": self._polling.threshold(),
            "poll_s": round(self._polling.interval, 3),
            "ended": self._events.end_as_said,
            "pause_ago_s": None if pause is None else round(pause.ago_s, 1),
            "captures": [asdict(note) for note in self._log.captures],
            "live": rows(self._polling, self._rates, self._activity),
        }


@dataclass(slots=True)
class Rates:
    """How many operations each rank launches a second, over the last seconds."""

    _seen: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)

    def of(self, rank: WatchedRank) -> float | None:
        """None until there are two samples to compare."""
        now = time.monotonic()
        total = sum(each.enqueued for each in rank.progress.counters.values())
        seen = self._seen.setdefault(rank.process.pid, deque())
        seen.append((now, total))
        while len(seen) > 2 and now - seen[0][0] > RATE_S:
            seen.popleft()
        begun, before = seen[0]
        return (total - before) / (now - begun) if now - begun > 0.5 and total >= before else None


def rows(ranks: Iterable[WatchedRank], rates: Rates, activity: RankActivity) -> list[dict[str, Any]]:
    now_ns = time.time_ns()
    now = time.monotonic()
    return [{**_row(rank, now_ns, rates), "works": activity.works(rank, now)} for rank in ranks]


def _row(rank: WatchedRank, now_ns: int, rates: Rates) -> dict[str, Any]:
    stat = linux_process.stat(rank.process.pid)
    rate = rates.of(rank)
    groups = _groups(rank)
    return {
        "rank": rank.number,
        "pid": rank.process.pid,
        "local_rank": rank.process.local_rank,
        "role": engine_roles.to_value(rank.role),
        "state": "gone" if rank.ended or stat is None else stat.state,
        "exit_status": rank.exit_status,
        "server_answers": rank.server_answers,
        "last_poll_at": rank.last_poll_at,
        "rate": None if rate is None or rank.ended else round(rate, 2),
        "waiting": _waiting(rank, groups, now_ns),
        "code": _code(rank),
        "prepares": rank.position.prepares and not rank.ended,
        "meets_at": rank.meets_at if rank.starts and not rank.ended else "",
        "groups": [
            {
                "recorder": source,
                "group": groups.get((source, number), {}).get("label") or rank.group_label(source, number),
                "name": groups.get((source, number), {}).get("name", ""),
                "size": groups.get((source, number), {}).get("size"),
                "enqueued": counter.enqueued,
                "completed": counter.completed,
                "still_s": round(time.monotonic() - counter.since, 1),
            }
            for (source, number), counter in sorted(rank.progress.counters.items())
        ],
    }


_GroupFacts = dict[tuple[str, str], dict[str, Any]]


def _waiting(rank: WatchedRank, groups: _GroupFacts, now_ns: int) -> dict[str, Any] | None:
    """The rank's oldest unfinished operation; None where it has none, or has ended."""
    oldest = rank.progress.oldest()
    if oldest is None or rank.ended:
        return None
    return {
        "group": oldest.group,
        "name": groups.get((oldest.source, oldest.pg), {}).get("name", ""),
        "operation": oldest.label,
        "seq": oldest.seq,
        "for_s": round(oldest.age_s(now_ns), 1),
    }


def _code(rank: WatchedRank) -> dict[str, Any] | None:
    """The user's line at which the rank is; None while it moves, when nobody asks for its stack."""
    at = rank.position.at
    if at is None or rank.position.since is None or rank.ended:
        return None
    return {"file": at.file, "line": at.line, "function": at.name}


def _groups(rank: WatchedRank) -> _GroupFacts:
    """(recorder, number in it) → what people call the group, what tells it from others of that name, its size."""
    found: _GroupFacts = {}
    for source in {source for source, _ in rank.progress.counters}:
        sizes = {str(group.get("name")): len(group.get("ranks") or ()) for group in rank.groups}
        for name, each in rank.members(source).items():
            if "pg_id" in each:
                label = each["desc"] if each["desc"] not in ("", "undefined") else name
                found[source, str(each["pg_id"])] = {"name": name, "label": label, "size": sizes.get(name) or None}
    return found


def numbers(polling: Polling, log: Incidents, *, ended: bool) -> Numbers:
    """What the metrics show."""
    living = polling.living
    now_ns = time.time_ns()
    oldest = [rank.progress.oldest() for rank in living]
    ages = [each.age_s(now_ns) for each in oldest if each is not None]
    moved = [each.since for rank in living for each in rank.progress.counters.values()]
    announced = [rank.process.local_world_size for rank in polling]
    return Numbers(
        expected=max((size for size in announced if size is not None), default=None),
        watched=len(living),
        ended=len(polling) - len(living),
        waiting=len(ages),
        last_progress_at=time.time() - (time.monotonic() - max(moved)) if moved else None,
        oldest_s=max(ages, default=0.0),
        threshold_s=polling.threshold(),
        incidents=log.reasons(),
        verdicts=log.kinds(),
        pauses=log.pauses,
        job_ended=ended,
    )
