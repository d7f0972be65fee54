"""What every report says alike: times, code lines, sources, operations, and who waits for the culprit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from hangscope.diagnosis.verdict import CauseKind, Diagnosis, Place, SeenIn, UnrankedCulprit, Victim
from hangscope.model import Frame, Source
from hangscope.text import duration, installed_package, plural, rank_list


def moment(at_ns: int | None) -> datetime | None:
    """A time in UTC, or None where the number is no time at all (a damaged dump may hold anything)."""
    if at_ns is None:
        return None
    try:
        seconds, rest = divmod(int(at_ns), 1_000_000_000)
        return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest // 1000)
    except (OverflowError, OSError, ValueError):
        return None


def iso(at_ns: int | None, *, local: bool = False) -> str | None:
    """``2026-11-15T02:30:11.204Z``, or None; without the Z where the time is a log's own (`local`)."""
    at = moment(at_ns)
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}{'' if local else 'Z'}"


def clock(at_ns: int | None, *, local: bool = False) -> str | None:
    """``02:30:11.204 UTC``: the day is left out, because a hang is read within hours."""
    at = moment(at_ns)
    return None if at is None else f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {'local time' if local else 'UTC'}"


def members(d: Diagnosis) -> str:
    """How many ranks the operation in flight has. Who belongs to it is not recorded of a call that no recorder has, and
    logs alone show who wrote."""
    if d.operation is None:
        return "0 ranks"
    count = len(d.operation.members)
    by_peers = "->" in d.operation.name or "<-" in d.operation.name
    if (d.operation.seq is None and not by_peers) or only_logs(d):
        states = d.operation.state_by_rank
        inside = [rank for rank in d.operation.members if states.get(rank) not in ("not launched", "unknown")]
        return f"{rank_list(inside or d.operation.members, limit=6)} seen in it"
    return plural(count, "rank")


def how_long(d: Diagnosis) -> str:
    """``for 5.6s``; the longest wait where there are several; ``at least`` where nothing says when it began."""
    if d.waiting_s is None:
        return "for an unknown time"
    longest = ", the longest " if len(d.victims) > 1 else " "
    return f"{longest}for {'at least ' if d.waiting_is_least else ''}{duration(d.waiting_s)}"


def only_logs(d: Diagnosis) -> bool:
    return d.completeness is not None and not d.completeness.dumps


def source_text(source: Source, inputs: Sequence[str]) -> str:
    """The source without the path that the user typed."""
    for given in inputs:
        lead = given.rstrip("/") + "/"
        if source.file.startswith(lead):
            return str(Source(source.file[len(lead) :], source.place))
    return str(source)


def kind_text(kind: CauseKind) -> str:
    return "GPU" if kind == CauseKind.GPU else str(kind)


def title(name: str, seq: int | None) -> str:
    """``all_reduce #16``. A send or receive is known by its peers: its group counts collectives only."""
    return name if seq is None or "->" in name or "<-" in name else f"{name} #{seq}"


def direct(diagnosis: Diagnosis) -> list[Victim]:
    """The victims that wait for a culprit and not for another victim; all of them where nobody is accused."""
    culprits = {c.rank for c in diagnosis.culprits}
    lists = {id(v.waits_for): v.waits_for for v in diagnosis.victims}  # thousands that wait in one operation share one
    held = {key for key, ranks in lists.items() if not culprits or not culprits.isdisjoint(ranks)}
    return [v for v in diagnosis.victims if id(v.waits_for) in held]


BELOW_THE_CALLS = (CauseKind.NETWORK, CauseKind.GPU, CauseKind.UNKNOWN)
"""Kinds of which a library's own log could say more."""

_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{32}\b")


def brief(diagnosis: Diagnosis) -> Diagnosis:
    """The verdict as people read it: a group whose name is a hash (of a mesh) goes by its first digits."""

    def short(text: str) -> str:
        return _HASH.sub(r"\1…", text)

    d = diagnosis
    return replace(
        d,
        headline=short(d.headline),
        summary=short(d.summary),
        culprits=tuple(replace(c, why=short(c.why)) for c in d.culprits),
        victims=tuple(replace(v, group=v.group and short(v.group)) for v in d.victims),
        operation=d.operation and replace(d.operation, group=short(d.operation.group)),
        last_completed=d.last_completed and replace(d.last_completed, group=short(d.last_completed.group)),
        also_possible=tuple(replace(other, why=short(other.why)) for other in d.also_possible),
        why=tuple(replace(f, text=short(f.text)) for f in d.why),
        ruled_out=tuple(replace(r, why=short(r.why)) for r in d.ruled_out),
        next_steps=tuple(map(short, d.next_steps)),
    )


def unranked_text(culprit: UnrankedCulprit) -> str:
    """What is known of a culprit whose rank is not: ``gpu-07, local rank 4, pid 812``."""
    named = (
        culprit.role.says if culprit.role is not None else None,
        culprit.node,
        f"local rank {culprit.local_rank}" if culprit.local_rank is not None else None,
        f"device {culprit.device}" if culprit.device else None,
        f"task {culprit.task}" if culprit.task else None,
        f"pid {culprit.pid}" if culprit.pid is not None else None,
    )
    return f"{', '.join(each for each in named if each)}; its rank is not known"


def short_place(frame: Frame) -> str:
    """``train.py:88``: the file's own name is what people look for."""
    file = frame.filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{file}:{frame.line}"


def place(frame: Frame) -> str:
    """``train.py:88 in train_step``, ``accelerate's operations.py:355 in gather``."""
    package = installed_package(frame.filename)
    at = f"{package}'s {short_place(frame)}" if package else short_place(frame)
    return f"{at} in {frame.name}" if frame.name else at


_NOTES = {
    SeenIn.CHILD: "worker process",
    SeenIn.TRACEBACK: "raised here",
    SeenIn.CRASH: "ended here",
    SeenIn.CALL: "its call",
}


def place_note(where: Place) -> str:
    """What shows a culprit's place, in brackets; empty where its own stack does."""
    note = _NOTES.get(where.seen_in, "")
    return f" ({note}{f' {where.pid}' if where.pid is not None else ''})" if note else ""


def place_text(where: Place) -> str:
    """``train.py:31 in save``, and what showed it where that is not the rank's own stack."""
    return place(where.frame) + place_note(where)


def through_text(where: Place) -> str:
    """``, through accelerate's operations.py:355 in _gpu_gather``, where the rank is inside of a package."""
    return f", through {place(where.through)}" if where.through is not None else ""


def culprit_lines(d: Diagnosis) -> list[tuple[Place, list[int]]]:
    """The lines of code at which culprits are, each with its ranks, the line of most of them first."""
    found: dict[tuple[str, int, str, str], tuple[Place, list[int]]] = {}
    for culprit in d.culprits:
        where = culprit.where
        if where is not None:
            key = (where.file, where.line, where.function, where.seen_in)
            found.setdefault(key, (where, []))[1].append(culprit.rank)
    return sorted(found.values(), key=lambda each: -len(each[1]))
