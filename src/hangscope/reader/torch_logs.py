"""PyTorch's own log lines, from 2.1 to 2.15: watchdog reports, dump signals, recorder hints, tracebacks, clean exits.

The lines of one report come apart: which operation timed out, how far the group had got, and where the operation was
called are three messages of one thread, with other threads' messages between them. They are put together here.

A rank is taken from ``[rank3]:`` in front of the line, else from the file. ``Rank 1`` inside ``[PG … Rank 1]`` counts
within that group and is a last resort, for the default group only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hangscope.model import Frame, Source
from hangscope.reader.lines import Clock, Line, Writers
from hangscope.reader.torch_words import FINGERPRINTS, called_as, op_name
from hangscope.reader.tracebacks import Traceback, Tracebacks

RECENT = 500
"""Reports of a file, newest first, that a further line may belong to."""

_HEAD = re.compile(
    r"\[?(?P<severity>[EWIF])"
    r"(?:(?P<date>\d{3,4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\.(?P<fraction>\d{1,9})(?: +\d+)?)? "
    r"(?P<file>[\w./-]+\.(?:cpp|hpp|h|cc|cu)):(?P<line>\d+)\] ?"
)
_GROUP = re.compile(
    r"\[PG (?:(?:ID \d+ PG )?GUID )?(?P<name>[^\s(\]]*) ?(?:\((?P<desc>.{0,200}?)\))? ?Rank (?P<rank>\d{1,6})\]"
)
_BARE_RANK = re.compile(r"\[Rank (\d{1,6})\]")
_WORK = re.compile(r"Work\w*\((?P<body>SeqNum=\d+.{0,300}?)\)(?= ran for| raised|[.,]|\s|$)")
_FIELD = re.compile(r"(\w+(?:\(ms\))?)=([^,]+)")
_RAN = re.compile(r"ran for (\d+) milliseconds")
_AT_WORK = re.compile(
    r"(?:Timeout at \w+ work: |detected by watchdog at work: |failure detected by watchdog at work sequence id: )"
    r"(?P<seq>-?\d+)"
)
_COUNTERS = re.compile(
    r"[Ll]ast enqueued (?:\w+ )?work: (?P<enqueued>-?\d+), last completed (?:\w+ )?work: (?P<completed>-?\d+)"
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
)
"""Every line that is looked at more closely holds one of these."""
_ANY = re.compile("|".join(map(re.escape, WORDS)))


@dataclass
class Draft:
    """A watchdog report while its lines come in. Ranks are settled when the whole input is known."""

    kind: str
    tag: int | None
    stream: str
    number: int
    at: Clock | int | None
    group_rank: int | None = None
    """`Rank` within the default group, or of unknown group: a last resort."""
    group_name: str | None = None
    group_desc: str | None = None
    seq: int | None = None
    operation: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    elapsed_ms: int | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    error: str | None = None
    frames: list[Frame] = field(default_factory=list)
    signalled_by: int | None = None
    wants_stack: bool = False
    last_error: str | None = None
    """NCCL's own warning that PyTorch quotes under ``Last error:``."""


@dataclass
class Note:
    """Something one line says about its writer: a clean exit, a recorder that is off, an error without a traceback."""

    tag: int | None
    stream: str
    number: int
    text: str = ""
    at: Clock | int | None = None


class TorchLog:
    """Reads one file's lines. `reports`, `tracebacks`… are complete after `finish`."""

    def __init__(self, file: str, writers: Writers) -> None:
        self.file = file
        self.writers = writers
        self.reports: list[Draft] = []
        self.tracebacks: list[Traceback] = []
        self.clean_exits: list[Note] = []
        self.recorder_off: list[Note] = []
        self.out_of_memory: list[Note] = []
        self.fatal_errors: list[Note] = []
        self.wrong_sizes: list[Note] = []
        """Gloo got more bytes than the call asked for, and ended the process."""
        self.torch_versions: set[str] = set()
        self.nccl_version: str | None = None
        self._tracebacks = Tracebacks()
        self._stacks: dict[str, tuple[int | None, list[Frame]]] = {}
        """Prefix → (tag of the line that announced a stack, its frames so far)."""
        self._errors: dict[str, Draft] = {}
        self._error_lines: dict[str, int] = {}

    def source(self, number: int) -> Source:
        return Source(self.file, f"line {number}")

    def feed(self, line: Line) -> None:
        in_traceback = self._tracebacks.feed(line)
        text = line.text
        if text.startswith("#") and line.stream in self._stacks and self._stack_line(line):
            return
        if line.stream in self._errors and self._error_line(line):
            return
        if _ANY.search(text) is None:
            return
        head = _HEAD.search(text)
        at: Clock | int | None = line.at_ns
        if head is not None:
            at = _clock(head) or at
            self._fingerprint(int(head["line"]), text)
        self._message(line, text[head.end() :] if head else text, at, in_traceback)

    def _message(self, line: Line, text: str, at: Clock | int | None, in_traceback: bool) -> None:
        echo = text is line.text or "terminated with exception" in text
        if "Watchdog caught collective operation timeout" in text:
            self._caught(line, text, at, "timeout", echo=echo)
        elif _ASYNC in text:
            self._caught(line, text, at, "async_error", echo=echo)
        elif _AT_WORK.search(text) and _COUNTERS.search(text):
            self._detected(line, text, at)
        elif match := _SIGNAL.search(text):
            draft = self._new(line, "status", text, at)
            self._count(draft, text)
            who = match["who"].split()
            draft.signalled_by = int(who[1]) if who[0] == "rank" else None
        elif "Stack trace of the failed collective not found" in text:
            self.recorder_off.append(Note(line.tag, line.stream, line.number, at=at))
            self._give_stack(line, [])
        elif "Stack trace of the failed collective" in text:
            self._stacks[line.stream] = (line.tag, [])
        elif "Could not acquire GIL within" in text:
            self._new(line, "gil", text, at).error = text.strip()
        elif match := _STUCK.search(text):
            draft = self._new(line, "watchdog_stuck", text, at)
            draft.elapsed_ms = int(match[1]) * 1000
            draft.error = text.strip()
        elif match := _NCCL2.search(text):
            self._nccl2(line, match, at)
        elif match := _THREAD_ENDED.search(text):
            self._thread_ended(line, text, match["why"], at)
        elif "destroy_process_group() was not called before program exit" in text:
            self.clean_exits.append(Note(line.tag, line.stream, line.number, at=at))
        elif _DESYNC.search(text):
            self._new(line, "desync", text, at).error = text.strip()
        elif _OOM.search(text) and not in_traceback:
            self.out_of_memory.append(Note(line.tag, line.stream, line.number, text.strip(), at))
        elif match := _FATAL_PYTHON.match(text):
            self.fatal_errors.append(Note(line.tag, line.stream, line.number, match["why"], at))
        elif (match := _GLOO_SIZE.search(text)) and not in_traceback:
            why = f"a peer sent {match['got']} bytes where {match['expected']} were expected"
            self.wrong_sizes.append(Note(line.tag, line.stream, line.number, why, at))

    # ---- one report from several lines ----

    def _new(self, line: Line, kind: str, text: str, at: Clock | int | None) -> Draft:
        draft = Draft(kind, line.tag, line.stream, line.number, at)
        _put_group(draft, text)
        self.reports.append(draft)
        return draft

    def _same_writer(self, line: Line, text: str) -> list[Draft]:
        bare = _last_resort_rank(text)
        return [
            draft
            for draft in self.reports[-RECENT:]
            if draft.stream == line.stream
            and (line.tag is None or draft.tag is None or draft.tag == line.tag)
            and (
                line.tag is not None
                or draft.tag is not None
                or None in (bare, draft.group_rank)
                or bare == draft.group_rank
            )
        ]

    def _caught(self, line: Line, text: str, at: Clock | int | None, kind: str, *, echo: bool) -> None:
        """An operation that failed. An echo quotes it once more: the thread's or the process's last words."""
        work = _WORK.search(text)
        fields = dict(_FIELD.findall(work["body"])) if work else {}
        seq, operation = _int(fields.get("SeqNum")), op_name(fields.get("OpType"))
        ran = _RAN.search(text)
        elapsed = int(ran[1]) if ran else None
        for draft in self._same_writer(line, text):
            if draft.seq != seq or draft.kind not in {kind, "status"}:
                continue
            if echo and draft.operation == operation:
                return
            if draft.operation is None and draft.kind == "status" and draft.wants_stack:
                break
        else:
            draft = self._new(line, kind, text, at)
        draft.kind, draft.seq, draft.operation, draft.elapsed_ms = kind, seq, operation, elapsed
        draft.numel_in, draft.numel_out = _int(fields.get("NumelIn")), _int(fields.get("NumelOut"))
        draft.timeout_ms = _int(fields.get("Timeout(ms)"))
        if kind == "async_error":
            draft.error = text.split(_ASYNC, 1)[1].strip()
            self._open_error(line.stream, draft)

    def _detected(self, line: Line, text: str, at: Clock | int | None) -> None:
        match = _AT_WORK.search(text)
        seq = int(match["seq"]) if match else None
        group = _GROUP.search(text)
        name = group["name"] if group else None
        for draft in reversed(self._same_writer(line, text)):
            fits = draft.seq == seq and draft.kind in {"timeout", "async_error"} and draft.last_enqueued is None
            if fits and draft.group_name in {None, name}:
                break
        else:
            draft = self._new(line, "status", text, at)
            draft.seq = seq
        _put_group(draft, text)
        draft.wants_stack = True
        self._count(draft, text)

    def _count(self, draft: Draft, text: str) -> None:
        if match := _COUNTERS.search(text):
            draft.last_enqueued, draft.last_completed = int(match["enqueued"]), int(match["completed"])

    def _thread_ended(self, line: Line, text: str, why: str, at: Clock | int | None) -> None:
        """The watchdog's last words: new only where nothing was said before (≤2.4 has no line for an async error)."""
        if "CUDA error" in why or "HIP error" in why:
            kind = "cuda_error"
        elif "NCCL error" in why:
            kind = "async_error"
        else:
            return
        known = [d for d in self._same_writer(line, text) if d.kind == kind and (kind == "cuda_error" or d.error)]
        if known:
            return
        draft = self._new(line, kind, text, at)
        draft.error = why.strip()
        self._open_error(line.stream, draft)

    def _nccl2(self, line: Line, match: re.Match[str], at: Clock | int | None) -> None:
        if at is None and (head := _HEAD.search(line.text)):
            at = _clock(head)
        abort = _NCCL2_ABORT.search(match["text"])
        if abort is None:
            return
        kind = "timeout" if abort["kind"] == "timeout" else "async_error"
        draft = self._new(line, kind, "", at)
        draft.group_rank, draft.group_name = int(match["rank"]), match["name"] or None
        draft.error = abort["why"].strip()

    # ---- blocks of several lines ----

    def _stack_line(self, line: Line) -> bool:
        match = _STACK_FRAME.match(line.text)
        if match is None:
            return False
        tag, frames = self._stacks[line.stream]
        if int(match["index"]) != len(frames):
            return False
        frames.append(Frame(match["name"], match["file"], int(match["line"])))
        if len(frames) == 1:
            self._give_stack(line._replace(tag=tag), frames)
        return True

    def _give_stack(self, line: Line, frames: list[Frame]) -> None:
        """Give a stack to its report: the oldest that waits for one, by preference of the same operation.

        The list is the one that further frames are put into.
        """
        waiting = [d for d in self._same_writer(line, "") if d.wants_stack]
        if waiting:
            called = frames[0].name if frames else ""
            owner = next((d for d in waiting if called and called_as(d.operation, called)), waiting[0])
            owner.wants_stack = False
            owner.frames = frames

    def _open_error(self, stream: str, draft: Draft) -> None:
        self._errors[stream] = draft
        self._error_lines[stream] = 0

    def _error_line(self, line: Line) -> bool:
        """NCCL's explanation under an async error, up to the C++ stack."""
        draft = self._errors[line.stream]
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
        if draft.last_error == "":
            draft.last_error = text
        elif text == "Last error:":
            draft.last_error = ""
        draft.error = f"{draft.error}\n{text}"
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

    def finish(self) -> None:
        self.tracebacks = self._tracebacks.finish()
        for draft in self.reports:
            if draft.error and (match := _NCCL_VERSION.search(draft.error)):
                self.nccl_version = match[1]

    def __bool__(self) -> bool:
        return bool(
            self.reports
            or self.tracebacks
            or self.clean_exits
            or self.recorder_off
            or self.out_of_memory
            or self.fatal_errors
            or self.wrong_sizes
        )


def _clock(head: re.Match[str]) -> Clock | None:
    if head["date"] is None:
        return None
    month, day = divmod(int(head["date"]), 100)
    seconds = int(head["h"]) * 3600 + int(head["m"]) * 60 + int(head["s"])
    return Clock(month, day, seconds * 1_000_000_000 + int(head["fraction"].ljust(9, "0")))


def _put_group(draft: Draft, text: str) -> None:
    if group := _GROUP.search(text):
        draft.group_name = group["name"]
        desc = group["desc"]
        draft.group_desc = desc if desc and desc != "undefined" else draft.group_desc
    rank = _last_resort_rank(text)
    draft.group_rank = rank if rank is not None else draft.group_rank


def _last_resort_rank(text: str) -> int | None:
    if group := _GROUP.search(text):
        return int(group["rank"]) if group["desc"] == "default_pg" or group["name"] == "0" else None
    bare = _BARE_RANK.search(text)
    return int(bare[1]) if bare else None


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
