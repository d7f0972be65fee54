"""Which lines of a file are evidence: those that a reader knows, and nothing else.

For a bundle that carries only evidence: not what may leave it is listed, but what may stay. A line that goes leaves an
empty one behind, so that line numbers stay true. The values of variables that stacks print beside their frames go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import IO

from hangscope.reader.dumps import dump_file
from hangscope.reader.find_files import looks_like_text
from hangscope.reader.logs import error_lines, framework_logs, kernel_log, launcher_logs, torch_logs
from hangscope.reader.logs.line_prefixes import split_line
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.sources import error_files, port_counters, ras_answers, rosters, sysfs
from hangscope.safeio import bounded_json, limits

LINE_BYTES = 8192
"""How much of a line is looked at, and kept."""

_WORDS = tuple(
    word.encode()
    for word in sorted(
        {
            *torch_logs.WORDS,
            *kernel_log.WORDS,
            *launcher_logs.WORDS,
            *error_lines.WORDS,
            *framework_logs.WORDS,
            *("CCL version", "NCCL INFO", "NCCL WARN", "Traceback (most recent", "(most recent call first)"),
            *("# hangscope stacks", "Error Snippet]:"),
        }
    )
)
"""What only lines of evidence say."""
_FRAME = re.compile(
    r'  File "[^"]*", line \d+|    \S.* \([^()]*(?::\d+|\.so[\d.]*)\)\s*$|#\d+ |frame #\d+|  \.\.\.$|'
    r"# hangscope stacks |"
    r"(?:Current t|T)hread \S+ .*(?:most recent call first|\([\w+]+\))|Process \d+: "
)
_CODE = re.compile(r"    \S")
_FAILURE = re.compile(
    r"\s*(?:time|host|rank|exitcode|error_file|traceback)\s*:\s|\[\d+\]:$|Root Cause|Other Failures|-{8,}$|={8,}$"
)
"""Lines of torchrun's table of failures."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|OutOfMemory\w*)\b")


class Lines:
    """Decides about the lines of one file, in order."""

    def __init__(self, cited: Collection[int] = ()) -> None:
        self._cited = frozenset(cited)
        self._inside: dict[tuple[int | None, str], str] = {}
        self._tags: set[int] = set()

    def keep(self, number: int, raw: bytes) -> bytes:
        """What is kept of a line: all of it, its writer's tag, or nothing."""
        raw = raw[:LINE_BYTES]
        if number in self._cited or any(word in raw for word in _WORDS):
            for line in split_line(number, raw.decode("utf-8", "replace")):
                self._open(line)
            return raw
        kept = b""
        for line in split_line(number, raw.decode("utf-8", "replace")):
            if self._goes_on(line):
                kept = raw
            elif not kept and line.tag is not None and line.tag not in self._tags:
                kept = b"[rank%d]: " % line.tag  # that this rank wrote here is evidence too
            if line.tag is not None:
                self._tags.add(line.tag)
        return kept

    def _open(self, line: Line) -> None:
        key = (line.tag, line.stream)
        if "Traceback (most recent" in line.text:
            self._inside[key] = "traceback"
        elif "Root Cause" in line.text or "FAILED" in line.text or "Failures:" in line.text:
            self._inside[key] = "table"
        elif self._inside.get(key) == "traceback" and line.text[:1] not in (" ", ""):
            del self._inside[key]

    def _goes_on(self, line: Line) -> bool:
        """Whether a line belongs to a stack, to the traceback that its writer is in, or to a table of failures."""
        key = (line.tag, line.stream)
        text = line.text
        if _FRAME.match(text):
            return True
        inside = self._inside.get(key)
        if inside == "table":
            return _FAILURE.match(text) is not None
        if inside != "traceback":
            return False
        if not text.strip() or text.startswith(("  File", "    ", "  [Previous", "  |", "  +")):
            return _CODE.match(text) is not None or text.startswith("  ")
        del self._inside[key]
        return _EXCEPTION.match(text) is not None


def keep_evidence(source: IO[bytes], out: IO[bytes], cited: Collection[int] = (), name: str = "") -> bool:
    """Write what is evidence of a file that is no dump; False, and nothing, where no reader knows the file. Its
    name says what a file of a copied /sys tree is."""
    head = source.read(limits.HEAD_BYTES)
    source.seek(0)
    if sysfs.place_of(tuple(name.split("/"))) is not None and len(head) <= sysfs.MAX_BYTES:
        return _copy(source, out)
    if ras_answers.recognise(head) or dump_file.recognise(head):
        return _copy(source, out)
    if head.lstrip()[:1] in (b"{", b"[") and bounded_json.may_be_json(head):
        known = _known_json(source)
        source.seek(0)
        if known is not None:
            return _copy(source, out) if known else False
    if not looks_like_text(head):
        return False
    lines = Lines(cited)
    number = 0
    some = False
    while raw := source.readline(1 << 20):
        number += 1
        kept = lines.keep(number, raw.rstrip(b"\r\n"))
        some = some or bool(kept)
        while raw and not raw.endswith(b"\n"):  # the rest of an endless line
            raw = source.readline(1 << 20)
        out.write(kept + b"\n")
    return some


def _copy(source: IO[bytes], out: IO[bytes]) -> bool:
    while chunk := source.read(1 << 20):
        out.write(chunk)
    return True


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
    if isinstance(value, Mapping) and (
        str(value.get("schema", "")).startswith("hangscope.")
        or port_counters.is_snapshot(value)
        or error_files.is_error_file(value)
    ):
        return True
    return rosters.is_roster(value)
