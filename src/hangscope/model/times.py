"""Times as logs and files write them, turned into ns since the epoch."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import NamedTuple

LAST_MOMENT = 1 << 33
"""Seconds since 1970 from here on are no time: the year 2242."""
_YEAR_2100 = 4_102_444_800_000_000_000
_DAY_NS = 86_400_000_000_000

ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?",
)


def parse_time(text: str) -> int | None:
    """The first ISO-like time in `text` as ns since the epoch; a time without a zone is taken as UTC.

    None where there is none, or one that no log was ever written at: before 1970, or behind the year 2242.
    """
    match = ISO.search(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
    except ValueError:
        return None
    seconds = int(moment.timestamp())
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        seconds -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    if not 0 <= seconds < LAST_MOMENT:
        return None
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


class Clock(NamedTuple):
    """A time of day as PyTorch logs it: without a year, in the process's own zone."""

    month: int
    day: int
    ns_of_day: int


class LogTimes:
    """Turns the times of log lines into ns since the epoch. Years come from whatever else has a full date."""

    def __init__(self, full_dates: Iterable[int]) -> None:
        # a date outside these years is no date, and would carry all others with it
        self._reference = max((ns for ns in full_dates if 0 < ns < _YEAR_2100), default=None)
        self._now = time.time_ns()

    def ns(self, at: Clock | int | None) -> int | None:
        return resolve_time(at, self._reference, self._now)


def resolve_time(at: Clock | int | None, reference_ns: int | None, now_ns: int) -> int | None:
    """`at` as ns since the epoch, in the year that brings it nearest to the reference.

    Without a reference: the latest year in which it is not more than a day in the future. The zone is unknown and taken
    as UTC, so such times are good for order within one zone and for nothing else.
    """
    if at is None or isinstance(at, int):
        return at
    anchor = reference_ns if reference_ns is not None else now_ns
    year = datetime.fromtimestamp(anchor / 1e9, tz=timezone.utc).year
    found: list[int] = []
    for candidate in (year - 1, year, year + 1):
        try:
            day = datetime(candidate, at.month, at.day, tzinfo=timezone.utc)
        except ValueError:
            continue
        found.append(int(day.timestamp()) * 1_000_000_000 + at.ns_of_day)
    if reference_ns is None:
        past = [ns for ns in found if ns <= now_ns + _DAY_NS]
        return max(past) if past else None
    return min(found, key=lambda ns: abs(ns - reference_ns)) if found else None
