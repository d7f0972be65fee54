"""stacks/rank_<r>.<n>.calls.json of an incident: with which ranks, tag and group a rank is in its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hangscope.model import CallArguments, Source
from hangscope.model.values import rank_number
from hangscope.sources.call_arguments.schema import SCHEMA
from hangscope.sources.report import SourceReport

_MOST_CALLS = 64
_MOST_RANKS = 4_096
_LONGEST = 200


def recognise_object(value: Mapping[str, Any]) -> bool:
    return value.get("schema") == SCHEMA


def read_object(value: Mapping[str, Any], file: str) -> SourceReport:
    return SourceReport(calls=tuple(call_arguments(value, file)))


def call_arguments(value: Mapping[str, Any], file: str) -> list[CallArguments]:
    """The calls of the thread that trains, innermost first; of an answer that says no rank, none."""
    rank = rank_number(value.get("rank"))
    rows = value.get("calls")
    if rank is None or not isinstance(rows, list):
        return []
    sample = rank_number(value.get("sample")) or 1
    found = []
    for index, row in enumerate(rows[:_MOST_CALLS]):
        if isinstance(row, Mapping) and row.get("main") is True and isinstance(row.get("function"), str):
            found.append(_call(row, rank, sample, Source(file, f"calls[{index}]")))
    return found


def _call(row: Mapping[str, Any], rank: int, sample: int, source: Source) -> CallArguments:
    tag = row.get("tag")
    group = row.get("group")
    return CallArguments(
        rank=rank,
        function=row["function"][:_LONGEST],
        source=source,
        sample=sample,
        src=rank_number(row.get("src")),
        dst=rank_number(row.get("dst")),
        tag=tag if isinstance(tag, int) and not isinstance(tag, bool) else None,
        group=group[:_LONGEST] if isinstance(group, str) else None,
        ranks=_ranks(row.get("ranks")),
    )


def _ranks(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > _MOST_RANKS:
        return None
    ranks = tuple(rank_number(each) for each in value)
    return None if None in ranks else tuple(rank for rank in ranks if rank is not None)
