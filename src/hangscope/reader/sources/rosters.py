"""Who ran where and how it ended: rosters, hangscope's own manifests, torchrun's error files.

A launcher often knows a process only by pid or local rank. Such statements are kept as they are; whoever knows all the
files turns them into ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hangscope.model import UNKNOWN, Failure, Gap, Process, Source
from hangscope.reader.logs.lines import Line, parse_time
from hangscope.reader.logs.tracebacks import Traceback, Tracebacks
from hangscope.reader.values import host_name, number, pci_id, rank_number, text, whole

MOST_ROWS = 131_072
"""Ranks of one roster; more are not looked at."""
MOST_ROWS_OF_A_RANK = 256
"""Rows about one rank in one file: each attempt may have one. A hundred thousand of them would be joined one by one."""

ROSTER, NODE, LAUNCHER, LOG, NETWORK = range(5)
"""How much a source is trusted, best first: where two disagree, the first wins and the other becomes a gap."""

_OF_THE_START = ("never_seen", "elsewhere")
_COLLECTED = "collected"
"""The reason in a manifest of what people put together, such as a bundle of a folder: nobody captured it at once."""
_MOST_UNSEEN = 100_000


@dataclass(frozen=True, slots=True)
class Statement:
    """What one source says about one process. At least one of rank, pid, local rank and task is known."""

    trust: int
    process: Process
    """Its rank is UNKNOWN where the source knows the process by something else."""
    task: int | None = None
    """A launcher's task number: the rank where one task is one rank."""

    @property
    def rank(self) -> int | None:
        return None if self.process.rank == UNKNOWN else self.process.rank


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
    """What the agents say of ranks that nobody has seen."""


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


def is_roster(value: Any) -> bool:
    """A list of objects with a rank and something about its process; not a dump, which is a list of operations."""
    rows = value.get("ranks") if isinstance(value, Mapping) else value
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        return False
    keys = {"host", "hostname", "node", "pid", "exit", "exit_status", "exit_code", "returncode"}
    return all(
        isinstance(row, Mapping) and "rank" in row and keys & row.keys() and "pg_id" not in row and "frames" not in row
        for row in rows
    )


def read_roster(value: Any, file: str) -> list[Statement]:
    """One statement a row. A row that says ``"exit": null`` was still there when the roster was written."""
    rows = value["ranks"] if isinstance(value, Mapping) else value
    said = (_row(row, ROSTER, Source(file, f"[{index}]")) for index, row in _rows(rows))
    return [statement for statement in said if statement is not None]


def _rows(rows: Sequence[Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows that are believed, with their places in the list."""
    of_rank: Counter[int | None] = Counter()
    for index, row in enumerate(rows[:MOST_ROWS]):
        if isinstance(row, Mapping):
            rank = rank_number(row.get("rank"))
            of_rank[rank] += 1
            if of_rank[rank] <= MOST_ROWS_OF_A_RANK:
                yield index, row


def _row(row: Mapping[str, Any], trust: int, source: Source, node: str | None = None) -> Statement | None:
    rank = rank_number(row.get("rank"))
    if rank is None:
        return None
    exit_key = next((key for key in ("exit_status", "exit", "exit_code", "returncode") if key in row), None)
    exit_status = whole(row.get(exit_key)) if exit_key else None
    state = text(row.get("state"))
    alive: bool | None = None
    if state is not None:
        alive = state not in {"gone", "Z", "X"}
    elif exit_key is not None:
        alive = row.get(exit_key) is None
    process = Process(
        rank=rank,
        source=source,
        node=host_name(text(row.get("host")) or text(row.get("hostname")) or text(row.get("node")) or node),
        local_rank=whole(row.get("local_rank")),
        pid=whole(row.get("pid")),
        gpu=pci_id(text(row.get("gpu"))) or text(row.get("gpu")),
        exit_status=exit_status,
        ended_at_s=number(row.get("ended_at")),
        alive_at_end=False if exit_status is not None else alive,
        state=state,
        wait_channel=text(row.get("wait_channel")),
        python_answers=row["python_answers"] if isinstance(row.get("python_answers"), bool) else None,
        syscall=text(row.get("syscall")),
        syscall_file=text(row.get("syscall_file")),
        waits_in=row["waits_in"][:200] if isinstance(row.get("waits_in"), str) else None,
        stood_s=number(row.get("stood_s")),
        moved=row["moved"] if isinstance(row.get("moved"), bool) else None,
        unanswered=row["server_answers"] is False if "server_answers" in row else None,
        gpu_busy_percent=number(row.get("gpu_busy_percent")),
        gpu_power_w=number(row.get("gpu_power_w")),
    )
    return Statement(trust, process)


def read_manifest(value: Mapping[str, Any], file: str) -> Manifest:
    """An incident.json: what was captured, and which nodes are missing from it."""
    source = Source(file)
    expected, present = value.get("nodes_expected"), value.get("nodes_present")
    gaps: list[Gap] = []
    if isinstance(expected, list) and isinstance(present, list):
        gaps = [
            Gap(f"nothing from node {node}", "it is not part of this incident", node=str(node), source=source)
            for node in expected
            if node not in present
        ]
    return Manifest(
        source,
        text(value.get("job")),
        text(value.get("attempt")),
        text(value.get("reason")) if value.get("reason") != _COLLECTED else None,
        parse_time(text(value.get("captured_at")) or ""),
        rank_number(value.get("world_size")),
        _versions(value.get("versions")),
        tuple(gaps),
        _recovered(value.get("recovered")),
        tuple(failure for kind in _OF_THE_START for failure in _not_there(kind, value.get(kind), source)),
    )


def _not_there(kind: str, value: object, source: Source) -> Iterator[Failure]:
    """Ranks of which no agent saw a process, or that look for the others elsewhere, while all wait in their start."""
    listed = value.get("ranks") if isinstance(value, Mapping) else None
    rows = listed[:_MOST_UNSEEN] if isinstance(listed, list) else []
    ranks = sorted({rank for row in rows if (rank := rank_number(row)) is not None})
    if ranks and isinstance(value, Mapping):
        said = text(value.get("text")) or "it did not come to where the others meet"
        by = host_name(text(value.get("by")))
        yield Failure(kind, said[:1000], source, None, by, ranks=tuple(ranks))


def _recovered(value: object) -> float | None:
    """A time that nobody could have waited is no time."""
    seconds = number(value.get("after_s")) if isinstance(value, Mapping) else None
    return seconds if seconds is not None and 0 < seconds < 1e9 else None


def read_node(value: Mapping[str, Any], file: str) -> NodeFile:
    """A node.json: the node's ranks, their processes, and what could not be captured there."""
    node = host_name(text(value.get("node")))
    statements: list[Statement] = []
    oom: list[tuple[int | None, int]] = []
    rows = value.get("ranks")
    for index, row in _rows(rows if isinstance(rows, list) else []):
        said = _row(row, NODE, Source(file, f"ranks[{index}]"), node)
        if said is not None:
            statements.append(said)
        kills = whole(row.get("oom_kills"))
        if kills:
            oom.append((whole(row.get("pid")), kills))
    gaps = value.get("gaps")
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
            for gap in (gaps[:MOST_ROWS] if isinstance(gaps, list) else [])
            if isinstance(gap, Mapping)
        ),
        tuple(oom),
    )


def is_error_file(value: Any) -> bool:
    """What torchrun's @record leaves in TORCHELASTIC_ERROR_FILE."""
    if not isinstance(value, Mapping) or "message" not in value:
        return False
    message = value["message"]
    return isinstance(message, Mapping) and "message" in message and "extraInfo" in message


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """One torchrun error file. It does not say whose it is: the directory it lies in is named by the local rank."""

    traceback: Traceback
    local_rank: int | None
    exit_status: int | None
    at_ns: int | None


_LOCAL_RANK_DIR = re.compile(r"(?:^|/)attempt_\d+/(\d+)/[^/]+$")


def read_error_file(value: Mapping[str, Any], file: str) -> ErrorFile:
    message = value["message"]
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, Mapping) else {}
    stack = text(extra.get("py_callstack")) or ""
    reader = Tracebacks()
    for index, row in enumerate(stack.split("\n"), 1):
        reader.feed(Line(index, row))
    found = reader.finish()
    if found:
        traceback = found[-1]
    else:
        traceback = Traceback(None, "", 1, None)
        traceback.type, _, traceback.message = str(message.get("message", "")).partition(": ")
    seconds = number(extra.get("timestamp"))
    where = _LOCAL_RANK_DIR.search(file)
    return ErrorFile(
        traceback,
        int(where[1]) if where else None,
        whole(message.get("errorCode")),
        int(seconds * 1e9) if seconds else None,
    )


def _versions(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(item, str) and item}
