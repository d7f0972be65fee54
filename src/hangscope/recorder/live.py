"""What the nodes' status files say together: per group, who is ahead, who is behind and for how long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.errors import NotFoundError
from hangscope.recorder import shared


@dataclass(frozen=True, slots=True)
class RankLine:
    """One rank now. `waits` is its oldest unfinished operation, for `waits_s` seconds."""

    rank: int
    node: str
    pid: int
    state: str
    waits: str = ""
    waits_s: float | None = None
    group: str = ""
    exit_status: int | None = None
    silent_s: float | None = None


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group now: the newest operation anybody has launched, who has not launched it, how long nothing has moved."""

    group: str
    recorder: str
    newest: int
    completed: int
    members: int
    behind: tuple[int, ...]
    still_s: float


@dataclass(frozen=True, slots=True)
class View:
    job: str
    attempt: str
    world_size: int | None
    ranks: tuple[RankLine, ...]
    groups: tuple[GroupLine, ...]
    captures: tuple[dict[str, Any], ...]
    stale_nodes: tuple[str, ...]
    ended: bool


def view(root: Path) -> View:
    """The run in `root` as its agents last described it."""
    files = sorted(root.glob(f"nodes/*/{shared.STATUS}"))
    states = [(path, state) for path in files if (state := shared.read(path))]
    if not states:
        raise NotFoundError(f"{root}: no run of hangscope", hint="give the directory that `hangscope run` uses")
    now = time.time()
    rows = [(state, row) for _, state in states for row in state.get("live") or () if isinstance(row, dict)]
    first = states[0][1]
    captures = {str(each.get("at")): each for _, state in states for each in state.get("captures") or ()}
    return View(
        job=str(first.get("job")),
        attempt=str(first.get("attempt")),
        world_size=max((state.get("world_size") or 0 for _, state in states), default=0) or None,
        ranks=tuple(sorted((_rank(state, row, now) for state, row in rows), key=lambda line: line.rank)),
        groups=_groups([row for _, row in rows]),
        captures=tuple(captures[at] for at in sorted(captures)),
        stale_nodes=tuple(
            str(state.get("node"))
            for path, state in states
            if state.get("ended") is None and now - path.stat().st_mtime > shared.FRESH_S
        ),
        ended=all(state.get("ended") is not None for _, state in states),
    )


def _rank(state: dict[str, Any], row: dict[str, Any], now: float) -> RankLine:
    waiting = row.get("waiting") or {}
    polled = row.get("last_poll_at")
    return RankLine(
        rank=int(row["rank"]),
        node=str(state.get("node")),
        pid=int(row.get("pid") or 0),
        state=str(row.get("state") or "?"),
        waits=str(waiting.get("operation") or ""),
        waits_s=waiting.get("for_s"),
        group=str(waiting.get("group") or ""),
        exit_status=row.get("exit_status"),
        silent_s=now - polled if isinstance(polled, (int, float)) else None,
    )


def _groups(rows: list[dict[str, Any]]) -> tuple[GroupLine, ...]:
    """Groups are told apart by recorder and name: their counters are compared over the ranks that have any."""
    members: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}
    for row in rows:
        for counter in row.get("groups") or ():
            members.setdefault((counter["recorder"], counter["group"]), []).append((int(row["rank"]), counter))
    lines = []
    for (recorder, group), each in members.items():
        newest = max(counter["enqueued"] for _, counter in each)
        lines.append(
            GroupLine(
                group=group,
                recorder=recorder,
                newest=newest,
                completed=min(counter["completed"] for _, counter in each),
                members=len(each),
                behind=tuple(sorted(rank for rank, counter in each if counter["enqueued"] < newest)),
                still_s=min(counter["still_s"] for _, counter in each),
            )
        )
    return tuple(sorted(lines, key=lambda line: (line.recorder, line.group)))
