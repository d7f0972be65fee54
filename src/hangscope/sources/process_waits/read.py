"""waits/processes.json of a node, read back. Every value is another's: what is no such value is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hangscope.model import Gap, NodePrograms, Source
from hangscope.model.values import host_name
from hangscope.safeio import bounded_json
from hangscope.sources.process_waits.schema import NodeWaits, SeenProcess, Target, Wait
from hangscope.sources.report import SourceReport

MOST_PROCESSES = 4096
MOST_WAITS = 8192
MOST_TARGETS = 256
MOST_TEXT = 400
_BIG = 1 << 40


def recognise(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"schema": "hangscope.waits/' in head[:200]


def read(data: bytes, file: str) -> NodePrograms | SourceReport:
    """What one node saved; a gap where it is broken."""
    try:
        value = bounded_json.loads(data)
    except ValueError as error:
        return SourceReport(gaps=(Gap(f"file {file}", f"not read: {error}", source=Source(file)),))
    if not isinstance(value, Mapping):
        return SourceReport()
    return NodePrograms(host_name(_text(value, "node")) or "", waits_in(value), Source(file))


def waits_in(value: Mapping[str, Any]) -> NodeWaits:
    return NodeWaits(
        tuple(_process(row) for row in _rows(value, "processes", MOST_PROCESSES) if _whole(row, "pid")),
        tuple(_wait(row) for row in _rows(value, "waits", MOST_WAITS) if _whole(row, "pid")),
        _real(value, "between_s"),
        _whole(value, "not_visible"),
        _text(value, "cut"),
    )


def _process(row: Mapping[str, Any]) -> SeenProcess:
    rank = row.get("rank")
    return SeenProcess(
        pid=_whole(row, "pid"),
        parent=_whole(row, "parent"),
        name=_text(row, "name"),
        command=_text(row, "command"),
        state=_text(row, "state")[:1],
        threads=_whole(row, "threads"),
        cpu_s=_real(row, "cpu_s"),
        rank=rank if type(rank) is int and 0 <= rank < 1 << 20 else None,
        visible=row.get("visible") is not False,
        listens=tuple(text[:MOST_TEXT] for text in _list(row, "listens", MOST_TARGETS) if isinstance(text, str)),
        sockets=tuple(
            (pair[0][:MOST_TEXT], pair[1][:MOST_TEXT])
            for pair in _list(row, "sockets", MOST_TARGETS)
            if isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, str) for end in pair)
        ),
    )


def _wait(row: Mapping[str, Any]) -> Wait:
    return Wait(
        pid=_whole(row, "pid"),
        thread=_whole(row, "thread"),
        name=_text(row, "name"),
        call=_text(row, "call"),
        targets=tuple(_target(each) for each in _rows(row, "targets", MOST_TARGETS)),
        any_of=row.get("any_of") is True,
        timed=row.get("timed") is True,
        woke=_whole(row, "woke"),
        main=row.get("main") is True,
        place=_text(row, "place"),
        idles=row.get("idles") is True,
        says=_text(row, "says"),
    )


def _target(row: Mapping[str, Any]) -> Target:
    return Target(
        kind=_text(row, "kind"),
        what=_text(row, "what"),
        pids=tuple(pid for pid in _list(row, "pids", MOST_TARGETS) if type(pid) is int and 0 < pid < _BIG),
        sure=_text(row, "sure"),
        local=_text(row, "local"),
        peer=_text(row, "peer"),
        state=_text(row, "state"),
        gone=row.get("gone") is True,
    )


def _list(row: Mapping[str, Any], name: str, most: int) -> list[Any]:
    found = row.get(name)
    return found[:most] if isinstance(found, list) else []


def _rows(row: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    return [each for each in _list(row, name, most) if isinstance(each, Mapping)]


def _whole(row: Mapping[str, Any], name: str) -> int:
    found = row.get(name)
    return found if type(found) is int and 0 <= found < _BIG else 0


def _real(row: Mapping[str, Any], name: str) -> float:
    found = row.get(name)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return 0.0
    return float(found) if 0 <= found < _BIG else 0.0


def _text(row: Mapping[str, Any], name: str) -> str:
    found = row.get(name)
    return found[:MOST_TEXT] if isinstance(found, str) else ""
