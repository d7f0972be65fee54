"""Text logs as lines: what a launcher put in front is taken off and kept as the name of the writer.

Several ranks may share one file. Lines of one writer carry the same prefix, so blocks of several lines are put together
per prefix. PyTorch's own ``[rank3]:`` is the one prefix that names a global rank; mpirun's and srun's task numbers and
torchrun's local ranks are kept, and used only where nothing contradicts them.
"""

from __future__ import annotations

import json
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


_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?",
)


def parse_time(text: str) -> int | None:
    """The first ISO-like time in `text` as ns since the epoch; a time without a zone is taken as UTC."""
    match = _ISO.search(text)
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


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TIME = re.compile(_ISO.pattern + r"\s(?:std(?:out|err) [FP] )?")
_MPI = re.compile(r"\[\d+,(\d{1,6})\]<std(?:out|err|diag)>:\s?")
_RAY = re.compile(r"\((?:[\w.:<>-]+ )?pid=(\d+)(?:, ip=([\w.:]+))?\)\s")
_SRUN = re.compile(r" {0,3}(\d{1,6}): ")
_POD = re.compile(r"\[pod/[\w.-]+(?:/[\w.-]+)?\]\s?")
_COMPOSE = re.compile(r"[\w.-]+\s*\|\s")
_TEE = re.compile(r"\[(?!rank)([a-zA-Z_]\w*?)(\d+)\]:\s?")
_TAG = re.compile(r"\[rank:? ?(\d{1,6})\]:? ?|rank(\d{1,6}): (?=Traceback|  |\[)")
_TAG_INSIDE = re.compile(r"\[rank(\d{1,6})\]:\s?(?=\[[EWIF][\d ]|Traceback)")


def split_prefix(number: int, raw: str) -> Line:
    """Take off everything that a launcher, a container runtime or PyTorch put in front of one line."""
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    if text.startswith('{"log":'):
        text = _docker(text)
    stream: list[str] = []
    task = local_rank = pid = tag = None
    stamp = ""
    bare = False
    for _ in range(6):
        if not text:
            break
        first = text[0]
        if first == "[":
            if match := _TAG.match(text):
                tag = int(match[1] or match[2])
                text = text[match.end() :]
                break
            if match := _MPI.match(text):
                task = int(match[1])
            elif match := _TEE.match(text):
                local_rank = int(match[2])
            elif not (match := _POD.match(text)):
                break
        elif first == "(":
            if not (match := _RAY.match(text)):
                break
            pid = int(match[1])
        elif first.isdigit() or first == " ":
            if match := _TIME.match(text):
                stamp = stamp or match[0]
                text = text[match.end() :]
                continue
            if not (match := _SRUN.match(text)):
                break
            task = int(match[1])
            bare = True
        elif first == "r" and (match := _TAG.match(text)):
            tag = int(match[1] or match[2])
            text = text[match.end() :]
            break
        elif not (match := _COMPOSE.match(text)):
            break
        stream.append(match[0].strip())
        text = text[match.end() :]
    if tag is None and "[rank" in text and (match := _TAG_INSIDE.search(text)):
        # a progress bar or a print without its newline shares the line
        tag = int(match[1])
        text = text[match.end() :]
    return Line(number, text, tag, " ".join(stream), task, local_rank, pid, stamp, bare)


def _docker(text: str) -> str:
    """The text inside one line of Docker's json-file log."""
    try:
        record = json.loads(text)
    except ValueError:
        return text
    inner = record.get("log") if isinstance(record, dict) else None
    if not isinstance(inner, str):
        return text
    at = record.get("time")
    return f"{at} {inner.rstrip()}" if isinstance(at, str) else inner.rstrip()


def raw_lines(
    stream: BinaryIO, *, skip: tuple[int, int] | None = None, words: Sequence[bytes] = ()
) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of lines, each cut at `LINE_LIMIT`, in constant memory.

    Of the bytes in `skip` the lines are counted and not looked at, so that the numbers behind them stay right.
    Stretches that hold none of the `words`, and do not follow one that does, are passed over in the same way: a
    training log is mostly loss values. The beginning is always read whole.
    """
    number = 1
    rest = b""
    position = 0
    after_a_hit = _BEGINNING
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
            if words and after_a_hit < 0:
                number += stretch.count(b"\n")
                continue
            pieces = stretch.split(b"\n")
            pieces.pop()
            for piece in pieces:
                yield number, piece[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r")
                number += 1
        rest = rest[:LINE_LIMIT]
    if rest:
        yield number, rest.decode("utf-8", "replace").rstrip("\r")


_LONG_NUMBER = re.compile(r"\d{20,}")


def line_of(source: Source) -> int:
    """The number in a place such as ``line 12``, for order."""
    digits = "".join(char for char in source.place if char.isdigit())[:18]
    return int(digits or 0)


def split_line(number: int, raw: str) -> Iterator[Line]:
    """A raw line without its prefix. A carriage return (progress bars) ends a line too, but does not count as one."""
    if len(raw) > 20 and _LONG_NUMBER.search(raw):
        raw = _LONG_NUMBER.sub("-1", raw)  # no number that anyone logs on purpose: -1 as an unsigned one, or an attack
    if "\r" in raw:
        for part in raw.split("\r"):
            if part:
                yield split_prefix(number, part)
    else:
        yield split_prefix(number, raw)


class Writers:
    """Which rank wrote what in one file, learnt from the tags that PyTorch put on some of the lines."""

    __slots__ = ("_bare", "_by_stream", "_lines", "_named", "_tasks", "launcher", "nccl_pids", "pids", "tags")

    def __init__(self) -> None:
        self.tags: Counter[int] = Counter()
        self._by_stream: dict[str, set[int]] = {}
        self._tasks: dict[str, int] = {}
        self._named: set[tuple[int | None, int | None, int | None]] = set()
        self._lines = self._bare = 0
        self.pids: dict[int, set[int]] = {}
        """pid in a prefix (Ray) → tags seen behind it."""
        self.nccl_pids: set[tuple[str, int]] = set()
        """(host, pid) of NCCL's own lines in this file."""
        self.launcher = False
        """Whether a torchrun wrote into this file: then it is a node's log, and task numbers are nodes."""

    def see(self, line: Line) -> None:
        if line.tag is not None:
            self.tags[line.tag] += 1
            self._by_stream.setdefault(line.stream, set()).add(line.tag)
            if line.pid is not None:
                self.pids.setdefault(line.pid, set()).add(line.tag)
        self._lines += bool(line.text)
        if line.stream:
            self._bare += line.bare
            if line.task is not None and line.stream not in self._tasks:
                self._tasks[line.stream] = line.task
            if len(self._named) < 2:
                self._named.add((line.task, line.local_rank, line.pid))
                self._named.discard((None, None, None))

    @property
    def shared(self) -> bool:
        """Whether more than one process wrote here, so that an untagged line belongs to nobody in particular."""
        several = len(self._named) > 1 and self._labelled
        return len(self.tags) > 1 or several or len(self.nccl_pids) > 1 or self.launcher

    @property
    def _labelled(self) -> bool:
        """Bare numbers in front are a launcher's only if nearly every line has one."""
        return self._bare == 0 or self._bare * 5 >= self._lines * 4

    def rank_of(self, tag: int | None, stream: str, file_rank: int | None) -> int | None:
        """The rank that wrote a line with this tag and prefix."""
        if tag is not None:
            return tag
        if stream:
            seen = self._by_stream.get(stream, set())
            if len(seen) == 1 and not self.launcher:
                return next(iter(seen))
            if not seen and stream in self._tasks and self._labelled and self._tasks_are_ranks():
                return self._tasks[stream]
        if not self.shared:
            return file_rank
        return None

    def _tasks_are_ranks(self) -> bool:
        """A task number is a rank unless a tag, or a torchrun in the same file, says otherwise."""
        if self.launcher:
            return False
        return all(
            self._by_stream[stream] == {task} for stream, task in self._tasks.items() if stream in self._by_stream
        )

    def own_rank(self, hint: int | None) -> int | None:
        """The one rank whose file this is: by its tags, else by the hint; None where several ranks share it."""
        if self.shared:
            return None
        return next(iter(self.tags)) if self.tags else hint
