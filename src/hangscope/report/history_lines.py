"""What a fleet's history says about a hang, in lines: who was the culprit how often, machine or code, seen before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from hangscope.diagnosis.verdict import HISTORY_GAP, Diagnosis, History
from hangscope.report.verdict_text import iso
from hangscope.text import plural

_TRACK_RECORDS_SHOWN = 2


def history_lines(d: Diagnosis, verbose: bool) -> Iterator[str]:
    """None where no server was asked; why there is nothing, where one did not answer."""
    if d.history is None:
        yield from (f"not known: {gap.why}" for gap in d.gaps if gap.what == HISTORY_GAP)
        return
    history = d.history
    known = [track_record for track_record in history.track_records if track_record.jobs]
    for track_record in history.track_records if verbose else (known or history.track_records)[:_TRACK_RECORDS_SHOWN]:
        yield track_record.says
    yield from _decided(history, verbose)
    seen = history.seen_before
    if seen is not None and seen.incidents:
        since = "" if seen.since_s is None else f" since {(iso(int(seen.since_s * 1e9)) or '')[:10]}"
        yield f"the same hang was seen in {plural(seen.incidents, 'incident')} of other jobs{since}: {seen.url}"
    else:
        yield "the same hang is not known from other jobs"
    if history.commands:
        yield "what would decide it, to be run by you:"


class TableRow(Protocol):
    """One line of the table, as a server has it or as it came from one."""

    @property
    def what(self) -> str: ...
    @property
    def counted(self) -> str: ...
    @property
    def speaks_for(self) -> str: ...
    @property
    def holds(self) -> bool: ...


def decided(answer: str, rows: Iterable[TableRow]) -> str:
    """The answer with the line of the table that gives it, in one sentence: everywhere the same."""
    deciding = next((row for row in rows if row.holds and row.speaks_for == answer), None)
    if deciding is None:
        return "machine or code: not decided by other jobs"
    return f"this speaks for {answer} ({deciding.what}): {deciding.counted}"


def _decided(history: History, verbose: bool) -> Iterator[str]:
    """The answer; all lines of its table where everything is asked for."""
    yield decided(history.answer, history.rows)
    for row in history.rows if verbose else ():
        verb = "speaks for" if row.holds else "does not speak for"
        yield f"{row.what}: {row.counted}; {verb} {row.speaks_for}"
