"""sites/rank_<r>.json of an incident: from where a rank makes its calls, learnt while all was well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hangscope.model import CallSite, Frame, Source
from hangscope.model.profiling_names import parse
from hangscope.model.values import rank_number, whole
from hangscope.sources.call_sites.schema import SCHEMA
from hangscope.sources.report import SourceReport

_MOST_SITES = 3_000
_MOST_FRAMES = 64
_LONGEST = 4_096
_BEFORE = 2

_Call = tuple[str, str, str]


def recognise_object(value: Mapping[str, Any]) -> bool:
    return value.get("schema") == SCHEMA


def read_object(value: Mapping[str, Any], file: str) -> SourceReport:
    return SourceReport(sites=tuple(call_sites(value, file)))


def call_sites(value: Mapping[str, Any], file: str) -> list[CallSite]:
    """The rows that say what they should. A place from which calls of several lines come names none of them."""
    rank = rank_number(value.get("rank"))
    rows = value.get("sites")
    stacks = value.get("stacks")
    if rank is None or not isinstance(rows, list) or not isinstance(stacks, list):
        return []
    table = [_frames(stack) for stack in stacks[:_MOST_SITES]]
    found: list[CallSite] = []
    for index, row in enumerate(rows[:_MOST_SITES]):
        if isinstance(row, Mapping) and row.get("lines") == 1:
            site = _site(rank, row, table, Source(file, f"sites[{index}]"))
            if site is not None:
                found.append(site)
    return found


def _site(rank: int, row: Mapping[str, Any], stacks: Sequence[tuple[Frame, ...]], source: Source) -> CallSite | None:
    call = _call(row.get("call"))
    before = _calls(row.get("before"))
    number = rank_number(row.get("stack"))
    if call is None or before is None or number is None or number >= len(stacks) or not stacks[number]:
        return None
    return CallSite(rank, call, before, stacks[number], source)


def _calls(value: Any) -> tuple[_Call, ...] | None:
    """The last calls of a list; None where one of them is none."""
    if not isinstance(value, list):
        return None
    found = []
    for each in value[-_BEFORE:]:
        call = _call(each)
        if call is None:
            return None
        found.append(call)
    return tuple(found)


def _call(value: Any) -> _Call | None:
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(part, str) for part in value):
        return None
    group, name, sizes = (part[:_LONGEST] for part in value)
    return group, parse(name).operation, sizes


def _frames(value: Any) -> tuple[Frame, ...]:
    found: list[Frame] = []
    for row in value[:_MOST_FRAMES] if isinstance(value, list) else ():
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str) or not isinstance(row[1], str):
            return ()
        found.append(Frame(row[0][:_LONGEST], row[1][:_LONGEST], whole(row[2]) or 0))
    return tuple(found)
