"""status.json: what this node's ranks are doing right now, for `watch` and for the agents of the other nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from hangscope.recorder import process
from hangscope.recorder.ranks import Rank

SCHEMA = "hangscope.status/1"


def rows(ranks: Iterable[Rank]) -> list[dict[str, Any]]:
    now_ns = time.time_ns()
    return [_row(rank, now_ns) for rank in ranks]


def _row(rank: Rank, now_ns: int) -> dict[str, Any]:
    oldest = rank.progress.oldest()
    told = process.stat(rank.worker.pid)
    waiting = None
    if oldest is not None and not rank.ended:
        waiting = {"group": oldest.group, "operation": oldest.label, "for_s": round(oldest.age_s(now_ns), 1)}
    return {
        "rank": rank.number,
        "pid": rank.worker.pid,
        "local_rank": rank.worker.local_rank,
        "state": "gone" if rank.ended or told is None else told.state,
        "exit_status": rank.exit_status,
        "server_answers": rank.server_answers,
        "last_poll_at": rank.last_poll_at,
        "waiting": waiting,
        "groups": [
            {
                "recorder": source,
                "group": rank.group_label(source, number),
                "enqueued": counter.enqueued,
                "completed": counter.completed,
                "still_s": round(time.monotonic() - counter.since, 1),
            }
            for (source, number), counter in sorted(rank.progress.counters.items())
        ],
    }
