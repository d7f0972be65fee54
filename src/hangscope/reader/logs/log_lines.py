"""Text logs as lines, read in constant memory.

Stretches of a long log that hold nothing worth reading are passed over, and their lines counted, so that the numbers
behind them stay right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from hangscope.model.times import parse_time

LINE_LIMIT = 8192
"""Characters of one line that are looked at; the rest of the line is skipped."""

_CHUNK = 1 << 20
_STRETCH = 1 << 15
_BEGINNING = 8
"""Stretches at the beginning of a file that are read whatever they hold: they show which prefixes it uses."""

RawLine = tuple[int, str, bytes]
"""(number from 1, text, text without digits)."""


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


@dataclass
class LineBudget:
    """How many lines may still be read one by one, of all files that share it."""

    left: int


class LineShapes:
    """What a file's lines are but for their digits, and how often each came.

    An error that a loop prints for hours, or an attack, says nothing new after so many times; the same line of each
    rank of the largest jobs stays well below.
    """

    MOST_ALIKE = 131_072
    MOST = 100_000

    def __init__(self) -> None:
        self.uses: dict[bytes, int] = {}
        """What a line of this shape can be (unwrap.py)."""
        self.informative: set[int] = set()
        """Hashes of shapes of which every line counts: NCCL's setup names another connection in each."""
        self.failing: set[int] = set()
        """Hashes of shapes that may tell of a failure."""
        self.passed = 0
        """Lines of failure that were not read, because there had been enough like them."""
        self._times: Counter[int] = Counter()

    def seen_enough(self, stretch: Sequence[bytes]) -> bool:
        """Whether all lines of a stretch are of shapes that were there often enough."""
        if len(self._times) > self.MOST:
            self._times.clear()
        alike = [hash(shape[:LINE_LIMIT]) for shape in stretch]  # of lines, which may be long, no more is kept
        times = self._times
        times.update(alike)
        if not all(times[shape] > self.MOST_ALIKE and shape not in self.informative for shape in set(alike)):
            return False
        self.passed += sum(shape in self.failing for shape in alike)
        return True


def raw_lines(
    stream: BinaryIO,
    *,
    skip: tuple[int, int] | None = None,
    words: Sequence[bytes] = (),
    shapes: LineShapes | None = None,
) -> Iterator[RawLine]:
    """The lines of a file, each cut at `LINE_LIMIT`, in constant memory.

    Of the bytes in `skip` the lines are counted and not looked at. Stretches that hold none of the `words`, and do not
    follow one that does, are passed over in the same way: a training log is mostly loss values. Of those whose lines
    came often enough, which is for `shapes` to say, each rank's last is read: it is a sign of life. The beginning and
    the end are always read.
    """
    stretches = _Stretches(words, shapes)
    rest = b""
    position = 0
    while chunk := stream.read(_CHUNK):
        begin = position
        position += len(chunk)
        if skip is not None and skip[0] <= begin and position <= skip[1]:
            stretches.number += chunk.count(b"\n")
            rest = b""
            continue
        end = chunk.rfind(b"\n") + 1
        if end:
            yield from stretches.read(rest + chunk[:end])
            rest = chunk[end:]
        else:
            rest += chunk
        rest = rest[:LINE_LIMIT]
    yield from stretches.finish(rest)


class _Stretches:
    """Reads whole lines a stretch at a time, or passes a stretch over."""

    def __init__(self, words: Sequence[bytes], shapes: LineShapes | None) -> None:
        self.number = 1
        """Of the next line."""
        self._words = words
        self._shapes = shapes
        self._still_read = _BEGINNING
        """Stretches that are read whatever they hold: the first ones, and two behind one with a word."""
        self._passed: tuple[int, bytes] | None = None
        """The stretch that was passed over last: the end of a file is read."""

    def read(self, whole: bytes) -> Iterator[RawLine]:
        start = 0
        while start < len(whole):
            stop = whole.find(b"\n", start + _STRETCH) + 1 or len(whole)
            stretch = whole[start:stop]
            start = stop
            if self._is_wanted(stretch):
                self._passed = None
                yield from self._lines(stretch)
            else:
                self._passed = (self.number, stretch)
            self.number += stretch.count(b"\n")

    def _is_wanted(self, stretch: bytes) -> bool:
        if not self._words:
            return True
        self._still_read -= 1
        if any(word in stretch for word in self._words):
            self._still_read = max(self._still_read, 2)
        return self._still_read >= 0

    def _lines(self, stretch: bytes) -> Iterator[RawLine]:
        shapes = _without_digits(stretch)
        if self._shapes is not None and self._shapes.seen_enough(shapes):
            return _last_line_of_each_rank(stretch, self.number)
        return _lines(stretch, self.number, shapes)

    def finish(self, rest: bytes) -> Iterator[RawLine]:
        """The end of the file: the stretch before it, and what stands behind the last line end."""
        if self._passed is not None:
            number, stretch = self._passed
            yield from _lines(stretch, number, _without_digits(stretch))
        if rest:
            yield from _lines(rest + b"\n", self.number, _without_digits(rest + b"\n"))


def _without_digits(stretch: bytes) -> list[bytes]:
    return stretch.translate(None, b"0123456789").split(b"\n")[:-1]


_TAG = re.compile(rb"\[rank(\d+)\]")


def _last_line_of_each_rank(stretch: bytes, number: int) -> Iterator[RawLine]:
    """The last line of every rank that is tagged in the stretch, and the last of all."""
    pieces = stretch.split(b"\n")[:-1]
    last = {tag: at for at, piece in enumerate(pieces) for tag in _TAG.findall(piece, 0, LINE_LIMIT)[:1]}
    for at in sorted({*last.values(), len(pieces) - 1}):
        line = pieces[at] + b"\n"
        yield from _lines(line, number + at, _without_digits(line))


def _lines(stretch: bytes, number: int, shapes: Sequence[bytes]) -> Iterator[RawLine]:
    for index, piece in enumerate(stretch.split(b"\n")[:-1]):
        text = piece[:LINE_LIMIT].decode("utf-8", "replace")
        yield number + index, text.rstrip("\r"), shapes[index][:LINE_LIMIT]
