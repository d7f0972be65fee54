"""What the nodes' status files say together: per group, who is ahead, who is behind and for how long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hangscope.errors import NotFoundError
from hangscope.recorder import shared
from hangscope.recorder.neighbours import CaptureNote, GroupCounter, RankRow, Status


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
    captures: tuple[CaptureNote, ...]
    stale_nodes: tuple[str, ...]
    ended: bool


def view(root: Path) -> View:
    """The run in `root` as its agents last described it."""
    states = shared.statuses(root)
    if not states:
        raise NotFoundError(f"{root}: no run of hangscope", hint="give the directory that `hangscope run` uses")
    now = time.time()
    rows = [(state, row) for _, state in states for row in state.live]
    first = states[0][1]
    captures = {(each.at, each.incident): each for _, state in states for each in state.captures}
    return View(
        job=first.job,
        attempt=first.attempt,
        world_size=max((state.world_size or 0 for _, state in states), default=0) or None,
        ranks=tuple(sorted((_rank(state, row, now) for state, row in rows), key=lambda line: (line.rank, line.node))),
        groups=_groups([row for _, row in rows]),
        captures=tuple(captures[at] for at in sorted(captures)),
        stale_nodes=tuple(state.node for folder, state in states if not state.ended and _is_stale(folder, now)),
        ended=all(state.ended for _, state in states),
    )


def _is_stale(folder: Path, now: float) -> bool:
    try:
        return now - (folder / shared.STATUS).lstat().st_mtime > shared.FRESH_S
    except OSError:
        return True


def _rank(state: Status, row: RankRow, now: float) -> RankLine:
    return RankLine(
        rank=row.rank,
        node=state.node,
        pid=row.pid,
        state=row.state,
        waits=row.waits,
        waits_s=row.waits_s,
        group=row.group,
        exit_status=row.exit_status,
        silent_s=now - row.last_poll_at if row.last_poll_at is not None else None,
    )


def _groups(rows: list[RankRow]) -> tuple[GroupLine, ...]:
    """Groups are told apart by recorder and name: their counters are compared over the ranks that have any."""
    members: dict[tuple[str, str], list[tuple[int, GroupCounter]]] = {}
    for row in rows:
        for counter in row.groups:
            members.setdefault((counter.recorder, counter.group), []).append((row.rank, counter))
    lines = []
    for (recorder, group), each in members.items():
        newest = max(counter.enqueued for _, counter in each)
        lines.append(
            GroupLine(
                group=group,
                recorder=recorder,
                newest=newest,
                completed=min(counter.completed for _, counter in each),
                members=len(each),
                behind=tuple(sorted(rank for rank, counter in each if counter.enqueued < newest)),
                still_s=min(counter.still_s for _, counter in each),
            )
        )
    return tuple(sorted(lines, key=lambda line: (line.recorder, line.group)))
