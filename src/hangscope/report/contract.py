"""The keys of the verdict's JSON, and the types by which each is written and described.

An object of the JSON has the fields of its dataclass, in their order. Only where it differs is it listed in OBJECTS: a
name there is a field or property as it is, with a `?` null instead of an empty text, and a `Key` is taken elsewhere.
`export` writes by this, `contract_schema` makes the published schema of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, NewType, get_type_hints

from hangscope.diagnosis.verdict import (
    SCHEMA,
    ActorCulprit,
    AlsoPossible,
    Culprit,
    Diagnosis,
    Finding,
    FirstReported,
    History,
    LastCompleted,
    Link,
    LinkEnd,
    Place,
    SeenBefore,
    UnrankedCulprit,
)
from hangscope.engine_roles import Role
from hangscope.model import EngineProcess, FileWait, Gap, GpuCore, GpuKernel, Source
from hangscope.sources.process_waits.chains import Chain, Step

Time = NewType("Time", int)
"""Nanoseconds, written as ``2026-11-15T02:30:11.204Z``."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of an object. `get` gives its value, which is written as what `hint` says."""

    name: str
    hint: Any
    get: Callable[[Any], Any]


@cache
def keys_of(cls: type) -> tuple[Key, ...]:
    """The keys of a class's object, in their order."""
    entries = OBJECTS.get(cls) or [one.name for one in fields(cls)]
    return tuple(entry if isinstance(entry, Key) else _own(cls, entry) for entry in entries)


def _own(cls: type, entry: str) -> Key:
    """A field or property by its own name."""
    name = entry.rstrip("?")
    hint = get_type_hints(cls).get(name)
    if hint is None:
        hint = get_type_hints(getattr(cls, name).fget)["return"]
    return Key(name, hint | None if entry != name else hint, lambda value: getattr(value, name))


def _as(name: str, attribute: str, hint: Any) -> Key:
    """A field under another name."""
    return Key(name, hint, lambda value: getattr(value, attribute))


# ---- objects that no class of the verdict has ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourcePlace:
    file: str
    place: str | None


@dataclass(frozen=True, slots=True)
class CodeLine:
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Awaited:
    """A victim with the ranks that it waits for, or a share of them."""

    rank: int
    waits_for: Sequence[int]
    group: str | None
    operation: str | None
    chain: tuple[int, ...]
    waits_for_count: int


@dataclass(frozen=True, slots=True)
class Engine:
    roles: Mapping[int, Role]
    others: tuple[EngineProcess, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A process on the way from an accused rank to what it waits for."""

    node: str | None
    pid: int
    rank: int | None
    name: str | None
    command: str | None
    state: str | None


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    node: str | None
    pid: int


@dataclass(frozen=True, slots=True)
class ProgramWait:
    """One wait between programs. `to` is null where no process was seen at the other end; `sure_by` says how that end
    is known."""

    of_rank: int
    node: str | None
    pid: int
    call: str | None
    kind: str | None
    what: str | None
    to: ProgramEnd | None
    sure_by: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class Experiment:
    commands: tuple[str, ...]
    outcomes: tuple[str, ...]


_MOST_AWAITED = 1 << 17
_LEAST_AWAITED = 16


def _victims(d: Diagnosis) -> Iterator[Awaited]:
    """Who waits, and for which ranks. Where thousands wait for thousands, each lists a share of them and says how many
    there are: the ranks that the verdict accuses, the next one on the way there, and the lowest others."""
    most = _MOST_AWAITED
    if sum(len(v.waits_for) for v in d.victims) > most:
        most = max(_LEAST_AWAITED, most // len(d.victims))
    culprits = {c.rank for c in d.culprits}
    shares: dict[int, tuple[set[int], list[int]]] = {}  # by list, which all share who wait in one operation
    for v in sorted(d.victims, key=lambda v: v.rank):
        if id(v.waits_for) not in shares:
            ranks = sorted(v.waits_for)
            accused = [rank for rank in ranks if rank in culprits]
            shares[id(v.waits_for)] = set(ranks), list(dict.fromkeys((*accused, *ranks)))[:most]
        there, listed = shares[id(v.waits_for)]
        following = {rank for rank in v.chain[1:2] if rank in there}
        if not following.issubset(listed):
            listed = [*listed[:-1], *following]
        yield Awaited(v.rank, sorted(listed), v.group, v.operation, v.chain, len(v.waits_for))


def _engine(d: Diagnosis) -> Engine | None:
    return Engine(d.roles, d.others) if d.roles or d.others else None


def _steps(d: Diagnosis) -> Iterator[tuple[int, Chain, Step, Step | None]]:
    """Each step with the one after it."""
    for rank, chain in sorted(d.program_waits.items()):
        for step, after in zip(chain.steps, (*chain.steps[1:], None), strict=True):
            yield rank, chain, step, after


def _programs(d: Diagnosis) -> list[Program]:
    """The processes on the way from accused ranks to other programs, each once."""
    there = {}
    for _, _, step, _ in _steps(d):
        if (p := step.process) is not None:
            there[step.node, p.pid] = Program(step.node, p.pid, p.rank, p.name, p.command, p.state)
    return [program for _, program in sorted(there.items())]


def _program_waits(d: Diagnosis) -> Iterator[ProgramWait]:
    for rank, chain, step, after in _steps(d):
        wait, target = step.wait, step.target
        if wait is None or target is None:
            continue
        # In a circle the last one waits for the first.
        end = after if after is not None or chain.end != "cycle" else chain.steps[0]
        to = None if end is None or end.process is None else ProgramEnd(end.node, end.process.pid)
        # A process at the end that waits in nothing of its own has no row: its end stands where the way leads to it.
        ends = after is None or after.wait is None or after.target is None
        last = chain.end if ends else None
        yield ProgramWait(rank, step.node, wait.pid, wait.call, target.kind, target.what, to, target.sure, last)


def _first_source(finding: Finding) -> Source | None:
    return finding.sources[0] if finding.sources else None


def _source_places(finding: Finding) -> list[SourcePlace]:
    return [SourcePlace(source.file, source.place) for source in finding.sources]


def _lines_around(place: Place) -> list[CodeLine]:
    return [CodeLine(number, text) for number, text in place.around]


def _culprits(d: Diagnosis) -> list[Culprit | UnrankedCulprit]:
    return [*sorted(d.culprits, key=lambda culprit: culprit.rank), *d.unranked]


def _of_culprit(key: Key) -> Key:
    """A key that culprits with a rank and without one share: null where the class of one has no such field."""
    return Key(key.name, key.hint, lambda culprit: getattr(culprit, key.name, None))


def _since(seen: SeenBefore) -> int | None:
    return None if seen.since_s is None else int(seen.since_s * 1e9)


def _experiment(history: History) -> Experiment | None:
    return Experiment(history.commands, history.outcomes) if history.commands else None


CULPRIT = tuple(
    _of_culprit(key)
    for key in (
        Key("rank", int | None, None),  # type: ignore[arg-type]
        *(_own(Culprit, one.name) for one in fields(Culprit) if one.name != "rank"),
        *(_own(UnrankedCulprit, name) for name in ("device", "task")),
    )
)

OBJECTS: Mapping[type, Sequence[str | Key]] = {
    Diagnosis: (
        Key("schema", Literal["hangscope.diagnosis/1"], lambda _: SCHEMA),
        "hang",
        "outcome",
        "kind",
        Key("culprits", tuple[Culprit, ...], _culprits),
        Key("victims", tuple[Awaited, ...], _victims),
        "operation",
        "last_completed",
        "link",
        "first_reported",
        Key("confidence", Literal["high", "medium", "low"], lambda d: d.confidence),
        "confidence_rule?",
        "summary",
        "also_possible",
        "why",
        "ruled_out",
        "next_steps",
        "evidence",
        "gaps",
        "headline?",
        "waiting_s",
        "lateness",
        "nodes",
        "completeness",
        "versions",
        "inputs",
        "facts",
        "gpu_cores",
        Key("engine", Engine | None, _engine),
        "actors",
        Key("processes", tuple[Program, ...], _programs),
        Key("waits", tuple[ProgramWait, ...], _program_waits),
        "history",
        "waiting_is_least",
        "retry",
    ),
    Culprit: CULPRIT,
    UnrankedCulprit: CULPRIT,
    LastCompleted: ("group", "seq", "name", "frames", _as("at", "at_ns", Time)),
    Link: (_as("from", "sender", LinkEnd), _as("to", "receiver", LinkEnd), "channel", "evidence"),
    FirstReported: ("rank", "node", _as("at", "at_ns", Time), "local_time", "operation"),
    AlsoPossible: ("kind", Key("culprits", tuple[int, ...], lambda other: sorted(other.culprits)), "why"),
    Finding: (
        "text",
        Key("source", Source | None, _first_source),
        Key("sources", tuple[SourcePlace, ...], _source_places),
        "detail",
    ),
    Gap: ("what", "why?", "rank", "node", "source"),
    GpuCore: (
        "rank",
        _as("asked_at", "asked_ns", Time),
        "kernels",
        Key("source", str, lambda core: core.source.file),
    ),
    GpuKernel: ("name", "device", "grid", "block", "blocks"),
    Role: ("engine", "name", "replica?", "says"),
    EngineProcess: ("pid", "node", "state", "role"),
    ActorCulprit: (
        "label",
        _as("class", "class_name", str | None),
        *("name", "actor_id", "task", "node", "pid", "rank", "why", "where"),
    ),
    Place: (
        *("file", "line", "function?", "code", "frames"),
        Key("around", tuple[CodeLine, ...], _lines_around),
        *("seen_in", "pid", "moves"),
        _as("filename", "file", str),
        _as("name", "function", str | None),
        "through",
    ),
    FileWait: ("call", "path", "mount", "type", "source", "state", "wait_channel", "for_s", "pid"),
    History: (
        "server",
        "track_records",
        "answer",
        "rows",
        Key("experiment", Experiment | None, _experiment),
        _as("issue", "seen_before", SeenBefore | None),
    ),
    SeenBefore: (
        _as("id", "issue", int),
        "incidents",
        Key("first_seen_at", Time, _since),
        "url",
    ),
}
"""Classes whose object is not their fields as they are."""
