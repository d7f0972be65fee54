"""What stands in front of a line: taken off, and kept as the name of the writer.

Several ranks may share one file. Lines of one writer carry the same prefix, so blocks of several lines are put together
per prefix. PyTorch's own ``[rank3]:`` is the one prefix that names a global rank; numbers of mpirun, srun, Horovod and
vLLM and torchrun's local ranks are kept, and used only where nothing contradicts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from hangscope.model.numbers import integer
from hangscope.model.times import ISO
from hangscope.reader.logs.log_lines import Line

MOST_PREFIXES = 6
"""Prefixes that one line may have, one behind the other."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)")
# colours whose escape character was lost on the way through a browser
_COLOUR = re.compile(r"\[(?:0|[1-9]\d?(?:;\d{1,3}){0,4})m")
_TIME = re.compile(ISO.pattern + r"\s(?:std(?:out|err) [FP] )?")
# determined.ai and SGLang put the time in brackets, the latter with its own ranks behind it
_BRACKET_TIME = re.compile(r"\[" + ISO.pattern + r"(?: (?P<ranks>(?:[A-Z]{2}\d+ ?)+))?\]\s?(?=\S|$)")
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
# journald's short form; the kernel's and the schedulers' own lines are read with their host
_JOURNAL = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?(?P<host>[\w.-]{1,80}) (?!slurm|kernel|systemd|nvidia|munge)"
    r"[\w./@:-]{1,80}\[\d{1,9}\]: ?"
)
_TRTLLM = re.compile(r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT-LLM\](?: \[RANK (?P<rank>\d{1,6})\])? \[[A-Z]\] ")
_PDSH = re.compile(r"(?!rank|E[A-Z]\d{4}:)([A-Za-z][A-Za-z-]*[\w.-]*\d[\w.-]*): ")
_TEE = re.compile(r"\[(?!rank)([a-zA-Z_]\w*?)(\d+)\]:\s?")
_TAG = re.compile(r"\[rank:? ?(\d{1,6})\]:? ?|rank(\d{1,6}): (?=Traceback|  |\[)")
_GLUED = re.compile(r"(?<=\S)(?=\[rank\d{1,6}\]:\s?(?:\[[EWIF][\d ]|Traceback|\w+Error))")
_TAG_INSIDE = re.compile(r"(?<![A-Za-z_])\[?rank(\d{1,6})\]:\s?")


class _Prefixes:
    """What the prefixes of one line say, while they are taken off. The class has the values of a line without any."""

    stream = ""
    tag: int | None = None
    task: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    stamp = ""
    host = ""
    bare = False

    def take(self, text: str) -> int:
        """The length of the prefix that the text begins with; 0 where there is none."""
        first = text[0]
        if first == "[":
            return self._bracket(text)
        if first == "(":
            return self._ray(text)
        if first in " 0123456789":
            return self._number(text)
        return self._word(text)

    def _bracket(self, text: str) -> int:
        if match := _TAG.match(text):
            self.tag = integer(match[1] or match[2])
            return match.end()
        if match := _NUMBER.match(text):
            # mpirun's -prepend-rank; in front of a tag it is a viewer's line number, which names no one
            if _TAG.match(text, match.end()):
                return match.end()
            self.task = integer(match[1])
            self.bare = True
        elif match := _BRACKET_TIME.match(text):
            self.stamp = self.stamp or match[0]
            if match["ranks"]:
                self.stream = f"{self.stream} {match['ranks']}".strip()
            return match.end()
        elif match := _TRTLLM.match(text):
            self.tag = integer(match["rank"]) if match["rank"] else None
            return match.end()
        elif match := _MPI.match(text) or _HOROVOD.match(text):
            self.task = integer(match[1])
        elif match := _TEE.match(text):
            self.local_rank = integer(match[2])
        else:
            match = _POD.match(text)
        return self._named(match)

    def _named(self, match: re.Match[str] | None) -> int:
        """A prefix that is the same for all lines of its writer."""
        if match is None:
            return 0
        self.stream = f"{self.stream} {match[0]}".strip()
        return match.end()

    def _ray(self, text: str) -> int:
        match = _RAY.match(text)
        if match is not None:
            self.pid = integer(match[2])
            self.host = match[3] or self.host
            self.task = integer(match[1]) if match[1] else self.task
        return self._named(match)

    def _number(self, text: str) -> int:
        if match := _TIME.match(text):
            self.stamp = self.stamp or match[0]
            return match.end()
        match = _SRUN.match(text)
        if match is not None:
            self.task = integer(match[1])
            self.bare = True
        return self._named(match)

    def _word(self, text: str) -> int:
        if text[0] == "r" and (match := _TAG.match(text)):
            self.tag = integer(match[1] or match[2])
            return match.end()
        if text[0] in "EWIDC" and (match := _LOGGER.match(text)):
            return match.end()
        if match := _COMPOSE.match(text):
            return self._named(match)
        if "]: " in text[:200] and (match := _JOURNAL.match(text)):
            self.host = match["host"]
            return self._named(match)
        if ": " in text[:64] and (match := _PDSH.match(text)):
            self.host = match[1]
            return self._named(match)
        return 0


def split_prefix(number: int, raw: str) -> Line:
    """Take off everything that a launcher, a container runtime or PyTorch put in front of one line."""
    text = _without_colours(raw)
    if text.startswith('{"log":'):
        text = _docker(text)
    if text[:5] == "[rank" and (match := _TAG.match(text)):  # most lines of a job that tags them
        return Line(number, text[match.end() :], integer(match[1]))
    found = _Prefixes()
    for _ in range(MOST_PREFIXES):
        length = found.take(text) if text else 0
        text = text[length:]
        if not length or found.tag is not None:
            break
    if found.tag is None and "rank" in text and "]:" in text and (match := _TAG_INSIDE.search(text)):
        # a progress bar, a pod's name or a print without its newline shares the line
        found.tag = integer(match[1])
        text = text[match.end() :]
    writer = (found.tag, found.stream, found.task, found.local_rank, found.pid)
    return Line(number, text, *writer, found.stamp, found.bare, found.host)


def _without_colours(raw: str) -> str:
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    if ("[0m" in text or "[3" in text) and _COLOUR.search(text):
        return _COLOUR.sub("", text)
    return text


def split_line(number: int, raw: str) -> Iterator[Line]:
    """A raw line without its prefix. A carriage return (progress bars) ends a line too, but does not count as one, and
    so does the tag of another rank whose message was written into the same line."""
    parts = raw.split("\r") if "\r" in raw else [raw]
    for part in parts:
        if part.count("[rank") > 1:
            for piece in _GLUED.split(part):
                yield split_prefix(number, piece)
        elif part or len(parts) == 1:
            yield split_prefix(number, part)


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
