"""Text logs as lines: what a launcher put in front is taken off and kept as the name of the writer.

Several ranks may share one file. Lines of one writer carry the same prefix, so blocks of several lines are put together
per prefix. PyTorch's own ``[rank3]:`` is the one prefix that names a global rank; numbers of mpirun, srun, Horovod and
vLLM and torchrun's local ranks are kept, and used only where nothing contradicts them.
"""

from __future__ import annotations

import json
import re
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


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)")
# colours whose escape character was lost on the way through a browser
_COLOUR = re.compile(r"\[(?:0|[1-9]\d?(?:;\d{1,3}){0,4})m")
_TIME = re.compile(_ISO.pattern + r"\s(?:std(?:out|err) [FP] )?")
# determined.ai and SGLang put the time in brackets, the latter with its own ranks behind it
_BRACKET_TIME = re.compile(r"\[" + _ISO.pattern + r"(?: (?P<ranks>(?:[A-Z]{2}\d+ ?)+))?\]\s?(?=\S|$)")
_MPI = re.compile(r"\[\d+,(\d{1,6})\]<std(?:out|err|diag)>:\s?")
_HOROVOD = re.compile(r"\[(\d{1,6})\]<std(?:out|err)>:\s?")
# not the device in a NCCL line whose host was cut off: [4] NCCL WARN
_NUMBER = re.compile(r"\[(\d{1,6})\]:?\s(?=\S)(?!(?:\S+:\d+ )?NCCL |params\[)")
_RAY = re.compile(r"\((?:[\w.:<>-]+ )?(?:rank=(\d{1,6}) )?pid=(\d+)(?:, ip=([\w.:]+))?(?:, \w+=[^)]{0,60})?\)\s?")
_SRUN = re.compile(r" {0,3}(\d{1,6}): ")
_POD = re.compile(r"\[pod/[\w.-]+(?:/[\w.-]+)?\]\s?")
_COMPOSE = re.compile(r"[\w.-]+\s*\|{1,2}\s")
# vLLM's logger stands in front of every line of a traceback
_LOGGER = re.compile(r"(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[\S+?:\d+\]|\S+?:\d+\]) ?")
_PDSH = re.compile(r"(?!rank)([A-Za-z][A-Za-z-]*[\w.-]*\d[\w.-]*): ")
_TEE = re.compile(r"\[(?!rank)([a-zA-Z_]\w*?)(\d+)\]:\s?")
_TAG = re.compile(r"\[rank:? ?(\d{1,6})\]:? ?|rank(\d{1,6}): (?=Traceback|  |\[)")
_TAG_INSIDE = re.compile(r"\[rank(\d{1,6})\]:\s?")


def split_prefix(number: int, raw: str) -> Line:
    """Take off everything that a launcher, a container runtime or PyTorch put in front of one line."""
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    if ("[0m" in text or "[3" in text) and _COLOUR.search(text):
        text = _COLOUR.sub("", text)
    if text.startswith('{"log":'):
        text = _docker(text)
    stream: list[str] = []
    task = local_rank = pid = tag = None
    stamp = host = ""
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
            if match := _NUMBER.match(text):
                # mpirun's -prepend-rank; in front of a tag it is a viewer's line number, which names no one
                if not _TAG.match(text, match.end()):
                    task, bare = int(match[1]), True
                    stream.append(match[0].strip())
                text = text[match.end() :]
                continue
            if match := _BRACKET_TIME.match(text):
                stamp = stamp or match[0]
                stream.extend([match["ranks"].strip()] if match["ranks"] else [])
                text = text[match.end() :]
                continue
            if match := _MPI.match(text) or _HOROVOD.match(text):
                task = int(match[1])
            elif match := _TEE.match(text):
                local_rank = int(match[2])
            elif not (match := _POD.match(text)):
                break
        elif first == "(":
            if not (match := _RAY.match(text)):
                break
            pid, host = int(match[2]), match[3] or host
            task = int(match[1]) if match[1] else task
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
        elif first in "EWIDC" and (match := _LOGGER.match(text)):
            text = text[match.end() :]
            continue
        elif not (match := _COMPOSE.match(text)):
            if ": " not in text[:64] or not (match := _PDSH.match(text)):
                break
            host = match[1]
        stream.append(match[0].strip())
        text = text[match.end() :]
    if tag is None and "[rank" in text and (match := _TAG_INSIDE.search(text)):
        # a progress bar, a pod's name or a print without its newline shares the line
        tag = int(match[1])
        text = text[match.end() :]
    return Line(number, text, tag, " ".join(stream), task, local_rank, pid, stamp, bare, host)


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
) -> Iterator[tuple[int, str, bytes]]:
    """(number from 1, text, text without digits) of lines, each cut at `LINE_LIMIT`, in constant memory.

    Of the bytes in `skip` the lines are counted and not looked at, so that the numbers behind them stay right.
    Stretches that hold none of the `words`, and do not follow one that does, are passed over in the same way: a
    training log is mostly loss values. The beginning and the end are always read.
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
            if words and after_a_hit < 0:
                passed = (number, stretch)
                number += stretch.count(b"\n")
                continue
            passed = None
            yield from _lines(stretch, number)
            number += stretch.count(b"\n")
        rest = rest[:LINE_LIMIT]
    if passed is not None:
        yield from _lines(passed[1], passed[0])
    if rest:
        yield from _lines(rest + b"\n", number)


def _lines(stretch: bytes, number: int) -> Iterator[tuple[int, str, bytes]]:
    shapes = stretch.translate(None, b"0123456789").split(b"\n")
    for index, piece in enumerate(stretch.split(b"\n")[:-1]):
        text = piece[:LINE_LIMIT].decode("utf-8", "replace")
        yield number + index, text.rstrip("\r"), shapes[index][:LINE_LIMIT]


def line_of(source: Source) -> int:
    """The number in a place such as ``line 12``, for order."""
    digits = "".join(char for char in source.place if char.isdigit())[:18]
    return int(digits or 0)


def split_line(number: int, raw: str) -> Iterator[Line]:
    """A raw line without its prefix. A carriage return (progress bars) ends a line too, but does not count as one."""
    if "\r" in raw:
        for part in raw.split("\r"):
            if part:
                yield split_prefix(number, part)
    else:
        yield split_prefix(number, raw)
