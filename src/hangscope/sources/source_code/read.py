"""source/lines.json of a node in an incident: the lines of source around those at which its ranks were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hangscope.model import CodeLines, Source
from hangscope.model.numbers import integer, is_number
from hangscope.model.values import rank_number
from hangscope.sources.report import SourceReport
from hangscope.sources.source_code.schema import SCHEMA

_MOST_FILES = 1_000
_MOST_LINES = 20_000
_MOST_RANKS = 4_096
_LONGEST_NAME = 4_096
_LONGEST_LINE = 400


def recognise_object(value: Mapping[str, Any]) -> bool:
    return value.get("schema") == SCHEMA


def read_object(value: Mapping[str, Any], file: str) -> SourceReport:
    return SourceReport(code=tuple(code_lines(value, file)))


def code_lines(value: Mapping[str, Any], file: str) -> list[CodeLines]:
    """The files that say what they should; lines that are none are left out."""
    rows = value.get("files")
    if not isinstance(rows, list):
        return []
    found: list[CodeLines] = []
    room = _MOST_LINES
    for index, row in enumerate(rows[:_MOST_FILES]):
        lines = _lines(row.get("lines"), room) if isinstance(row, Mapping) else {}
        if lines and isinstance(row.get("file"), str):
            room -= len(lines)
            found.append(CodeLines(_ranks(row), row["file"][:_LONGEST_NAME], lines, Source(file, f"files[{index}]")))
    return found


def _ranks(row: Mapping[str, Any]) -> tuple[int, ...]:
    said = row.get("ranks")
    ranks = (rank_number(each) for each in said[:_MOST_RANKS]) if isinstance(said, list) else ()
    return tuple(rank for rank in ranks if rank is not None)


def _lines(value: Any, room: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for number, text in value.items() if isinstance(value, Mapping) else ():
        if len(found) >= room:
            break
        if isinstance(number, str) and is_number(number, 8) and isinstance(text, str):
            found[integer(number)] = text[:_LONGEST_LINE]
    return found
