"""Text as people paste it, made readable again: quote marks, code fences and entities off, hard-wrapped lines joined.

A message is joined with the lines below it only where it is known to go on and one of them brings its end; a line that
merely looks short is left alone. The joined line keeps the number of its first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Protocol

from hangscope.reader.logs.log_lines import LineShapes, RawLine
from hangscope.reader.logs.torch_words import GLOG_HEAD
from hangscope.wordings import Wording, begun, words_beyond

MOST_JOINED = 6
"""Lines that one message may have been broken into."""

_NARROWEST = 60
"""Characters of a terminal or a mail, at which lines are cut."""
_ABOUT_AS_LONG = 0.75

MOST_SHAPES = 4096
"""Lines without their digits that are remembered: a training log prints a few over and over."""
_LONG_NUMBER = re.compile(r"\d{20,}|(?<!\d)9[2-9]\d{17}(?!\d)")
"""Beyond 63 bits, or just below: no time in nanoseconds is so late."""

_QUOTE = re.compile(r"^\s{0,3}(?:(?:>|&gt;)\s?)+")
_MARKS = frozenset(">`~& ")
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})\s*\w*\s*$")
_ENTITY = re.compile(r"&(lt|gt|amp|quot|#39|#x27|apos|nbsp|hellip);")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'", "nbsp": " ", "hellip": "…"}
_ENTITIES |= {"#39": "'", "#x27": "'"}
_LINK = re.compile(r"\[([^\[\]\s]{1,200})\]\((?:https?://|mailto:)[^\s()]{1,300}\)")
"""What chats make of ``file.cc:101``."""
_BAR = re.compile(r"\[[\w.-]{1,30}\] \d:[\w./-]{1,40}[*-][ MZ#!~]?(?: .{0,200})?$")
"""The status line of tmux or screen, over the text."""
_NUMBERED = re.compile(r"^\s{0,6}\d{1,6}\s?[│┆┊→]\s?")
"""A viewer's line numbers."""
_PLAIN = {ord(fancy): plain for fancy, plain in (("’", "'"), ("‚", "'"), ("″", '"'), ("\u00a0", " "), ("\u200b", ""))}
_STARTS_ANEW = re.compile(
    r"^\s*(?:\[(?:rank|[EWIF]\d|[EWIF] |\d+,|default|pod/)|\d{4}-\d\d-\d\d|Traceback |File \"|frame #|#\d+ "
    r"|Exception raised|terminate called|what\(\)|\(\w+ pid=|[\w.-]+:\d+:\d+ \[|$)"
)
_WATCHDOG = (
    r"caught collective operation timeout: \w+\((?:\w+=[\w-]+, )*(?:\w+|Timeout\(ms\))=[\w-]+\) ran for \d+ "
    r"(?:milliseconds|ms) before timing out"
)
_COUNTERS = r"ast enqueued (?:\w+ )?work: -?\d+, (?:.{0,80}, )?last completed (?:\w+ )?work: -?\d+"
_C10_ENDS = re.compile(
    rf"{_WATCHDOG}|{_COUNTERS}|terminated with exception: \S|incomplete data|process down"
    r"|debug info\.|stack trace: \d|non-zero value|signal dumping|of its watchdog|size\(\) ?= ?\d"
    r"|failed collective(?: not found|:)|async exception: \S|environments?:|options:|program exit|desync are:"
    r"|caused this timeout|abort(?:ed|ing)"
)
_OPEN: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("Watchdog caught", re.compile(_WATCHDOG)),
    ("Got completion", re.compile(r"(?:status=\S*?\d+|error \d+).{0,80}(?:vendor|len|hca)")),
    ("waiting for clients", re.compile(r"\d+/\d+ \w+ joined")),
    ("worker died or was killed", re.compile(r"Worker PID: \d+\D")),
    ("mismatch between collectives", re.compile(r"but Rank \d+ is running collective: .{0,60}OpType=\w+|inconsistent")),
    ("failed (exitcode", re.compile(r"\(pid: \d+\)")),
    ("is setting up NCCL", re.compile(r"got error: \S")),
    ("noticed that process rank", re.compile(r"exited on signal \d+")),
    ("To our best knowledge", re.compile(r"lagging ranks that|desync are")),
    ("killed due to the node running", re.compile(r"low on memory")),
    ("killed due to memory pressure", re.compile(r"\bIP: [\w.:-]+\w")),
    ("failed to pass", re.compile(r"monitoredBarrier in \d+")),
)
"""How a message begins → what it has when it is whole. c10's own messages are known by their head."""


_FAILURE_PARTS: tuple[str, ...] = (
    "srun: ",
    "rror",
    "ailed",
    "illed",
    "xit",
    "ermina",
    "ignal",
    "xception",
    "imeout",
    "imed out",
    "bort",
    "WARN",
    "atchdog",
    "ProcessGroup",
    "eartbeat",
    "joined",
    "didn't ",
    "out of mem",
    "smatch",
    "died",
    "oom",
    "fault",
    "hutdown",
    "RROR",
    "EXIT",
    "ailure",
    "times out",
    "RankID",
    "TERM_",
    "ubprocess",
    "SIG",
    "ABORT",
    "CANCEL",
    "RUNNING AT",
    "Process name",
    "completion from",
    "ncclUniqueId",
    "edBarrier",
    "agging",
    "inconsistent",
    "not to match",
    "dead",
    "ncountered",
    "victed",
    "low on",
    "NotReady",
    "responding",
    "CrashLoop",
    "NodeLost",
    "by peer",
    "waiting for",
    "process down",
    "preamble",
    "to dump",
    "GIL",
    "] started ",
    "] finished ",
    " ranks:",
    "store_based_barrier",
    "store-based barrier",
    "LinkDowned",
    "broadcast block",
    "Memory on the node",
    "engine proc",
    "Hang detected",
    "baton release",
    "ost connection",
    "NIXL_ERR",
    "Preempt",
    "dump signal",
)
_FAILURE_PARTS += words_beyond(_FAILURE_PARTS)
"""Every line of failure holds one of these."""


_INFORMATIVE_PARTS = (
    "hangscope:",
    "CCL ",
    "raceback",
    "hread",
    "rocess",
    " : ",
    "#",
    "error_file",
    "Last error",
    "/handler/",
)
"""A line that tells of no failure may still say something: a verdict of ours, NCCL's setup, a stack, a summary."""
PLAIN, INFORMATIVE, FAILING = range(3)
"""What a line can be, by the parts that it holds."""

Unwrapped = tuple[int, str, int]
"""(number, text, what it can be) of a line, or of several that are one message."""


def unwrapped(lines: Iterable[RawLine], shapes: LineShapes | None = None) -> Iterator[Unwrapped]:
    """Every line made readable, with those that are one message joined.

    Lines that differ in their digits alone, the third value of each line given, are looked at once.
    """
    shapes = shapes or LineShapes()
    uses = shapes.uses
    message = _OpenMessage()
    for number, raw, shape in lines:
        text = _readable(raw, shape)
        use = uses.get(shape)
        if use is None:
            use = _use_of_new(shape, text, shapes)
        if message.end is not None:
            if message.may_go_on(text):
                message.lines.append((number, text, use))
                joined = _join([part for _, part, _ in message.lines], message.end)
                if joined is not None:
                    yield message.lines[0][0], joined, FAILING
                    message.close()
                continue
            yield from message.lines
            message.give_up()
        if use == FAILING and message.opens(text, shape):
            message.lines.append((number, text, use))
        else:
            yield number, text, use
    yield from message.lines


class _End(Protocol):
    """What the whole of a message has."""

    def search(self, string: str, /) -> object | None: ...


class _WholeWording:
    """A wording of the catalogue, of which the first line, of this length, has only the beginning."""

    def __init__(self, rows: tuple[Wording, ...], length: int) -> None:
        self._rows = rows
        self._length = length

    def search(self, string: str, /) -> object | None:
        matches = (row.search(string) for row in self._rows)
        return next((match for match in matches if match is not None and match.start() < self._length), None)


class _OpenMessage:
    """A message whose end is not there yet, with the lines that it may have been broken into."""

    def __init__(self) -> None:
        self.lines: list[Unwrapped] = []
        self.end: _End | None = None
        """What the whole message has; None where no message is open."""
        self._shape = b""
        self._whole: set[bytes] = set()
        """Shapes of lines that were whole, or that looked unfinished and that nothing below finished."""

    def opens(self, text: str, shape: bytes) -> bool:
        """Whether a line begins a message that goes on below."""
        if shape not in self._whole:
            self.end = _missing_end(text)
            self._shape = shape
            if self.end is None and len(self._whole) < MOST_SHAPES:
                self._whole.add(shape)  # whole as it stands, and so are those like it
        return self.end is not None

    def may_go_on(self, text: str) -> bool:
        if _STARTS_ANEW.match(text) or len(self.lines) >= MOST_JOINED:
            return False
        if not isinstance(self.end, _WholeWording):
            return True
        # cut at one width, every part but the last is about as long as the first
        return len(self.lines[-1][1].rstrip()) >= len(self.lines[0][1].rstrip()) * _ABOUT_AS_LONG

    def close(self) -> None:
        self.lines = []
        self.end = None

    def give_up(self) -> None:
        """Nothing below brought its end: the line was whole as it stood, and so are those like it."""
        if len(self._whole) < MOST_SHAPES:
            self._whole.add(self._shape)
        self.close()


def _readable(raw: str, shape: bytes) -> str:
    text = raw.removeprefix("\ufeff")
    if "](" in text or "] 0:" in text or "] 1:" in text:
        text = _BAR.sub("", _LINK.sub(r"\1", text))
    if text[:1] in _MARKS or "&" in text:
        text = _without_marks(text)
    if not text.isascii():
        text = _NUMBERED.sub("", text).translate(_PLAIN)
    if len(text) - len(shape) >= 19 or not text.isascii():  # a letter of several bytes hides digits from the count
        # no number that anyone logs on purpose: -1 as an unsigned one, or an attack
        text = _LONG_NUMBER.sub("-1", text)
    return text


def _use_of_new(shape: bytes, text: str, shapes: LineShapes) -> int:
    """What lines of a shape can be that was not seen before; remembered for the next."""
    if len(shapes.uses) >= MOST_SHAPES:
        shapes.uses.clear()
    use = PLAIN
    if any(map(text.__contains__, _FAILURE_PARTS)):
        use = FAILING
        shapes.failing.add(hash(shape))
    elif any(map(text.__contains__, _INFORMATIVE_PARTS)):
        use = INFORMATIVE
        shapes.informative.add(hash(shape))
    shapes.uses[shape] = use
    return use


def _without_marks(raw: str) -> str:
    if raw[:1] == " " and raw[:4].lstrip()[:1] not in _MARKS and "&" not in raw:
        return raw
    if raw.lstrip()[:1] in {">", "&"}:
        raw = _QUOTE.sub("", raw)
    if "`" in raw[:4]:
        raw = "" if _FENCE.match(raw) else raw.strip("`")
    if "&" in raw and ";" in raw:
        for _ in range(2 if "&amp;" in raw else 1):  # pasted into a page, and copied out of its source
            raw = _ENTITY.sub(lambda found: _ENTITIES[found[1]], raw)
    return raw


def _missing_end(raw: str) -> _End | None:
    """What would end the message that this line begins, where the line does not have it itself."""
    if len(raw) < 20 or len(raw) > 2000:
        return None
    if ".cpp:" in raw and (head := GLOG_HEAD.search(raw)):
        if _C10_ENDS.search(raw, head.end()):
            return None
        return None if raw.rstrip().endswith(".") else _C10_ENDS
    for start, ends in _OPEN:
        if start in raw:
            return None if ends.search(raw) else ends
    if len(raw) < _NARROWEST or not (rows := begun(raw)):
        return None
    return _WholeWording(rows, len(raw))


def _join(parts: list[str], end: _End) -> str | None:
    """The parts as one line if that has the end.

    Wrapped at words they want spaces between them, cut at the width of a terminal none, unless the space at the cut was
    lost: every way is tried, the plain ones first.
    """
    for gaps in sorted(product((" ", ""), repeat=len(parts) - 1), key=lambda gaps: len(set(gaps))):
        joined = parts[0].rstrip() if gaps[0] else parts[0]
        for gap, part in zip(gaps, parts[1:], strict=True):
            joined = f"{joined.rstrip()} {part.strip()}" if gap else joined + part
        if end.search(joined):
            return joined
    return None
