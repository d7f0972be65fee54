"""Rosters: lists of ranks with their hosts, pids and exit statuses, as launchers and agents write them in JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hangscope.engine_roles import from_value
from hangscope.model import FileWait, Process, Source
from hangscope.model.statements import Statement, Trust
from hangscope.model.values import flag, host_name, moment, number, pci_id, rank_number, text, whole

MOST_ROWS = 131_072
"""Ranks of one roster; more are not looked at."""
MOST_ROWS_OF_A_RANK = 256
"""Rows about one rank in one file: each attempt may have one. A hundred thousand of them would be joined one by one."""

_EXIT_KEYS = ("exit_status", "exit", "exit_code", "returncode")
_HOST_KEYS = ("host", "hostname", "node")
_OF_A_PROCESS = {*_HOST_KEYS, "pid", *_EXIT_KEYS}
_OF_AN_OPERATION = {"pg_id", "frames"}
_ENDED_STATES = ("gone", "Z", "X")
_LONGEST_CALL = 200
_FILE_CALLS = frozenset(("read", "write", "sync", "open", "stat", "list", "access"))
_MOST_FILE_WAITS = 16
_LONGEST_PATH = 4096


def is_roster(value: Any) -> bool:
    """A list of objects with a rank and something about its process; not a dump, which is a list of operations."""
    rows = value.get("ranks") if isinstance(value, Mapping) else value
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        return False
    return all(isinstance(row, Mapping) and _is_of_process(row) for row in rows)


def _is_of_process(row: Mapping[str, Any]) -> bool:
    return "rank" in row and not _OF_A_PROCESS.isdisjoint(row) and _OF_AN_OPERATION.isdisjoint(row)


def read_roster(value: Any, file: str) -> list[Statement]:
    """One statement a row. A row that says ``"exit": null`` was still there when the roster was written."""
    found = []
    for index, row in rows_of(value["ranks"] if isinstance(value, Mapping) else value):
        said = read_row(row, Trust.ROSTER, Source(file, f"[{index}]"))
        if said is not None:
            found.append(said)
    return found


def rows_of(rows: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a list that anybody may have written that are believed, with their places in it."""
    of_rank: Counter[int | None] = Counter()
    for index, row in enumerate(rows[:MOST_ROWS] if isinstance(rows, list) else ()):
        if isinstance(row, Mapping):
            rank = rank_number(row.get("rank"))
            of_rank[rank] += 1
            if of_rank[rank] <= MOST_ROWS_OF_A_RANK:
                yield index, row


def read_row(row: Mapping[str, Any], trust: Trust, source: Source, node: str | None = None) -> Statement | None:
    """What a row of a roster or of a node's file says; None where it names no rank."""
    rank = rank_number(row.get("rank"))
    if rank is None:
        return None
    exit_status, alive = _ending(row)
    host = next((name for key in _HOST_KEYS if (name := text(row.get(key)))), node)
    waits_in = row.get("waits_in")
    process = Process(
        rank=rank,
        source=source,
        node=host_name(host),
        local_rank=whole(row.get("local_rank")),
        pid=whole(row.get("pid")),
        gpu=pci_id(text(row.get("gpu"))) or text(row.get("gpu")),
        exit_status=exit_status,
        ended_at_s=moment(row.get("ended_at")),
        alive_at_end=alive,
        state=text(row.get("state")),
        wait_channel=text(row.get("wait_channel")),
        python_answers=flag(row.get("python_answers")),
        syscall=text(row.get("syscall")),
        syscall_file=text(row.get("syscall_file")),
        waits_in=waits_in[:_LONGEST_CALL] if isinstance(waits_in, str) else None,
        stood_s=number(row.get("stood_s")),
        moved=flag(row.get("moved")),
        works=flag(row.get("works")),
        polls=flag(row.get("polls")),
        cpu_share=number(row.get("cpu_share")),
        io_bytes_per_s=number(row.get("io_bytes_per_s")),
        unanswered=row["server_answers"] is False if "server_answers" in row else None,
        gpu_busy_percent=number(row.get("gpu_busy_percent")),
        gpu_power_w=number(row.get("gpu_power_w")),
        file_waits=_file_waits(row.get("file_waits")),
        role=from_value(row.get("role")),
    )
    return Statement(trust, process)


def _file_waits(rows: object) -> tuple[FileWait, ...] | None:
    """The files that threads are blocked on; None where nobody looked."""
    if not isinstance(rows, list):
        return None
    return tuple(_file_wait(row) for row in rows[:_MOST_FILE_WAITS] if _is_file_wait(row))


def _is_file_wait(row: object) -> bool:
    if not isinstance(row, Mapping):
        return False
    call = row.get("call")
    path = row.get("path")
    return isinstance(call, str) and call in _FILE_CALLS and isinstance(path, str) and 0 < len(path) <= _LONGEST_PATH


def _file_wait(row: Mapping[str, Any]) -> FileWait:
    for_s = number(row.get("for_s"))
    pid = whole(row.get("pid"))
    return FileWait(
        call=row["call"],
        path=row["path"],
        pid=pid,
        main=pid is not None and whole(row.get("thread")) == pid,
        mount=text(row.get("mount")),
        type=text(row.get("type")),
        source=text(row.get("source")),
        state=text(row.get("state")),
        wait_channel=text(row.get("wait_channel")),
        for_s=for_s if for_s is not None and 0 < for_s < 1e9 else None,
    )


def _ending(row: Mapping[str, Any]) -> tuple[int | None, bool | None]:
    """(how the process ended, whether it was there to the end), each None where the row does not say."""
    exit_key = next((key for key in _EXIT_KEYS if key in row), None)
    exit_status = whole(row[exit_key]) if exit_key is not None else None
    if exit_status is not None:
        return exit_status, False
    state = text(row.get("state"))
    if state is not None:
        return None, state not in _ENDED_STATES
    return None, row[exit_key] is None if exit_key is not None else None
