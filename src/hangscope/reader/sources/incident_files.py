"""hangscope's own files in an incident: incident.json, about the whole, and each node's node.json."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hangscope.engine_roles import from_value
from hangscope.model import EngineProcess, Failure, FailureKind, Gap, Source
from hangscope.model.statements import Statement, Trust
from hangscope.model.times import parse_time
from hangscope.model.values import host_name, number, rank_number, text, whole
from hangscope.reader.sources.rosters import MOST_ROWS, read_row, rows_of

_STARTUP_FAILURES = (FailureKind.NEVER_SEEN, FailureKind.ELSEWHERE)
_COLLECTED = "collected"
"""The reason in a manifest of what people put together, such as a bundle of a folder: nobody captured it at once."""
_MOST_UNSEEN = 32_768
"""Ranks of which nobody saw a process; of more it is said how many."""
_MOST_SILENT = 1024
_ANSWERS = "answers"
_NO_ANSWER = "no answer"
"""What the machine of an agent that went silent said when another node asked it."""
_MOST_OTHERS = 1024
_LONGEST_SENTENCE = 1000
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an incident.json says about the whole."""

    source: Source
    job: str | None
    attempt: str | None
    reason: str | None
    captured_at_ns: int | None
    world_size: int | None
    versions: Mapping[str, str]
    gaps: tuple[Gap, ...]
    recovered_s: float | None = None
    """For how long the job stood still before it went on by itself."""
    failures: tuple[Failure, ...] = ()
    """What the agents say of ranks that nobody has seen, and of nodes that went silent."""


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What a node.json says about one node."""

    source: Source
    node: str | None
    job: str | None
    attempt: str | None
    captured_at_ns: int | None
    statements: tuple[Statement, ...]
    versions: Mapping[str, str]
    gaps: tuple[Gap, ...]
    oom_kills: tuple[tuple[int | None, int], ...] = ()
    """(pid, out-of-memory kills that the process's control group counted)."""
    others: tuple[EngineProcess, ...] = ()
    """The processes of an engine that are no ranks."""


def read_manifest(value: Mapping[str, Any], file: str) -> Manifest:
    """An incident.json: what was captured, and which nodes are missing from it."""
    source = Source(file)
    gaps = list(_absent_nodes(value, source))
    silent = tuple(_silent_nodes(value.get("silent_nodes"), source))
    gaps.extend(gap for line in silent if line.kind == FailureKind.AGENT_SILENT for gap in _unsaved(line))
    gaps.extend(gap for kind in _STARTUP_FAILURES for gap in _unread_ranks(kind, value.get(kind), source))
    world_size = rank_number(value.get("world_size"))
    if world_size is not None and world_size > MOST_ROWS:
        gaps.append(Gap(f"a world size of {world_size:,}", f"more than {MOST_ROWS:,} is implausible", source=source))
        world_size = None
    return Manifest(
        source,
        text(value.get("job")),
        text(value.get("attempt")),
        text(value.get("reason")) if value.get("reason") != _COLLECTED else None,
        parse_time(text(value.get("captured_at")) or ""),
        world_size,
        _versions(value.get("versions")),
        tuple(gaps),
        _recovered(value.get("recovered")),
        (
            *(failure for kind in _STARTUP_FAILURES for failure in _startup_failure(kind, value.get(kind), source)),
            *silent,
        ),
    )


def _absent_nodes(value: Mapping[str, Any], source: Source) -> Iterator[Gap]:
    """The expected nodes that left nothing, and why where whoever captured them wrote that down. Where no node is
    known to be present, as in what was collected without folders of nodes, only those with a reason are absent."""
    expected, present = value.get("nodes_expected"), value.get("nodes_present")
    if not isinstance(expected, list):
        return
    reasons = {text(gap.get("what")): why for _, gap in _objects(value.get("gaps")) if (why := text(gap.get("why")))}
    here = set(map(str, present)) if isinstance(present, list) else None
    for node in map(str, expected):
        what = f"nothing from node {node}"
        if (what in reasons) if here is None else (node not in here):
            why = reasons.get(what, "it is not part of this incident")
            yield Gap(what, why[:_LONGEST_SENTENCE], node=node, source=source)


def _startup_failure(kind: FailureKind, value: object, source: Source) -> Iterator[Failure]:
    """Ranks of which no agent saw a process, or that look for the others elsewhere, while all wait in their start."""
    if not isinstance(value, Mapping) or not isinstance(value.get("ranks"), list):
        return
    ranks = {rank for row in value["ranks"][:_MOST_UNSEEN] if (rank := rank_number(row)) is not None}
    if ranks:
        said = text(value.get("text")) or "it did not join the others' rendezvous"
        by = host_name(text(value.get("by")))
        yield Failure(kind, said[:_LONGEST_SENTENCE], source, None, by, ranks=tuple(sorted(ranks)))


def _silent_nodes(value: object, source: Source) -> Iterator[Failure]:
    """Nodes whose agent stopped writing in the middle of the job: a failure of each rank there where the machine does
    not answer either, one of the agent where it does, or where nobody could ask it."""
    nodes = value.get("nodes") if isinstance(value, Mapping) else None
    for _, row in islice(_objects(nodes), _MOST_SILENT):
        node = host_name(text(row.get("node")))
        seconds = number(row.get("silent_s"))
        listed = row.get("ranks")
        if node is None or seconds is None or not isinstance(listed, list):
            continue
        ranks = [rank for each in listed[:_MOST_UNSEEN] if (rank := rank_number(each)) is not None]
        said = f"the agent on {node} has written nothing for {seconds:.0f} s, while those of other nodes did"
        machine = text(row.get("machine"))
        if machine == _NO_ANSWER:
            said += ", and the machine does not answer"
            yield from (Failure(FailureKind.NODE_SILENT, said, source, rank, node) for rank in ranks)
        elif ranks:
            known = "its machine answers" if machine == _ANSWERS else "whether its machine is up is not known"
            said += f"; {known}"
            yield Failure(
                FailureKind.AGENT_SILENT, said, source, None, node, ranks=tuple(ranks), effect=True, detail=known
            )


def _unsaved(line: Failure) -> Iterator[Gap]:
    """What nobody was left to save."""
    for rank in line.ranks[:_NAMED]:
        yield Gap(f"what rank {rank} was doing", line.text, rank, line.node, line.source)
    if len(line.ranks) > _NAMED:
        what = f"what {len(line.ranks) - _NAMED} more ranks of {line.node} were doing"
        yield Gap(what, line.text, node=line.node, source=line.source)


def _unread_ranks(kind: str, value: object, source: Source) -> Iterator[Gap]:
    rows = value.get("ranks") if isinstance(value, Mapping) else None
    if isinstance(rows, list) and len(rows) > _MOST_UNSEEN:
        what = f"{len(rows) - _MOST_UNSEEN:,} ranks that {kind.replace('_', ' ')} lists"
        yield Gap(what, f"not read: it lists more than {_MOST_UNSEEN:,}", source=source)


def _recovered(value: object) -> float | None:
    """A time that nobody could have waited is no time."""
    seconds = number(value.get("after_s")) if isinstance(value, Mapping) else None
    return seconds if seconds is not None and 0 < seconds < 1e9 else None


def _was_killed(row: Mapping[str, Any]) -> bool:
    """Whether that rank may be the one that the kernel killed: all ranks of a container share a control group, and its
    count."""
    status = whole(row.get("exit_status"))
    return row.get("state") == "gone" if status is None else status in (-signal.SIGKILL, 128 + signal.SIGKILL)


def read_node(value: Mapping[str, Any], file: str) -> NodeFile:
    """A node.json: the node's ranks, their processes, and what could not be captured there."""
    node = host_name(text(value.get("node")))
    statements: list[Statement] = []
    oom: list[tuple[int | None, int]] = []
    for index, row in rows_of(value.get("ranks")):
        said = read_row(row, Trust.NODE, Source(file, f"ranks[{index}]"), node)
        if said is not None:
            statements.append(said)
        kills = whole(row.get("oom_kills"))
        if kills and _was_killed(row):
            oom.append((whole(row.get("pid")), kills))
    return NodeFile(
        Source(file),
        node,
        text(value.get("job")),
        text(value.get("attempt")),
        parse_time(text(value.get("captured_at")) or ""),
        tuple(statements),
        _versions(value.get("versions")),
        tuple(
            Gap(str(gap.get("what", "")), str(gap.get("why", "")), whole(gap.get("rank")), node, Source(file))
            for _, gap in _objects(value.get("gaps"))
        ),
        tuple(oom),
        tuple(islice(_others(value.get("others"), node, file), _MOST_OTHERS)),
    )


def _others(rows: object, node: str | None, file: str) -> Iterator[EngineProcess]:
    for index, row in _objects(rows):
        pid = whole(row.get("pid"))
        role = from_value(row.get("role"))
        if pid is not None and role is not None:
            yield EngineProcess(pid, role, node, text(row.get("state")), Source(file, f"others[{index}]"))


def _objects(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list that anybody may have written, with their places in it."""
    for index, row in enumerate(value[:MOST_ROWS] if isinstance(value, list) else ()):
        if isinstance(row, Mapping):
            yield index, row


def _versions(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(item, str) and item}
