"""Lines by which trainers and servers show that they go on, or came to their end: steps, epochs, throughput.

A line counts as a step where it has a counter (``step 12``, ``iteration 5/100``, ``epoch: 0.4``, a progress bar) and
a value that only training prints beside it (a loss, a rate, a time). A server counts by its throughput, or where it
has nothing to do. Only the two ends of a log are looked at: they show whether it moved, and whether it still did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from hangscope.model.numbers import Unreadable, decimal, integer

_NUMBER = r"(\d{1,12}(?:\.\d{1,18})?)"
_COUNTER = re.compile(
    r"(?:\b(?P<name>global_?step|train_?step|iteration|iter|steps?|batch|epochs?|idx)\b['\"\]]?\s{0,3}[:=#\[ ]?\s{0,9}"
    rf"|\bit=){_NUMBER}",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"loss|\blr\b|learning[_ ]rate|grad[_ ]?norm|\btps\b|\bmfu\b|it/s|s/it|tokens?/s|samples?[/_]|throughput"
    r"|elapsed|batch[_ ]?size|step_time|timing_s|ms/|accuracy|\bacc\b|perplexity|\bppl\b|reward",
    re.IGNORECASE,
)
_BAR = re.compile(r"(\d{1,3})%\|[^|]{0,200}\| {0,3}(\d{1,12})/(\d{1,12}) \[")
_RATE = re.compile(
    r"(?:Avg generation throughput:|gen throughput \(token/s\):|output throughput[^:]{0,20}:) {0,3}" + _NUMBER,
    re.IGNORECASE,
)
_PROMPT_RATE = re.compile(r"(?:Avg prompt throughput:|input throughput \(token/s\):) {0,3}" + _NUMBER, re.IGNORECASE)
_REQUESTS = re.compile(r"(?:Running: {0,3}|#running-req: {0,3})(\d{1,9})", re.IGNORECASE)
_ANSWERED = re.compile(r'"(?:POST|GET) /\S{0,200} HTTP/[\d.]+" 200\b')
_ASKED_WHETHER_ALIVE = re.compile(
    r'"GET /(?:health\w*|metrics|ping|ready\w*|live\w*|version|v1/models|get_(?:model|server)_info|is_sleeping)\b'
)
"""Answered by the API's process, also where no worker moves (vllm#36451, sglang#6624)."""
_READY = re.compile(r"Application startup complete|The server is fired up and ready to roll|Uvicorn running on http")
_FINISHED = re.compile(
    r"\btraining (?:is )?(?:finished|complete[d]?|done|ended)\b|\bfinished training\b|\bdone training\b"
    r"|train_runtime|\*{3,} train metrics \*{3,}|`?Trainer\.fit`? stopped: `?max_(?:epochs|steps)=\d+`? reached"
    r"|Out of bounds values : 0 OK|Training completed\.",
    re.IGNORECASE,
)


_WORDS = (
    *("train", "out of bounds", "%|", "throughput", "startup", "fired up", "uvicorn", "http/"),
    *("step", "iter", "batch", "epoch", "idx", "it="),
)
"""What a line has to hold, in small letters, for one of the patterns above to match: most lines hold none of them."""
_LEAST_STALLED = 2
_BAR_NAME = "progress bar"
_EPOCHS = frozenset(("epoch", "epochs"))


class Shows(Enum):
    """What a line shows."""

    STEP = "a step"
    SERVING = "a server at work"
    IDLE = "a server with nothing to do"
    READY = "a server that came up"
    STALLED = "a server with requests and no output"
    FINISHED = "an end as planned"


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """One such line. `counter` is how far it says it is; `counters` all that it counts, by name."""

    number: int
    shows: Shows
    text: str
    counter: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)


def progress_lines(rows: Iterable[tuple[int, str]]) -> list[ProgressLine]:
    """The lines of progress among some, in their order."""
    found = []
    for number, raw in rows:
        # a progress bar draws over itself: what it showed last counts
        try:
            line = _read(number, raw.rstrip("\r").rpartition("\r")[2])
        except Unreadable:
            continue
        if line is not None:
            found.append(line)
    return _with_what_rises(found)


def _with_what_rises(lines: list[ProgressLine]) -> list[ProgressLine]:
    """The lines, those that count several things (an epoch, a step of it, how many there are) by the one that rises."""
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.counters.items():
            values.setdefault(name, []).append(value)
    rising = [name for name, seen in values.items() if seen[-1] > min(seen)]
    if not rising and len(values) > 1:  # an epoch, and then a step, is no progress
        return [replace(line, counter=None) if line.counters.keys() <= _EPOCHS else line for line in lines]
    if not rising:
        return lines
    most = max(rising, key=lambda name: values[name][-1] - min(values[name]))
    return [replace(line, counter=line.counters.get(most)) if line.counters else line for line in lines]


def _read(number: int, text: str) -> ProgressLine | None:
    small = text.lower()
    if not any(word in small for word in _WORDS):
        return None
    if _FINISHED.search(text):
        return ProgressLine(number, Shows.FINISHED, text)
    if bar := _BAR.search(text):
        done = decimal(bar[2])
        return ProgressLine(number, Shows.STEP, text, done, {_BAR_NAME: done})
    if _RATE.search(text) or _PROMPT_RATE.search(text):
        return ProgressLine(number, _of_server(text), text)
    if _READY.search(text):
        return ProgressLine(number, Shows.READY, text)
    if _ANSWERED.search(text) and not _ASKED_WHETHER_ALIVE.search(text):
        return ProgressLine(number, Shows.SERVING, text)
    counters = {(match["name"] or "it").lower(): decimal(match[2]) for match in _COUNTER.finditer(text)}
    if counters and _VALUE.search(text):
        return ProgressLine(number, Shows.STEP, text, next(iter(counters.values())), counters)
    return None


def _of_server(text: str) -> Shows:
    rates = [decimal(match[1]) for match in (_RATE.search(text), _PROMPT_RATE.search(text)) if match]
    if any(rates):
        return Shows.SERVING
    requests = _REQUESTS.search(text)
    if requests is None:
        return Shows.SERVING
    return Shows.STALLED if integer(requests[1]) else Shows.IDLE


def moves(lines: Sequence[ProgressLine]) -> bool:
    """Whether they show that the job moved to the last of them: it finished, counted up, or answered."""
    if not lines or lines[-1].shows is Shows.STALLED:
        return False
    if any(line.shows is Shows.FINISHED for line in lines):
        return True
    counters = [line.counter for line in lines if line.counter is not None]
    if counters:
        return counters[-1] > min(counters)
    came_up = any(line.shows is Shows.READY for line in lines)
    return came_up or sum(line.shows in (Shows.SERVING, Shows.IDLE) for line in lines) > 1


def stalled(lines: Sequence[ProgressLine]) -> ProgressLine | None:
    """The last line, where at least the last two say that a server has requests and generates nothing."""
    if len(lines) < _LEAST_STALLED or any(line.shows is not Shows.STALLED for line in lines[-_LEAST_STALLED:]):
        return None
    return lines[-1]
