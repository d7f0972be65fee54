"""Python stacks of a live process: faulthandler's format (PyTorch's worker server, a crash), py-spy's, and a listing of
`traceback` as Ray Train's hang detector writes it.

Innermost frame first, as the first two print them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangscope.engine_roles import of_title
from hangscope.model import Frame
from hangscope.model.numbers import integer, is_number

_HEADER = re.compile(r"^# hangscope stacks (?P<fields>.*)$")
# torch.distributed.debug's periodic dumps, and its page: every rank's answer behind a header, from PyTorch 2.11 on
_DEBUG_HEADER = re.compile(r"^=== Rank (?P<rank>\d{1,6}): https?://\S{1,300}/handler/dump_traceback\S{0,40} ===\s*$")
_FIELD = re.compile(r"(?<!\w)(\w{1,40})=(\S{1,400})")
# 3.14 adds the thread's name: Thread 0x… [name] (most recent call first):
_FAULT_THREAD = re.compile(
    r"^(?P<current>Current t|T)hread (?P<id>0x[0-9a-fA-F]+|\d+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
# TensorRT-LLM's hang detector, each thread behind its logger's prefix, as Python lists frames
_PRINTED_THREAD = re.compile(r"^Thread (?P<id>\d{1,20}) stack trace:\s*$")
_PRINTED_LOOP = re.compile(r"^_(?:executor|event)_loop")
# what Ray Train's hang detector writes of a rank where py-spy is missing, as Python lists frames: the innermost last
_LISTED_BEGIN = "[py-spy unavailable: "
_LISTED_THREAD = re.compile(r"^# Thread (?P<id>\d{1,20})\s*$")
_LISTED_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$')
_SPY_PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<title>.{0,200})")
_SPY_THREAD = re.compile(r'^Thread (?P<id>0x[0-9A-Fa-f]+|\d+) \((?P<state>[\w+]+)\)(?:: "(?P<name>.*)")?\s*$')
_NATIVE = re.compile(r"\.so(\.[\d.]+)?$|\.(c|cc|cpp|cxx|h|hpp|cu|cuh|inc|pyx|rs)$")
_SPY_FRAME = re.compile(r"^    (?P<name>\S.*?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*$")
_FRAMES = {"fault": _FAULT_FRAME, "spy": _SPY_FRAME, "listed": _LISTED_FRAME}


@dataclass
class Thread:
    """One thread as it was printed."""

    name: str
    number: int
    frames: list[Frame] = field(default_factory=list)
    current: bool = False
    main: bool = False
    active: bool | None = None
    holds_gil: bool = False
    native: list[Frame] = field(default_factory=list)
    """Inside the innermost Python frame."""
    innermost_last: bool = False

    def add(self, frame: Frame) -> None:
        if not _NATIVE.search(frame.filename[-80:]):
            self.frames.append(frame)
        elif not self.frames:
            self.native.append(frame)


@dataclass
class Capture:
    """All threads of one process at one moment."""

    number: int
    rank: int | None = None
    pid: int | None = None
    sample: int = 1
    by: str | None = None
    parent: int | None = None
    """The rank's own process, where these are the stacks of one that it started."""
    threads: list[Thread] = field(default_factory=list)
    tag: int | None = None
    stream: str = ""


_Writer = tuple["int | None", str]
"""A line's tag and prefix: the lines of one stack have the same."""


class StackText:
    """Reads stacks out of a file's lines, be it a file of stacks alone or a rank's log with a stack in it."""

    def __init__(self) -> None:
        self.captures: list[Capture] = []
        self.dedicated = False
        """Whether the file says itself that it is a capture of stacks."""
        self._open: dict[_Writer, Thread | None] = {}
        self._capture: dict[_Writer, Capture] = {}
        self._style: dict[_Writer, str] = {}
        self._listed = False

    def feed(self, number: int, text: str, tag: int | None = None, stream: str = "") -> bool:
        """Take one line; True where it belongs to a stack."""
        key = (tag, stream)
        if text.startswith("# hangscope stacks "):
            self._header(number, text, key)
            return True
        if text.startswith("=== Rank ") and (match := _DEBUG_HEADER.match(text)):
            self.dedicated = True
            capture = self._new(number, key)
            capture.rank = integer(match["rank"])
            capture.by = "torch.distributed.debug"
            return True
        if text.startswith(_LISTED_BEGIN):
            self._listed = True
            self._new(number, key)
            return True
        if "hread" in text and self._thread(number, text, key):
            return True
        if text.startswith("Process ") and (match := _SPY_PROCESS.match(text)):
            self._process(number, integer(match["pid"]), match["title"], key)
            return True
        thread = self._open.get(key)
        if thread is None:
            return False
        if self._frame(thread, text, key):
            return True
        self._open[key] = None
        if text.strip():
            self._capture.pop(key, None)
        return False

    def _frame(self, thread: Thread, text: str, key: _Writer) -> bool:
        """Take a line of an open stack; False where it is none."""
        frame = _FRAMES[self._style.get(key, "spy")].match(text)
        if frame is not None:
            thread.add(Frame(frame["name"], frame["file"], integer(frame["line"] or "0")))
            return True
        # py-spy's locals, lines of source, faulthandler's cut, what a bundle left out, a thread that runs no Python
        return text.startswith("    ") or text.strip() in ("...", "…", "<no Python frame>")

    def _process(self, number: int, pid: int, title: str, key: _Writer) -> None:
        capture = self._capture.get(key)
        if capture is None or capture.threads:
            capture = self._new(number, key)
        capture.pid = pid if capture.pid is None else capture.pid
        capture.by = capture.by or "py-spy"
        if not self.dedicated and capture.rank is None:
            capture.rank = engine_rank(title)

    def _header(self, number: int, text: str, key: _Writer) -> None:
        match = _HEADER.match(text)
        fields = dict(_FIELD.findall(match["fields"])) if match else {}
        self.dedicated = True
        capture = self._new(number, key)
        capture.rank = _number(fields.get("rank"))
        capture.pid = _number(fields.get("pid"))
        capture.sample = _number(fields.get("sample")) or 1
        capture.by = fields.get("by")
        capture.parent = _number(fields.get("parent"))

    def _thread(self, number: int, text: str, key: _Writer) -> bool:
        if match := _FAULT_THREAD.match(text):
            capture = self._capture.get(key) or self._new(number, key)
            thread = Thread(match["name"] or match["id"], number, current=match["current"].startswith("C"))
            self._style[key] = "fault"
        elif match := _SPY_THREAD.match(text):
            capture = self._capture.get(key) or self._new(number, key)
            capture.by = capture.by or "py-spy"
            thread = Thread(match["name"] or match["id"], number, active="active" in match["state"])
            thread.holds_gil = "gil" in match["state"]
            thread.main = match["name"] == "MainThread" or match["id"] == str(capture.pid)
            self._style[key] = "spy"
        elif match := _PRINTED_THREAD.match(text):
            return self._printed_thread(number, match["id"], key)
        elif self._listed and (match := _LISTED_THREAD.match(text)):
            capture = self._capture.get(key) or self._new(number, key)
            thread = Thread(match["id"], number, innermost_last=True)
            self._style[key] = "listed"
        else:
            return False
        capture.threads.append(thread)
        self._open[key] = thread
        return True

    def _printed_thread(self, number: int, name: str, key: _Writer) -> bool:
        """Its frames stand below without a prefix."""
        capture = self._capture.get(key) or self._new(number, key)
        capture.by = "printed"
        thread = Thread(name, number, innermost_last=True)
        capture.threads.append(thread)
        bare: _Writer = (None, "")
        self._open = {bare: thread}
        self._style[bare] = "listed"
        return True

    def _new(self, number: int, key: _Writer) -> Capture:
        capture = Capture(number, tag=key[0], stream=key[1])
        self.captures.append(capture)
        self._capture[key] = capture
        self._open[key] = None
        return capture

    @property
    def waiting(self) -> bool:
        """Whether a stack is open, so that the next line may belong to it."""
        return bool(self._open) and any(thread is not None for thread in self._open.values())

    def finish(self) -> None:
        self.captures = [capture for capture in self.captures if any(t.frames for t in capture.threads)]
        for thread in (thread for capture in self.captures for thread in capture.threads if thread.innermost_last):
            thread.frames.reverse()
            thread.innermost_last = False
        for capture in self.captures:
            if capture.by == "printed":
                _mark_loop(capture.threads)
            if capture.threads and not any(thread.main for thread in capture.threads):
                _mark_main(capture.threads)


def engine_rank(title: str) -> int | None:
    """The rank of an engine's process by its title, where the engine has one replica and one pipeline stage."""
    role = of_title(title.strip())
    if role is None or any(role.place(axis) for axis in ("DP", "PP")):
        return None
    return role.place("TP")


def _mark_loop(threads: list[Thread]) -> None:
    """The thread that runs the engine's loop is the one that counts."""
    for thread in threads:
        thread.main = any(_PRINTED_LOOP.match(frame.name) for frame in thread.frames)


def _mark_main(threads: list[Thread]) -> None:
    """faulthandler names no main thread: it is one that starts in a module, else the oldest, listed last."""
    outermost = [t for t in threads if t.frames and t.frames[-1].name == "<module>"]
    (outermost[-1] if outermost else threads[-1]).main = True


def _number(text: str | None) -> int | None:
    return integer(text) if is_number(text) else None
