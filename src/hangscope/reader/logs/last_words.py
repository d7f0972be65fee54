"""What a program printed last in words that no reader knows, its own: where it speaks of trouble, or else the last.

``callback MetricSync failed: KeyError(60)`` says nothing that a rule could use, and people would look there first; so
does ``quota exceeded, stopping`` where a rank ended and nothing else says why.
"""

from __future__ import annotations

import re
from collections import deque

from hangscope.model.values import rank_number
from hangscope.reader.logs.log_lines import Line

LAST_LINES = 40
"""Of what the program printed, what launchers and PyTorch print at its end not counted."""
_MOST = 8
_LONGEST = 300
_TROUBLE = re.compile(
    r"\b(?:fail(?:ed|ure|s|ing)?|errors?|exception|abort(?:ed|ing)?|giv(?:es?|ing) up|gave up|skipp(?:ed|ing)"
    r"|corrupt\w*|timed out|could not)\b|\b\w{1,60}(?:Error|Exception)\b",
    re.IGNORECASE,
)
_NOT_THE_PROGRAMS = re.compile(
    # glog's and torchrun's head, torchrun's table, tracebacks, C++'s terminate, launchers, NCCL, us
    r"^\[?[WEIF]\d{4} |^\[rank\d+\]:\[[WEIF]|^\[[WEIF]\d{3,4} |^\s*(?:Traceback |File \"|\^+|~+|raise |\[\d+\]:)"
    r"|^\s*(?:rank|time|host|exitcode|error_file|traceback)\s*: |^[-=]{8,}|^terminate called|^\s*what\(\): "
    r"|^(?:srun|slurmstepd|mpirun|hangscope):|\bNCCL (?:WARN|INFO)\b|^\S{0,200} ?\bFAILED$"
    r"|^Root Cause|^Failures:|^<NO_OTHER_FAILURES>"
    # C++'s own stacks and messages, as PyTorch prints them
    r"|^\s*(?:frame )?#\d|^Exception raised from|^Last error:|\bnccl\w{2,40}Error\b|\bc10d?::|\.cpp:\d"
    r"|^Fatal Python error|torch/distributed/elastic|ChildFailedError|SignalException|\[hangscope\]"
)


class LastWords:
    """Collects them while a file is read."""

    __slots__ = ("_found", "_newest", "lines")

    def __init__(self) -> None:
        self.lines = 0
        """What the program printed, as far as it was read."""
        self._found: deque[tuple[int, Line]] = deque(maxlen=_MOST)
        self._newest: deque[Line] = deque(maxlen=LAST_LINES)

    def plain(self, line: Line) -> None:
        """Take one that can hold no trouble."""
        self.lines += 1
        self._newest.append(line)

    def feed(self, line: Line, *, known: bool, plain: bool) -> None:
        """Take one line; `known` if a reader made something of it, `plain` if it can hold no trouble."""
        if known or (not plain and _NOT_THE_PROGRAMS.search(line.text[:_LONGEST])):
            return
        self.lines += 1
        self._newest.append(line)
        if not plain and _TROUBLE.search(line.text[:_LONGEST]) is not None:
            self._found.append((self.lines, line))

    @property
    def found(self) -> list[Line]:
        """Those among the last lines."""
        return [line for at, line in self._found if at > self.lines - LAST_LINES]

    def let_go(self) -> None:
        """Keep the one line that counts: a large job has a hundred thousand logs."""
        newest = self.newest
        self._newest = deque([newest] if newest is not None else ())

    @property
    def newest(self) -> Line | None:
        """The last of the program's own lines, whatever it says."""
        return next((line for line in reversed(self._newest) if _is_the_programs(line.text)), None)


_LOST = re.compile(r"\bconnection (?:closed|reset|refused|lost)\b|\bbroken pipe\b|\bNCCL\b|\bgloo\b", re.IGNORECASE)
"""What libraries say of a peer that is gone follows from an end, and is no reason of one."""


def _is_the_programs(text: str) -> bool:
    line = text[:_LONGEST]
    return any(map(str.isalpha, line)) and not (_NOT_THE_PROGRAMS.search(line) or _LOST.search(line))


_RANK = re.compile(r"\brank[ =:#]{0,2}(\d{1,7})\b", re.IGNORECASE)


def named_rank(text: str) -> int | None:
    """The rank that a line speaks of: programs often put their own in front."""
    match = _RANK.search(text[:_LONGEST])
    return rank_number(match[1]) if match is not None else None


def quoted(text: str) -> str:
    """The line as a sentence quotes it."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
