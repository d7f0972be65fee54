"""Python tracebacks in a log: type, message, frames, and the exception that came before in a chain.

A traceback of a rank that merely noticed (a collective that timed out, a peer that closed its connection, a signal from
the launcher) is a consequence, and is marked so: it says who waited, not who was at fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hangscope.model import CUT_OFF, Frame
from hangscope.model.numbers import integer
from hangscope.reader.logs.log_lines import Line
from hangscope.wordings import find

MESSAGE_LINES = 12
"""Lines of one exception's message that are kept."""
FOREIGN_LINES = 20
"""Lines of other writers that may stand inside a traceback before it is given up."""
MOST_CHAINED = 50
"""Exceptions of one chain that are kept: the first ones, and the last."""

LONGEST_CODE = 400

_START = re.compile(r"(?:^|[\s:])Traceback \(most recent call last\):\s*$")
_FRAME = re.compile(r'^[\s|+]*File "(?P<file>.*?)", line (?P<line>\d+)(?:, in (?P<name>.*))?\s*$')
# Python prints every exception but its own with the module's name, and its own end in one of a few words.
_ERROR = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|\w*(?:Error|Exception|Interrupt|Exit|Iteration|Warning|ExceptionGroup))"
    r"(?::\s?(?P<message>.*))?$"
)
# torch raises the exception of a DataLoader's worker or of a replica's thread again, with its traceback as the message.
_CAUGHT = re.compile(r"^Caught \S{1,200} in (?P<where>.{1,200}?)\.?$")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# Ray Train's driver repeats each worker's exception under its rank.
_SNIPPET = re.compile(r"^\[Rank (\d{1,6}) Error Snippet\]:\s*$")
_MESSAGE_ENDS = re.compile(
    r"^(?:frame #\d+|Exception raised from |C\+\+ CapturedTraceback:|Traceback |\[[EWIF][\d ]|[EWIF]\d{4} \d\d:"
    r"|=====|-----)"
)

_LAUNCHER_FILES = re.compile(
    r"/runpy\.py$|^<frozen runpy>$|/bin/(?:torchrun|accelerate|deepspeed|ray|srun|composer|lightning)$"
    r"|/(?:torch/distributed/(?:run|launch|launcher/.*|elastic/.*)|accelerate/commands/.*|deepspeed/launcher/.*)\.py$"
)
_TORCHRUN_FILES = re.compile(r"/bin/torchrun$|/torch/distributed/(?:run|launch|launcher/.*|elastic/.*)\.py$")
_LAUNCHER_ERRORS = {"ChildFailedError", "SignalException", "ProcessRaisedException", "WorkerGroupError"}
_LOCAL_FAULT = re.compile(r"unhandled cuda error|Cuda failure|CUDA error|out of memory", re.IGNORECASE)
_PEER_FAULT = re.compile(
    r"NCCL (?:error|communicator was aborted)|Watchdog caught|Timed out waiting \d+ ?ms|collective operation timeout"
    r"|Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|ncclSystemError"
    r"|remote process exited|gloo/transport|wait timeout after|Socket Timeout|failed to recv, got 0 bytes"
    r"|NCCL operation timed out|recvValueWithTimeout|The client socket has (?:timed out|failed)"
    r"|Stop_waiting response is expected|rendezvous|got signal: \d+|store based barrier|waitForInput",
    re.IGNORECASE,
)
# An engine's or a pool's own process repeats that one of its workers failed, and says where to look.
_POINTS_ELSEWHERE = re.compile(
    r"[Ss]ee (?:the )?(?:root cause|error messages?|stack trace|logs?) (?:above|for (?:the )?root cause)"
    r"|see the error messages? above|[Ee]ngine core initialization failed|WorkerProc initialization failed"
    r"|Executor failed\b|EngineCore encountered|scheduler died during initialization"
    r"|RPC call to \w+ timed out|Hang detected on rank"
)
_DISTRIBUTED_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "DistQueueEmptyError"}
_NETWORK_TYPES = {
    "ConnectionError",
    "ConnectionResetError",
    "BrokenPipeError",
    "ConnectionRefusedError",
    "TimeoutError",
}


@dataclass
class Traceback:
    """One exception as it was printed. `cause` is the one before it in a chain."""

    tag: int | None
    stream: str
    number: int
    at_ns: int | None
    type: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    """The line of source under each frame, empty where none is printed."""
    cause: Traceback | None = None
    chained: int = 0
    """How many came before it in its chain."""
    indent: int = 0
    caught_in: Traceback | None = None
    """The exception of this process that carried this one, of another process or thread, in its message."""
    ignored: bool = False
    """Whether Python says above it that it went on."""

    @property
    def root(self) -> Traceback:
        found = self
        while found.cause is not None:
            found = found.cause
        return found

    @property
    def consequence(self) -> bool:
        return is_consequence(self.root.type, self.root.message, self.root.frames)


def is_consequence(kind: str, message: str, frames: list[Frame]) -> bool:
    """Whether an exception only says that its rank waited for others, or was asked to stop."""
    short = kind.rsplit(".", 1)[-1]
    if short in {"KeyboardInterrupt", "SystemExit", "EngineDeadError"} | _LAUNCHER_ERRORS:
        return True
    if _POINTS_ELSEWHERE.search(message) or _names_another(message):
        return True
    if short in _DISTRIBUTED_TYPES:
        return _LOCAL_FAULT.search(message) is None
    inside = any("torch/distributed/" in frame.filename for frame in frames)
    if short in _NETWORK_TYPES:
        return inside
    if short == "RuntimeError":
        return _PEER_FAULT.search(message) is not None and _LOCAL_FAULT.search(message) is None
    return False


def _names_another(message: str) -> bool:
    """Whether the message's wording names a peer that did not come, or another reason that is not its writer's."""
    return any(row.explains and not row.of_writer for row, _ in find(message))


def of_launcher(frames: Sequence[Frame]) -> bool:
    """Whether a launcher printed a traceback, and not a rank that it started: the outermost frame tells."""
    return _LAUNCHER_FILES.search(_outermost_file(frames)) is not None


def of_torchrun(frames: Sequence[Frame]) -> bool:
    """Whether torchrun itself printed a traceback: then a scheduler's tasks are nodes."""
    return _TORCHRUN_FILES.search(_outermost_file(frames)) is not None


def _outermost_file(frames: Sequence[Frame]) -> str:
    return next((frame.filename for frame in frames if "runpy" not in frame.filename), "")


_Writer = tuple["int | None", str]
"""A line's tag and prefix: the lines of one traceback have the same."""


class Tracebacks:
    """Puts tracebacks together from lines of one file, per writer."""

    def __init__(self) -> None:
        self.found: list[Traceback] = []
        self.passed_over = 0
        """Exceptions in the middle of chains that are too long to be kept whole."""
        self._open: dict[_Writer, _OpenTraceback] = {}
        self._fresh: tuple[_Writer, int] | None = None
        """The traceback that began last, and on which line."""
        self._ignored: tuple[_Writer, int] | None = None
        """Whose Python said last, and on which line, that it ignores an exception: its traceback follows."""
        self._announced: tuple[str, int, int] | None = None
        """Whose traceback the driver gives next: prefix, line and rank."""

    def feed(self, line: Line) -> bool:
        """Take one line. True where it belongs to a traceback, so that nobody else reads its message."""
        key = (line.tag, line.stream)
        current = self._open.get(key) or self._begun_with_prefix(key, line.number)
        if "Traceback (" in line.text and _START.search(line.text):
            self._begin(key, line, current)
            return True
        if line.text.startswith("Exception ignored in"):
            self._ignored = (key, line.number)
        if line.text.startswith("[Rank ") and (match := _SNIPPET.match(line.text)):
            self._announced = (line.stream, line.number, integer(match[1]))
        if current is None:
            return False
        if not line.text.strip():
            current.blank = True
            return False
        if current.take(line):
            return True
        if current.traceback.type or current.foreign >= FOREIGN_LINES:
            self._end(key)
        current.foreign += 1
        return False

    def _begun_with_prefix(self, key: _Writer, number: int) -> _OpenTraceback | None:
        """The traceback that began on the line before, where a logger's prefix stood in front of that line alone."""
        if self._fresh is None or key != (None, ""):
            return None
        begun, begun_at = self._fresh
        self._fresh = None
        if number - begun_at > 1 or begun not in self._open:
            return None
        self._open[key] = self._open.pop(begun)
        return self._open[key]

    def _begin(self, key: _Writer, line: Line, before: _OpenTraceback | None) -> None:
        """A traceback begins; the one before it of the same writer is its cause where the lines between say so."""
        if before is not None and "Original Traceback (" in line.text and _CAUGHT.match(before.traceback.message):
            self._begin_original(key, line, before.traceback)
            return
        earlier = self._end(key) if before is not None else None
        cause = earlier if before is not None and before.chained else None
        if cause is not None:
            self.found.pop()  # it was the last to end
            if cause.chained >= MOST_CHAINED:
                self.passed_over += 1
                cause = cause.cause
        chained = cause.chained + 1 if cause is not None else 0
        new = Traceback(self._rank(line), line.stream, line.number, line.at_ns, cause=cause, chained=chained)
        new.ignored = self._ignored is not None and self._ignored[0] == key and line.number - self._ignored[1] <= 2
        new.indent = len(line.text) - len(line.text.lstrip(" |+"))
        self._open[key] = _OpenTraceback(new)
        self._fresh = (key, line.number)

    def _begin_original(self, key: _Writer, line: Line, carrier: Traceback) -> None:
        """The traceback of a worker's exception begins, in the message of the one that was raised for it."""
        new = Traceback(carrier.tag, line.stream, line.number, line.at_ns, caught_in=carrier)
        new.indent = len(line.text) - len(line.text.lstrip(" |+"))
        self._open[key] = _OpenTraceback(new)
        self._fresh = (key, line.number)

    def _rank(self, line: Line) -> int | None:
        """Whose traceback begins here: the line's own rank, or the one that the line before announced."""
        stream, number, rank = self._announced or ("", 0, None)
        announced = (stream, number) == (line.stream, line.number - 1)
        return rank if line.tag is None and announced else line.tag

    @property
    def waiting(self) -> bool:
        """Whether a traceback is open, so that the next line may belong to it."""
        return bool(self._open)

    def finish(self) -> list[Traceback]:
        for key in list(self._open):
            self._end(key)
        return sorted(self.found, key=lambda traceback: traceback.number)

    def _end(self, key: _Writer) -> Traceback | None:
        found = self._open.pop(key).traceback
        if found.ignored:
            return None
        if found.caught_in is not None:
            found = _with_carrier(found, found.caught_in)
        if found.type and found.type.rsplit(".", 1)[-1] not in _LAUNCHER_ERRORS:
            self.found.append(found)
            return found
        if not found.type and not all(_LAUNCHER_FILES.search(frame.filename) for frame in found.frames):
            found.type = CUT_OFF
            self.found.append(found)
            return found
        return None


def _with_carrier(original: Traceback, carrier: Traceback) -> Traceback:
    """One exception with the frames of both: where it was raised again, and inside that where it came from."""
    caught = _CAUGHT.match(carrier.message)
    carrier.frames += original.frames
    carrier.code += original.code
    if original.type:
        carrier.type = original.type
        carrier.message = f"{original.message} (in {caught['where']})" if caught is not None else original.message
    return carrier


class _OpenTraceback:
    """One traceback while its lines come in."""

    __slots__ = ("blank", "chained", "foreign", "message_lines", "traceback")

    def __init__(self, traceback: Traceback) -> None:
        self.traceback = traceback
        self.message_lines = 0
        self.foreign = 0
        self.blank = False
        self.chained = False

    def take(self, line: Line) -> bool:
        text = line.text
        if not self.traceback.type:
            self.blank = False
            return self._frame_or_error(text)
        if text.strip() in _CHAIN:
            self.chained = True
            return True
        if self.chained:
            return False
        # a message may have more lines; a blank line, a new log line or a C++ stack ends it
        if self.blank or self.message_lines >= MESSAGE_LINES or _MESSAGE_ENDS.match(text):
            return False
        self.message_lines += 1
        self.traceback.message = f"{self.traceback.message}\n{text.strip()}".strip("\n")
        return True

    def _frame_or_error(self, text: str) -> bool:
        if match := _FRAME.match(text):
            self.traceback.frames.append(Frame(match["name"] or "", match["file"], integer(match["line"])))
            self.traceback.code.append("")
            return True
        body = text[self.traceback.indent :] if text[: self.traceback.indent].strip(" |+") == "" else text
        if body[:1] in {" ", "\t", "|", "+"}:
            self._source_line(body.strip(" \t|+"))
            return True  # source, carets, notes
        if match := _ERROR.match(body):
            self.traceback.type = match["type"]
            self.traceback.message = (match["message"] or "").strip()
            return True
        return False

    def _source_line(self, text: str) -> None:
        """Keep what is printed right under a frame; below it are only carets, or the rest of a long call."""
        code = self.traceback.code
        if code and not code[-1]:
            code[-1] = text[:LONGEST_CODE]
