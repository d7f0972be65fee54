"""Our own words in a job's log: the verdict that `hangscope run` printed when it happened, and that it ended the job.

A log outlives the incident that it tells of. What was diagnosed then, with all evidence at hand, is better than what
the log alone shows: there are the ends of ranks that `--on-hang kill` ended.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hangscope.model import PrintedVerdict, Source
from hangscope.model.numbers import integer, is_number
from hangscope.reader.logs.log_lines import Line
from hangscope.verdict_words import KIND_OF_WORD, OUTCOME_OF_WORD, Outcome

OURS = "hangscope:"
_WATCHING = re.compile(r"hangscope: watching \d+ of \d+ ranks here, (?P<world>\d{1,5}) in the job")
_BEGINS = re.compile(r"hangscope: the verdict on (?P<incident>.{1,4096}):$")
_FIRST_WORDS = "|".join(map(re.escape, OUTCOME_OF_WORD))
_HEAD = re.compile(
    rf"hangscope: (?P<outcome>{_FIRST_WORDS}) {{1,6}}(?P<text>\S.*?)"
    r"(?: {2,}(?P<beside>confidence: (?P<sure>\w+)))?$"
)
_MORE = re.compile(r"hangscope:  {5,8}(?P<text>\S.*)$")
_BELOW = re.compile(
    r"(?:node|local rank|rank \d+: node|pid|GPU)\b|at \S{1,300}:\d+ in |\S.{0,100} of .{1,100} \(\d+ ranks?\b"
)
_NODE = re.compile(r"node (?P<node>[^\s,]{1,253})(?:,|$)")
_LEGEND = re.compile(rf"hangscope:  {{5,}}X (?P<kind>{'|'.join(map(re.escape, KIND_OF_WORD))})\b")
_RANKS = re.compile(r"ranks? (?P<ranks>\d{1,6}(?:[-, ]+\d{1,6}){0,64})\b")
_EXIT = re.compile(r"hangscope: the command ended with status -?\d+ because of the hang: exit status \d+$")
_LAST_LINE = re.compile(
    rf"hangscope: the (?P<outcome>{'|'.join(Outcome)}) \((?P<kind>[a-z]{{1,20}})\): (?P<text>\S.{{0,2000}}?)"
    r"(?:; node (?P<node>[^\s;]{1,253}))?; confidence: (?P<sure>\w+)$"
)
_SINCE = re.compile(r"since #\d{1,19} (?:or earlier )?")
_AWAITED = re.compile(rf"(?:{_RANKS.pattern.replace('?P<ranks>', '?:')}|the others) waits? for (?=ranks? \d)")
_WITH_IT = re.compile(rf"nodes? .{{1,200}}, and {_RANKS.pattern} with (?:it|them)$")
_ENDED = re.compile(r"hangscope: --on-hang kill: .{1,400} gets? SIGTERM")
_WENT_ON = re.compile(r"hangscope: (?:the job (?:resumed|goes on) after \d+ s: )?PAUSE, not a hang")
_MOST_RANKS = 64
_MOST_TEXT = 300


class PrintedVerdicts:
    """Reads the lines of one file that are ours."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[PrintedVerdict] = []
        self.ended_at: int | None = None
        """The line from which on we ended the job."""
        self.world_size: int | None = None
        """As many ranks the job has, where we said so when they had come."""
        self._incident = ""
        self._exit_line = -1
        self._in_headline = False
        self._below_headline = False
        self._room: int | None = None
        """How wide a line of the headline may be, where its first one shows that."""
        self._last = ""

    def feed(self, line: Line) -> None:
        text = line.text.rstrip()
        if match := _BEGINS.match(text):
            self._incident = match["incident"][:_MOST_TEXT]
        elif (match := _HEAD.match(text)) and self._incident:
            self._begin(line, match)
        elif self._in_headline and (match := _MORE.match(text)) and self._is_rest(match["text"]):
            self._go_on(match["text"])
        else:
            self._in_headline = False
            self._read_node(text)
            self._feed_other(line, text)

    def _feed_other(self, line: Line, text: str) -> None:
        """A line of ours that is neither a headline nor part of one."""
        if self.found and (match := _LEGEND.match(text)):
            self.found[-1] = replace(self.found[-1], kind=str(KIND_OF_WORD[match["kind"]]))
        elif match := _WATCHING.match(text):
            self.world_size = integer(match["world"])
        elif _WENT_ON.match(text):
            self.found.clear()
        elif _ENDED.match(text):
            self.ended_at = self.ended_at or line.number
        elif not self.found and self._exit_line == line.number - 1 and (match := _LAST_LINE.match(text)):
            self._in_a_line(line, match)
        elif _EXIT.match(text):
            self._exit_line = line.number

    def _begin(self, line: Line, match: re.Match[str]) -> None:
        source = Source(self.file, f"line {line.number}")
        headline = match["text"][:_MOST_TEXT]
        verdict = PrintedVerdict(
            str(OUTCOME_OF_WORD[match["outcome"]]),
            headline,
            _ranks(headline),
            match["sure"] not in ("high", "medium"),
            source,
            self._incident,
        )
        self.found[:] = [verdict]  # the last one is what counts
        self._incident = ""
        self._in_headline = True
        self._below_headline = True
        self._last = match["text"]
        self._room = match.start("beside") - 2 - match.start("text") if match["beside"] else None

    def _is_rest(self, text: str) -> bool:
        """Whether a line below the headline is more of it: its first word had no room in the line before."""
        if self._room is not None and (len(text) > self._room or self._has_room_for(text.split(" ", 1)[0])):
            return False
        return _BELOW.match(text) is None

    def _has_room_for(self, word: str) -> bool:
        return self._room is not None and len(self._last) + 1 + len(word) <= self._room

    def _in_a_line(self, line: Line, match: re.Match[str]) -> None:
        """The verdict once more, at the end of a log of which nothing else may be left."""
        headline = match["text"][:_MOST_TEXT]
        sure = match["sure"] not in ("high", "medium")
        source = Source(self.file, f"line {line.number}")
        self.found.append(
            PrintedVerdict(match["outcome"], headline, _ranks(headline), sure, source, "", match["kind"], match["node"])
        )

    def _read_node(self, text: str) -> None:
        """The first of the lines below a headline that names a node."""
        line = _MORE.match(text) if self._below_headline else None
        self._below_headline = line is not None
        if line is not None and (match := _NODE.match(line["text"])):
            self.found[-1] = replace(self.found[-1], node=match["node"])
            self._below_headline = False

    def _go_on(self, text: str) -> None:
        self._last = text
        whole = f"{self.found[-1].headline} {text}"[:_MOST_TEXT]
        self.found[-1] = replace(self.found[-1], headline=whole, ranks=_ranks(whole))


def _ranks(headline: str) -> tuple[int, ...]:
    """The ranks that a headline accuses: those with which it begins, behind its "since #41" or "ranks 0-1 wait for", or
    that were lost with a node; none where it is another."""
    lead = _SINCE.match(headline) or _AWAITED.match(headline)
    match = _RANKS.match(headline, lead.end() if lead else 0) or _WITH_IT.match(headline)
    found: list[int] = []
    for part in match["ranks"].split(",") if match is not None else ():
        first, _, last = part.strip().partition("-")
        if is_number(first) and (not last or is_number(last)):
            found.extend(range(integer(first), min(integer(last or first), integer(first) + _MOST_RANKS) + 1))
    return tuple(found[:_MOST_RANKS])
