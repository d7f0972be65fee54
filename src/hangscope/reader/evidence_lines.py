"""Which lines of a file are evidence: those that a reader knows; and what of the few around them may be seen.

This is what a bundle carries unless somebody asks for more: not what may leave it is listed, but what may stay. A line
that goes leaves ``…`` behind, with its time and its writer's number, so that line numbers, the order of events and the
last sign of each rank stay true. The values of variables that stacks print beside their frames go.
"""

from __future__ import annotations

import json
import re
import string
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import IO

from hangscope.model.numbers import Unreadable
from hangscope.model.ranks_in_paths import rank_of_log
from hangscope.reader.dumps import dump_file
from hangscope.reader.find_files import looks_like_text
from hangscope.reader.log_context import LEFT_OUT, emptied, shown
from hangscope.reader.logs import error_lines, framework_logs, kernel_log, torch_logs
from hangscope.reader.logs.launchers import launcher_logs
from hangscope.reader.logs.line_prefixes import split_line
from hangscope.reader.logs.log_file import HEAD_LINES
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.logs.progress_lines import progress_lines
from hangscope.reader.logs.stack_dumps import StackText
from hangscope.reader.logs.unwrap import unwrapped
from hangscope.reader.sources import error_files, rosters
from hangscope.safeio import bounded_json, limits
from hangscope.sources import slices
from hangscope.sources.net_counters import read_sysfs as sysfs
from hangscope.wordings import words

LINE_BYTES = 8192
"""How much of a line is looked at, and kept."""
BEFORE = 5
AFTER = 2
"""Lines around evidence that are shown as far as their words are known: more of what came before, because a cause comes
first. The last lines of a log are shown so, too: where a rank hangs without a word, they are all that it says."""

_WORDS = sorted(
    {
        *torch_logs.WORDS,
        *kernel_log.WORDS,
        *launcher_logs.WORDS,
        *error_lines.WORDS,
        *framework_logs.WORDS,
        *words(),
        *("CCL version", "NCCL INFO", "NCCL WARN", "Traceback (most recent", "(most recent call first)"),
        *("# hangscope stacks", "Error Snippet]:", "[hangscope: ", "Last error:"),
    }
)
"""What only lines of evidence say."""
_ANY_WORD = re.compile(b"|".join(re.escape(word.encode()) for word in _WORDS))
_WITH_DIGITS = [word for word in _WORDS if any(letter in string.digits for letter in word)]
_NO_DIGITS = {ord(digit): None for digit in "0123456789"}
_MOST_SHAPES = 4096
_ROW = re.compile(
    r'  File "[^"]*", line \d+|    \S.* \([^()]*(?::\d+|\.so[\d.]*)\)\s*$|#\d+ |frame #\d+|  \.\.\.$|'
    r"# hangscope stacks |(?:Current t|T)hread \S+ .*(?:most recent call first|\([\w+]+\))|Process \d+: |"
    r"Thread \d+ stack trace:|"
    r"\s*(?:time|host|rank|exitcode|error_file|traceback)\s*:\s|\[\d+\]:$|-{8,}$|={8,}$|nccl\w+Error: "
)
"""Rows that are known by their form: of stacks, of torchrun's table of failures, of what PyTorch quotes of NCCL."""
_ACTOR_ROW = re.compile(r"\s+(?:pid|ip|name): \S+\s*$")
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|Iteration|Warning|Timeout|Group|OutOfMemory\w*)\b"
)
_GPU_REPORT = b"==============NVSMI LOG"
_GPU_ROW = re.compile(rb"=+NVSMI LOG=+| *[A-Z][\w ./()+-]{1,60}(?: : [^\r\n]{0,100})?")
"""Rows of nvidia-smi's report: a name, and a value in its column."""

_Writer = tuple[int | None, str]


class Lines:
    """Decides about the lines of one file, in order."""

    def __init__(self, cited: Collection[int] = ()) -> None:
        self._cited = frozenset(cited)
        self._stacks = StackText()
        self._inside: dict[_Writer, str] = {}
        """What a writer is in the middle of: a traceback, the description of an actor, NCCL's last error."""
        self._wordless: set[str] = set()
        """Lines without their digits that say nothing: a log's lines are mostly the same but for their numbers."""

    def is_evidence(self, first: int, last: int, text: str) -> bool:
        """Whether a message that takes the lines from `first` to `last` is evidence."""
        joined = last > first  # the reader put together what somebody had broken into lines
        known = joined or first in self._cited or self._has_word(text)
        found = known
        for line in split_line(first, text):
            found = self._takes(line, known=known) or found
        return found

    def _has_word(self, text: str) -> bool:
        if any(word in text for word in _WITH_DIGITS):
            return True
        shape = text.translate(_NO_DIGITS)
        if shape in self._wordless:
            return False
        found = _ANY_WORD.search(text.encode()) is not None
        if not found and len(self._wordless) < _MOST_SHAPES:
            self._wordless.add(shape)
        return found

    def _takes(self, line: Line, *, known: bool) -> bool:
        writer = (line.tag, line.stream)
        if self._in_stack(line, writer):
            self._inside.pop(writer, None)
            return _ROW.match(line.text) is not None
        if known:
            self._open(writer, line.text)
            return True
        inside = self._inside.get(writer)
        if inside is not None and self._continues(line.text, inside, writer):
            return True
        return _ROW.match(line.text) is not None

    def _in_stack(self, line: Line, writer: _Writer) -> bool:
        try:
            return self._stacks.feed(line.number, line.text, *writer)
        except Unreadable:
            return False

    def _open(self, writer: _Writer, text: str) -> None:
        if "Traceback (most recent" in text:
            self._inside[writer] = "traceback"
        elif "ActorDiedError" in text or "ActorError" in text:
            self._inside[writer] = "actor"
        elif text.strip() == "Last error:":
            self._inside[writer] = "quote"
        elif self._inside.get(writer) == "traceback" and text[:1] not in (" ", ""):
            del self._inside[writer]

    def _continues(self, text: str, inside: str, writer: _Writer) -> bool:
        """Whether a line belongs to what its writer is in the middle of."""
        if inside == "actor":
            return _ACTOR_ROW.match(text) is not None
        if inside == "quote":  # of NCCL's own words, one line
            del self._inside[writer]
            return True
        if not text.strip() or text[:1] in (" ", "|", "+"):
            return bool(text.strip())  # source, carets, notes
        del self._inside[writer]
        return _EXCEPTION.match(text) is not None


def keep_evidence(source: IO[bytes], out: IO[bytes], cited: Collection[int] = (), name: str = "") -> int | None:
    """Write what is evidence of a file that is no pickled dump, and say how many of its lines are left out; None where
    no reader knows the file. Its name says what a file of a copied /sys tree is, and whose log it is."""
    head = source.read(limits.HEAD_BYTES)
    source.seek(0)
    parts = tuple(name.split("/"))
    if not head or (sysfs.place_of(parts) is not None and len(head) <= sysfs.MAX_BYTES) or slices.reader_of(head):
        return _copy(source, out)
    if head.lstrip()[:1] in (b"{", b"[") and bounded_json.may_be_json(head):
        known = True if dump_file.recognise(head) else _known_json(source)
        source.seek(0)
        if known is not None:
            return _keep_json(source, out) if known else None
    if not looks_like_text(head):
        return None
    if head.lstrip().startswith(_GPU_REPORT):
        return _keep_report(source, out)
    kept = _Log(out, Lines(cited))
    kept.read(source)
    return kept.left if kept.evidence or rank_of_log(parts) is not None else None


class _Log:
    """One log while its lines are written: evidence as it is, what is around it as far as it may be shown."""

    def __init__(self, out: IO[bytes], lines: Lines) -> None:
        self._out = out
        self._lines = lines
        self._before: deque[bytes] = deque()
        self._after = 0
        self._looked_at = 0
        self._moved = False
        self.evidence = False
        self.left = 0
        """Lines of which nothing is shown."""

    def read(self, source: IO[bytes]) -> None:
        for first, rows, text in _messages(source):
            if self._lines.is_evidence(first, first + len(rows) - 1, text):
                self._write(shown, self._before)
                self._before.clear()
                self._out.writelines(row + b"\n" for row in rows)
                self._after = AFTER
                self.evidence = True
            else:
                self._add(rows[0])
        self._write(shown, self._before)

    def _add(self, row: bytes) -> None:
        if self._is_first_progress(row):
            self._write(shown, [row])
            return
        if self._after:
            self._after -= 1
            self._write(shown, [row])
            return
        self._before.append(row)
        if len(self._before) > BEFORE:
            self._write(emptied, [self._before.popleft()])

    def _is_first_progress(self, row: bytes) -> bool:
        """Whether a row is the first by which the job shows that it moves: with the last ones, it says that it did."""
        self._looked_at += 1
        if self._moved or self._looked_at > HEAD_LINES or not _shows_progress(row):
            return False
        self._moved = True
        self.evidence = True
        return True

    def _write(self, how: Callable[[bytes], bytes], rows: Iterable[bytes]) -> None:
        for row in rows:
            empty = emptied(row)
            kept = empty if how is emptied else how(row)
            self.left += kept == empty != b""
            self._out.write(kept + b"\n")


def _shows_progress(row: bytes) -> bool:
    return bool(progress_lines([(1, row.decode("utf-8", "replace"))]))


def _messages(source: IO[bytes]) -> Iterator[tuple[int, list[bytes], str]]:
    """(number of its first line, its lines, its text) of every message, as the readers of logs put them together."""
    waiting: deque[bytes] = deque()

    def given() -> Iterator[tuple[int, str, bytes]]:
        for number, row in enumerate(_rows(source), 1):
            waiting.append(row)
            yield number, row.decode("utf-8", "replace").rstrip("\r"), row.translate(None, b"0123456789")

    begun: tuple[int, str] | None = None
    for number, text, _ in unwrapped(given()):
        if begun is not None:
            yield begun[0], [waiting.popleft() for _ in range(number - begun[0])], begun[1]
        begun = (number, text)
    if begun is not None:
        yield begun[0], list(waiting), begun[1]


def _rows(source: IO[bytes]) -> Iterator[bytes]:
    while row := source.readline(1 << 20):
        yield row.rstrip(b"\r\n")[:LINE_BYTES]
        while row and not row.endswith(b"\n"):  # the rest of an endless line
            row = source.readline(1 << 20)


def _keep_report(source: IO[bytes], out: IO[bytes]) -> int:
    left = 0
    for row in _rows(source):
        known = not row.strip() or _GPU_ROW.fullmatch(row) is not None
        out.write(row + b"\n" if known else LEFT_OUT + b"\n")
        left += not known
    return left


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


def _keep_json(source: IO[bytes], out: IO[bytes]) -> int:
    """JSON that a reader knows, in which a text of several lines is a log of its own."""
    raw = source.read(limits.JSON_BYTES + 1)
    left = 0

    def kept(match: re.Match[bytes]) -> bytes:
        nonlocal left
        if b"\\n" not in match.group():
            return match.group()
        text, gone = lines_of_evidence(json.loads(match.group()))
        left += gone
        return json.dumps(text).encode() if gone else match.group()

    out.write(_STRING.sub(kept, raw) if b"\\n" in raw else raw)
    _copy(source, out)  # the rest of an endless dump
    return left


def lines_of_evidence(text: str) -> tuple[str, int]:
    """A text without its lines that are no evidence, and how many those are. The first says what the text is about, and
    stays."""
    rows = text.split("\n")
    lines = Lines()
    kept: list[str] = []
    left = 0
    for number, row in enumerate(rows, 1):
        if lines.is_evidence(number, number, row) or number == 1 or not row.strip():
            kept.append(row)
            continue
        left += 1
        if kept[-1] != _GONE:
            kept.append(_GONE)
    return "\n".join(kept), left


_GONE = LEFT_OUT.decode()


def _copy(source: IO[bytes], out: IO[bytes]) -> int:
    while chunk := source.read(1 << 20):
        out.write(chunk)
    return 0


def _known_json(source: IO[bytes]) -> bool | None:
    """Whether a reader knows this JSON; None where it is none."""
    raw = source.read(limits.JSON_BYTES + 1)
    if len(raw) > limits.JSON_BYTES:
        return False
    try:
        value = bounded_json.loads(raw)
    except bounded_json.TooMuch:
        return False
    except ValueError:
        return None
    if rosters.is_roster(value):
        return True
    if not isinstance(value, Mapping):
        return False
    ours = str(value.get("schema", "")).startswith("hangscope.") or value.keys() in _OUR_KEYS
    return ours or slices.reader_of_object(value) is not None or error_files.is_error_file(value)


_OUR_KEYS = ({"node", "pid"}, {"by", "at", "reason", "detail"})
"""Of agent.json and stall.json, which say who wrote here and why everybody captured."""
