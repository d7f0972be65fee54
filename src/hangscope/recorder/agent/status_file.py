"""status.json: what this node's ranks are doing right now, for `watch` and for the agents of the other nodes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.process import linux_process

SCHEMA = "hangscope.status/1"
RATE_S = 15.0


@dataclass(slots=True)
class Rates:
    """How many operations each rank launches a second, over the last seconds."""

    _seen: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)

    def of(self, rank: WatchedRank) -> float | None:
        """None until there are two looks to compare."""
        now, total = time.monotonic(), sum(each.enqueued for each in rank.progress.counters.values())
        seen = self._seen.setdefault(rank.process.pid, deque())
        seen.append((now, total))
        while len(seen) > 2 and now - seen[0][0] > RATE_S:
            seen.popleft()
        begun, before = seen[0]
        return (total - before) / (now - begun) if now - begun > 0.5 and total >= before else None


def rows(ranks: Iterable[WatchedRank], rates: Rates) -> list[dict[str, Any]]:
    now_ns = time.time_ns()
    return [_row(rank, now_ns, rates) for rank in ranks]


def _row(rank: WatchedRank, now_ns: int, rates: Rates) -> dict[str, Any]:
    oldest = rank.progress.oldest()
    stat = linux_process.stat(rank.process.pid)
    groups = _groups(rank)
    waiting = None
    if oldest is not None and not rank.ended:
        waiting = {
            "group": oldest.group,
            "name": groups.get((oldest.source, oldest.pg), {}).get("name", ""),
            "operation": oldest.label,
            "seq": oldest.seq,
            "for_s": round(oldest.age_s(now_ns), 1),
        }
    rate = rates.of(rank)
    return {
        "rank": rank.number,
        "pid": rank.process.pid,
        "local_rank": rank.process.local_rank,
        "state": "gone" if rank.ended or stat is None else stat.state,
        "exit_status": rank.exit_status,
        "server_answers": rank.server_answers,
        "last_poll_at": rank.last_poll_at,
        "rate": None if rate is None or rank.ended else round(rate, 2),
        "waiting": waiting,
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


def _groups(rank: WatchedRank) -> dict[tuple[str, str], dict[str, Any]]:
    """(recorder, number in it) → what people call the group, what tells it from others of that name, its size."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for source in {source for source, _ in rank.progress.counters}:
        sizes = {str(group.get("name")): len(group.get("ranks") or ()) for group in rank.groups}
        for name, each in rank.members(source).items():
            if "pg_id" in each:
                label = each["desc"] if each["desc"] not in ("", "undefined") else name
                found[source, str(each["pg_id"])] = {"name": name, "label": label, "size": sizes.get(name) or None}
    return found
