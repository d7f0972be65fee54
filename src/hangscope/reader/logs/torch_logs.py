"""PyTorch's own log lines, from 2.1 to 2.15: watchdog reports, dump signals, recorder hints, tracebacks, clean exits.

The lines of one report come apart: which operation timed out, how far the group had got, and where the operation was
called are three messages of one thread, with other threads' messages between them. They are put together here.

A rank is taken from ``[rank3]:`` in front of the line, else from the file. ``Rank 1`` inside ``[PG … Rank 1]`` counts
within that group: a last resort, for the default group only. ``[Rank 1] Watchdog caught`` names no group at all, and is
booked to none until the message behind it says which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from hangscope.model import UNKNOWN, Frame, Source, WatchdogReport
from hangscope.model.numbers import integer, is_number
from hangscope.model.times import Clock
from hangscope.reader.logs.line_writers import Writers
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.logs.torch_words import (
    FINGERPRINTS,
    GLOG_HEAD,
    PG_HEAD,
    called_as,
    default_rank,
    head_clock,
    is_default,
    op_name,
)
from hangscope.reader.logs.tracebacks import Traceback, Tracebacks

RECENT = 500
"""Reports of a file, newest first, that a further line may belong to."""

_LINE_RANK = re.compile(r"\[(?:PG [^\]]{0,240}?)?Rank (\d{1,6})\]")
_WORK = re.compile(r"Work\w*\((?P<body>(?:SeqNum=\d+|OpType=).{0,300}?)\)(?= ran for| raised|[.,]|\s|$)")
_CUT_WORK = re.compile(r"Work\w*\((?P<body>(?:SeqNum=\d+|OpType=).{0,300})$")
_FIELD = re.compile(r"(\w+(?:\(ms\))?)=([^,]+)")
_RAN = re.compile(r"ran for (\d+) (?:milliseconds|ms)")
_AT_WORK = re.compile(
    r"(?:Timeout at \w+ work: |detected by watchdog at work: |failure detected by watchdog at work sequence id: )"
    r"(?P<seq>-?\d+)"
)
_COUNTERS = re.compile(
    r"[Ll]ast enqueued (?:\w+ )?work: (?P<enqueued>-?\d+),(?: last started (?:\w+ )?work: -?\d+(?: \(\w+\))?,)? "
    r"last completed (?:\w+ )?work: (?P<completed>-?\d+)"
)
_SIGNAL = re.compile(
    r"Received a (?:global )?(?:dump|timeout)(?: signal)?\b.{0,60}?"
    r"\bfrom\s{1,3}(?P<who>this local rank|rank\s{1,3}\d{1,6}|another rank)"
)
_STACK_FRAME = re.compile(r"^#(?P<index>\d+) (?P<name>.+?) from (?P<file>.+):(?P<line>\d+)\s*$")
_STUCK = re.compile(r"watchdog got stuck for (\d+) seconds")
_NCCL2 = re.compile(r"\[TC\]\[rank=(?P<rank>\d{1,6})\](?:\[name=(?P<name>[^\]]*)\])?\s*(?P<text>.*)")
_NCCL2_ABORT = re.compile(r"Aborting process on rank \d+ due to (?P<kind>timeout|error) - (?P<why>.*)")
_THREAD_ENDED = re.compile(r"watchdog thread terminated with exception: (?P<why>.*)")
_ASYNC = "raised the following async exception:"
_DESYNC = re.compile(
    r"lagging/dead/mismatched ranks|joined but didn't finish collective|but didn't join collective"
    r"|lagging ranks that caused|never joined any collectives"
)
_OOM = re.compile(r"(?:CUDA|HIP|NPU|XPU) out of memory\. Tried to allocate")
_FATAL_PYTHON = re.compile(r"^Fatal Python error: (?P<why>.*)")
_GLOO_SIZE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<expected>\d+)")
_NCCL_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)*)")

WORDS = (
    "atchdog ",
    "operation timeout",
    "async exception",
    "failed collective",
    "ast enqueued",
    "GIL within",
    "dump signal",
    "timeout signal",
    "global timeout",
    "[TC]",
    "destroy_process_group()",
    "joined but didn't",
    "didn't join",
    "never joined",
    "lagging",
    "out of memory",
    "Fatal Python error",
    "First PG on this rank",
    "op.preamble.length",
    "preparing to dump",
)
"""Every line that is looked at more closely holds one of these."""
_ANY = re.compile("|".join(map(re.escape, WORDS)))


@dataclass
class LoggedReport:
    """A watchdog report, out of the lines about it. Its rank is UNKNOWN until the whole input is known."""

    report: WatchdogReport
    tag: int | None
    stream: str
    number: int
    at: Clock | int | None
    hint: int | None = None
    """The rank in the default group, or in a group that no line names: a last resort."""
    stack: list[Frame] = field(default_factory=list)
    wants_stack: bool = False
    last_error: str | None = None
    """NCCL's own warning that PyTorch quotes under ``Last error:``."""

    def put(self, **values: Any) -> None:
        self.report = replace(self.report, **values)

    def put_group(self, text: str) -> None:
        """Whatever the message says about its group and the rank in it."""
        if group := PG_HEAD.search(text):
            desc = group["desc"]
            desc = desc if desc and desc != "undefined" else self.report.group_desc
            self.put(group_name=group["name"], group_desc=desc)
        if number := _LINE_RANK.search(text):
            self.put(group_rank=integer(number[1]))
        named = self.report.group_name
        if named is not None and not is_default(named, self.report.group_desc):
            self.hint = None  # whatever number was read before counts within that group
        else:
            hint = default_rank(text)
            self.hint = hint if hint is not None else self.hint


@dataclass
class Note:
    """Something one line says about its writer: a clean exit, a recorder that is off, an error without a traceback."""

    tag: int | None
    stream: str
    number: int
    text: str = ""
    at: Clock | int | None = None
    hint: int | None = None
    """The rank that the line names in the default group."""


class TorchLog:
    """Reads one file's lines. `reports`, `tracebacks`… are complete after `finish`."""

    def __init__(self, file: str, writers: Writers) -> None:
        self.file = file
        self.writers = writers
        self.reports: list[LoggedReport] = []
        self.tracebacks: list[Traceback] = []
        self.chained_too_long = 0
        """Exceptions in the middle of chains that are too long to be kept whole."""
        self.clean_exits: list[Note] = []
        self.recorder_off: list[Note] = []
        self.out_of_memory: list[Note] = []
        self.fatal_errors: list[Note] = []
        self.wrong_sizes: list[Note] = []
        """Gloo got more bytes than the call asked for, and ended the process."""
        self.alive: list[Note] = []
        """Lines by which a process answered, whatever they say: it prepares to dump."""
        self.torch_versions: set[str] = set()
        self.nccl_version: str | None = None
        self._tracebacks = Tracebacks()
        self._stacks: dict[str, tuple[int | None, list[Frame]]] = {}
        """Prefix → (tag of the line that announced a stack, its frames so far)."""
        self._errors: dict[str, LoggedReport] = {}
        self._error_lines: dict[str, int] = {}

    def source(self, number: int) -> Source:
        return Source(self.file, f"line {number}")

    def feed(self, line: Line, *, failing: bool = True) -> bool:
        """Take one line; `failing` says whether it can be a message at all. True where it is part of a traceback."""
        in_traceback = self._tracebacks.feed(line)
        text = line.text
        if text.startswith("#") and line.stream in self._stacks and self._stack_line(line):
            return in_traceback
        if line.stream in self._errors and self._error_line(line):
            return in_traceback
        if not failing or _ANY.search(text) is None:
            return in_traceback
        head = GLOG_HEAD.search(text)
        at: Clock | int | None = line.at_ns
        if head is not None:
            at = head_clock(head) or at
            self._fingerprint(integer(head["line"]), text)
        self._message(line, text[head.end() :] if head else text, at, in_traceback)
        return in_traceback

    def _message(self, line: Line, text: str, at: Clock | int | None, in_traceback: bool) -> None:
        echo = text is line.text or "terminated with exception" in text
        if "caught collective operation timeout" in text:
            self._caught(line, text, at, "timeout", echo=echo)
        elif _ASYNC in text:
            self._caught(line, text, at, "async_error", echo=echo)
        elif _AT_WORK.search(text) and _COUNTERS.search(text):
            self._detected(line, text, at)
        elif match := _SIGNAL.search(text):
            logged = self._new(line, "status", text, at)
            _count(logged, text)
            who = match["who"].split()
            logged.put(signalled_by=integer(who[1]) if who[0] == "rank" else None, own_timeout=who[0] == "this")
        elif "Stack trace of the failed collective not found" in text:
            self.recorder_off.append(Note(line.tag, line.stream, line.number, at=at))
            self._give_stack(line, [])
        elif "Stack trace of the failed collective" in text:
            self._stacks[line.stream] = (line.tag, [])
        elif "Could not acquire GIL within" in text:
            self._new(line, "gil", text, at).put(error=text.strip())
        elif match := _STUCK.search(text):
            self._new(line, "watchdog_stuck", text, at).put(elapsed_ms=integer(match[1]) * 1000, error=text.strip())
        elif match := _NCCL2.search(text):
            self._nccl2(line, match, at)
        elif match := _THREAD_ENDED.search(text):
            self._thread_ended(line, text, match["why"], at)
        elif _DESYNC.search(text):
            self._new(line, "desync", text, at).put(error=text.strip())
        else:
            self._note(line, text, at, in_traceback)

    def _note(self, line: Line, text: str, at: Clock | int | None, in_traceback: bool) -> None:
        """What a line says about its writer alone."""
        if "destroy_process_group() was not called before program exit" in text:
            self.clean_exits.append(Note(line.tag, line.stream, line.number, at=at))
        elif "dump signal from another rank" in text:
            if not self._same_writer(line, text):
                self._new(line, "status", text, at)
        elif "preparing to dump" in text:
            self.alive.append(Note(line.tag, line.stream, line.number, at=at, hint=default_rank(text)))
            if not self._same_writer(line, text):  # else a report of its own shows that it lived
                self._new(line, "status", text, at)
        elif _OOM.search(text) and not in_traceback:
            self.out_of_memory.append(Note(line.tag, line.stream, line.number, text.strip(), at))
        elif match := _FATAL_PYTHON.match(text):
            self.fatal_errors.append(Note(line.tag, line.stream, line.number, match["why"], at))
        elif (match := _GLOO_SIZE.search(text)) and not in_traceback:
            why = f"expected {match['expected']} B, a peer sent {match['got']} B"
            self.wrong_sizes.append(Note(line.tag, line.stream, line.number, why, at))

    # ---- one report from several lines ----

    def _new(self, line: Line, kind: str, text: str, at: Clock | int | None) -> LoggedReport:
        report = WatchdogReport(UNKNOWN, kind, self.source(line.number))
        logged = LoggedReport(report, line.tag, line.stream, line.number, at)
        logged.put_group(text)
        self.reports.append(logged)
        return logged

    def _same_writer(self, line: Line, text: str) -> list[LoggedReport]:
        number = _LINE_RANK.search(text)
        mine = integer(number[1]) if number else None
        return [
            known
            for known in self.reports[-RECENT:]
            if known.stream == line.stream
            and (line.tag is None or known.tag is None or known.tag == line.tag)
            and (
                line.tag is not None
                or known.tag is not None
                or None in (mine, known.report.group_rank)
                or mine == known.report.group_rank
            )
        ]

    def _caught(self, line: Line, text: str, at: Clock | int | None, kind: str, *, echo: bool) -> None:
        """An operation that failed. An echo quotes it once more: the thread's or the process's last words."""
        work = _WORK.search(text) or _CUT_WORK.search(text)
        fields = dict(_FIELD.findall(work["body"])) if work else {}
        seq = _int(fields.get("SeqNum"))
        operation = op_name(fields.get("OpType"))
        ran = _RAN.search(text)
        for logged in self._same_writer(line, text):
            known = logged.report
            if known.seq != seq or known.kind not in {kind, "status"}:
                continue
            if echo and known.operation == operation:
                return
            if known.operation is None and known.kind == "status" and logged.wants_stack:
                break
        else:
            logged = self._new(line, kind, text, at)
        logged.put(
            kind=kind,
            seq=seq,
            operation=operation,
            elapsed_ms=integer(ran[1]) if ran else None,
            numel_in=_int(fields.get("NumelIn")),
            numel_out=_int(fields.get("NumelOut")),
            timeout_ms=_int(fields.get("Timeout(ms)")),
        )
        if kind == "async_error":
            logged.put(error=text.split(_ASYNC, 1)[1].strip())
            self._open_error(line.stream, logged)

    def _detected(self, line: Line, text: str, at: Clock | int | None) -> None:
        match = _AT_WORK.search(text)
        seq = integer(match["seq"]) if match else None
        group = PG_HEAD.search(text)
        name = group["name"] if group else None
        for logged in reversed(self._same_writer(line, text)):
            known = logged.report
            fits = known.seq == seq and known.kind in {"timeout", "async_error"} and known.last_enqueued is None
            if fits and known.group_name in {None, name}:
                break
        else:
            logged = self._new(line, "status", text, at)
            logged.put(seq=seq)
        logged.put_group(text)
        logged.wants_stack = True
        _count(logged, text)

    def _thread_ended(self, line: Line, text: str, why: str, at: Clock | int | None) -> None:
        """The watchdog's last words: new only where nothing was said before (≤2.4 has no line for an async error)."""
        if "CUDA error" in why or "HIP error" in why:
            kind = "cuda_error"
        elif "NCCL error" in why:
            kind = "async_error"
        else:
            return
        said = [logged.report for logged in self._same_writer(line, text) if logged.report.kind == kind]
        if any(kind == "cuda_error" or report.error for report in said):
            return
        logged = self._new(line, kind, text, at)
        logged.put(error=why.strip())
        self._open_error(line.stream, logged)

    def _nccl2(self, line: Line, match: re.Match[str], at: Clock | int | None) -> None:
        if at is None and (head := GLOG_HEAD.search(line.text)):
            at = head_clock(head)
        abort = _NCCL2_ABORT.search(match["text"])
        if abort is None:
            return
        kind = "timeout" if abort["kind"] == "timeout" else "async_error"
        logged = self._new(line, kind, "", at)
        logged.hint = integer(match["rank"])
        logged.put(group_rank=logged.hint, group_name=match["name"] or None, error=abort["why"].strip())

    # ---- blocks of several lines ----

    def _stack_line(self, line: Line) -> bool:
        match = _STACK_FRAME.match(line.text)
        if match is None:
            return False
        tag, frames = self._stacks[line.stream]
        if integer(match["index"]) != len(frames):
            return False
        frames.append(Frame(match["name"], match["file"], integer(match["line"])))
        if len(frames) == 1:
            self._give_stack(line._replace(tag=tag), frames)
        return True

    def _give_stack(self, line: Line, frames: list[Frame]) -> None:
        """Give a stack to its report: the oldest that waits for one, by preference of the same operation.

        The list is the one that further frames are put into.
        """
        waiting = [logged for logged in self._same_writer(line, "") if logged.wants_stack]
        if waiting:
            called = frames[0].name if frames else ""
            fitting = (logged for logged in waiting if called and called_as(logged.report.operation, called))
            owner = next(fitting, waiting[0])
            owner.wants_stack = False
            owner.stack = frames

    def _open_error(self, stream: str, logged: LoggedReport) -> None:
        self._errors[stream] = logged
        self._error_lines[stream] = 0

    def _error_line(self, line: Line) -> bool:
        """NCCL's explanation under an async error, up to the C++ stack."""
        logged = self._errors[line.stream]
        text = line.text.strip()
        self._error_lines[line.stream] += 1
        if (
            not text
            or line.tag is not None
            or self._error_lines[line.stream] > 8
            or text.startswith(("Exception raised", "frame #"))
        ):
            del self._errors[line.stream]
            return False
        if logged.last_error == "":
            logged.last_error = text
        elif text == "Last error:":
            logged.last_error = ""
        logged.put(error=f"{logged.report.error}\n{text}")
        return True

    def _fingerprint(self, number: int, text: str) -> None:
        key = None
        if "Watchdog caught" in text:
            key = "caught"
        elif "Stack trace of the failed collective not found" in text:
            key = "no stack"
        elif "Stack trace of the failed collective" in text:
            key = "stack"
        elif "First PG on this rank" in text:
            key = "first"
        if key and (version := FINGERPRINTS[key].get(number)):
            self.torch_versions.add(version)

    @property
    def waiting(self) -> bool:
        """Whether a message of several lines is open, so that the next line may belong to it."""
        return bool(self._errors) or self._tracebacks.waiting

    def finish(self) -> None:
        self.tracebacks = self._tracebacks.finish()
        self.chained_too_long = self._tracebacks.passed_over
        for logged in self.reports:
            logged.put(frames=tuple(logged.stack))
            if logged.report.error and (match := _NCCL_VERSION.search(logged.report.error)):
                self.nccl_version = match[1]

    def __bool__(self) -> bool:
        return bool(
            self.reports
            or self.alive
            or self.tracebacks
            or self.clean_exits
            or self.recorder_off
            or self.out_of_memory
            or self.fatal_errors
            or self.wrong_sizes
        )


def _count(logged: LoggedReport, text: str) -> None:
    if match := _COUNTERS.search(text):
        logged.put(last_enqueued=integer(match["enqueued"]), last_completed=integer(match["completed"]))


def _int(text: str | None) -> int | None:
    return integer(text) if is_number(text) else None
