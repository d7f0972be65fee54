"""Text logs as lines: reading them in constant memory, the times that stand in them, and one line with its writer.

Stretches of a long log that hold nothing worth reading are passed over, so that their numbers stay right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import BinaryIO, NamedTuple

from hangscope.model import Source

LINE_LIMIT = 8192
"""Characters of one line that are looked at; the rest of the line is skipped."""
RANK_LIMIT = 1 << 20
"""Ranks and sizes from here on are not believed."""

_CHUNK = 1 << 20
_STRETCH = 1 << 15
_BEGINNING = 8
"""Stretches at the beginning of a file that are read whatever they hold: they show which prefixes it uses."""


class Line(NamedTuple):
    """One line of a log without its launcher's prefix."""

    number: int
    text: str
    tag: int | None = None
    """The global rank in PyTorch's ``[rank3]:``."""
    stream: str = ""
    """What the launcher put in front, without times: equal for all lines of one writer."""
    task: int | None = None
    """The task number of mpirun or srun: the rank where one task is one rank."""
    local_rank: int | None = None
    pid: int | None = None
    stamp: str = ""
    """The launcher's or the runtime's time, as it stands in front."""
    bare: bool = False
    """Whether the prefix is a bare number (srun's), which may as well be the text's own: ``3: loss 0.2``."""
    host: str = ""
    """The host that stands in front (pdsh, Ray's ``ip=``), which may as well be the text's own: ``step1: loss``."""

    @property
    def at_ns(self) -> int | None:
        return parse_time(self.stamp) if self.stamp else None


class Clock(NamedTuple):
    """A time of day as PyTorch logs it: without a year, in the process's own zone."""

    month: int
    day: int
    ns_of_day: int


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
        past = [ns for ns in found if ns <= now_ns + 86_400_000_000_000]
        return max(past) if past else None
    return min(found, key=lambda ns: abs(ns - reference_ns)) if found else None


ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?",
)


def parse_time(text: str) -> int | None:
    """The first ISO-like time in `text` as ns since the epoch; a time without a zone is taken as UTC."""
    match = ISO.search(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
    except ValueError:
        return None
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        moment -= sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
    return int(moment.timestamp()) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


class Shapes:
    """What a file's lines are but for their digits, and how often each came.

    An error that a loop prints for hours, or an attack, says nothing new after so many times; the same line of each
    rank of the largest jobs stays well below.
    """

    MOST_ALIKE = 131_072
    MOST = 100_000

    def __init__(self) -> None:
        self.uses: dict[bytes, int] = {}
        """What a line of this shape can be (mend.py)."""
        self.speaking: set[int] = set()
        """Hashes of shapes of which every line counts: NCCL's setup names another connection in each."""
        self.failing: set[int] = set()
        """Hashes of shapes that may tell of a failure."""
        self.passed = 0
        """Lines of failure that were not read, because there had been enough like them."""
        self._times: Counter[int] = Counter()

    def enough(self, stretch: Sequence[bytes]) -> bool:
        """Whether all lines of a stretch are of shapes that were there often enough."""
        if len(self._times) > self.MOST:
            self._times.clear()
        alike = [hash(shape[:LINE_LIMIT]) for shape in stretch]  # of lines, which may be long, no more is kept
        times = self._times
        times.update(alike)
        if not all(times[shape] > self.MOST_ALIKE and shape not in self.speaking for shape in set(alike)):
            return False
        self.passed += sum(shape in self.failing for shape in alike)
        return True


def raw_lines(
    stream: BinaryIO,
    *,
    skip: tuple[int, int] | None = None,
    words: Sequence[bytes] = (),
    shapes: Shapes | None = None,
) -> Iterator[tuple[int, str, bytes]]:
    """(number from 1, text, text without digits) of lines, each cut at `LINE_LIMIT`, in constant memory.

    Of the bytes in `skip` the lines are counted and not looked at, so that the numbers behind them stay right.
    Stretches that hold none of the `words`, and do not follow one that does, are passed over in the same way: a
    training log is mostly loss values. Of those whose lines came often enough, which is for `shapes` to say, each
    rank's last is read: it is a sign of life. The beginning and the end are always read.
    """
    number = 1
    rest = b""
    position = 0
    after_a_hit = _BEGINNING
    passed: tuple[int, bytes] | None = None
    while chunk := stream.read(_CHUNK):
        begin, position = position, position + len(chunk)
        if skip is not None and skip[0] <= begin and position <= skip[1]:
            number += chunk.count(b"\n")
            rest = b""
            continue
        end = chunk.rfind(b"\n") + 1
        whole, rest = (rest + chunk[:end], chunk[end:]) if end else (b"", (rest + chunk)[:LINE_LIMIT])
        start = 0
        while start < len(whole):
            stop = whole.find(b"\n", start + _STRETCH) + 1 or len(whole)
            stretch = whole[start:stop]
            start = stop
            after_a_hit -= 1
            if words and any(word in stretch for word in words):
                after_a_hit = max(after_a_hit, 2)
            alike = stretch.translate(None, b"0123456789").split(b"\n")[:-1]
            if words and after_a_hit < 0:
                passed = (number, stretch)
                number += stretch.count(b"\n")
                continue
            passed = None
            if shapes is not None and shapes.enough(alike):
                yield from _last_of_each(stretch, number)
            else:
                yield from _lines(stretch, number, alike)
            number += stretch.count(b"\n")
        rest = rest[:LINE_LIMIT]
    if passed is not None:
        yield from _lines(passed[1], passed[0])
    if rest:
        yield from _lines(rest + b"\n", number)


_TAG = re.compile(rb"\[rank(\d+)\]")


def _last_of_each(stretch: bytes, number: int) -> Iterator[tuple[int, str, bytes]]:
    """The last line of every rank that is tagged in the stretch, and the last of all."""
    pieces = stretch.split(b"\n")[:-1]
    last = {tag: at for at, piece in enumerate(pieces) for tag in _TAG.findall(piece, 0, LINE_LIMIT)[:1]}
    for at in sorted({*last.values(), len(pieces) - 1}):
        yield from _lines(pieces[at] + b"\n", number + at)


def _lines(stretch: bytes, number: int, shapes: Sequence[bytes] = ()) -> Iterator[tuple[int, str, bytes]]:
    shapes = shapes or stretch.translate(None, b"0123456789").split(b"\n")
    for index, piece in enumerate(stretch.split(b"\n")[:-1]):
        text = piece[:LINE_LIMIT].decode("utf-8", "replace")
        yield number + index, text.rstrip("\r"), shapes[index][:LINE_LIMIT]


def line_of(source: Source) -> int:
    """The number in a place such as ``line 12``, for order."""
    digits = "".join(char for char in source.place if char.isdigit())[:18]
    return int(digits or 0)
