"""What an engine's /metrics says about its requests: how many run, and counters that grow while anything moves.

Prometheus' text format, as vLLM and SGLang write it. An engine with data parallelism has one series a replica, with a
label; each is judged alone, because one that hangs hides behind the others' tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

MOST_SERIES = 20_000
_LINE = re.compile(r"([A-Za-z_:][\w:]{0,200})(?:\{(.{0,2000})\})?[ \t]+([^\s]{1,40})(?:[ \t]+-?\d{1,20})?[ \t\r]*")
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,200})"')
REPLICA_LABELS = ("engine", "engine_index", "dp_rank")


@dataclass(frozen=True, slots=True)
class Counters:
    """Names of metrics. Of each list those count that the server has."""

    running: Sequence[str] = ("vllm:num_requests_running", "sglang:num_running_reqs")
    waiting: Sequence[str] = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
    progress: Sequence[str] = (
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:iteration_tokens_total_count",
        "vllm:iteration_tokens_total_sum",
        "vllm:request_success_total",
        "sglang:generation_tokens_total",
        "sglang:prompt_tokens_total",
        "sglang:num_requests_total",
        "sglang:cached_tokens_total",
    )
    first_tokens: Sequence[str] = (
        "vllm:time_to_first_token_seconds_count",
        "sglang:time_to_first_token_seconds_count",
    )
    finished: Sequence[str] = ("vllm:request_success_total", "sglang:num_requests_total")


DEFAULTS = Counters()


@dataclass(slots=True)
class Replica:
    """One replica's numbers. `moves_by` are the counters that grow while it moves, by name."""

    running: float | None = None
    waiting: float = 0.0
    moves_by: dict[str, float] = field(default_factory=dict)
    first_tokens: float | None = None
    finished: float | None = None

    @property
    def prefills(self) -> bool:
        """Whether a request that runs, or waits while none runs, has had no token yet: a long prompt, or weights that
        are being loaded, move no counter for a while."""
        if not self.running and self.waiting:
            return True
        if self.running is None or self.first_tokens is None or self.finished is None:
            return False
        return self.running > self.first_tokens - self.finished


def replicas(text: str, counters: Counters = DEFAULTS) -> dict[str, Replica]:
    """By replica, "" where there is only one. Empty where none of the metrics is there."""
    found: dict[str, Replica] = {}
    names = _all(counters)
    for line in islice(_lines_of(text, names), MOST_SERIES):
        series = _series(line)
        if series is None:
            continue
        name, labels, value = series
        if name not in names:
            continue
        replica = found.setdefault("/".join(labels[each] for each in REPLICA_LABELS if each in labels), Replica())
        if name in counters.running:
            replica.running = (replica.running or 0.0) + value
        if name in counters.waiting:
            replica.waiting += value
        if name in counters.progress:
            replica.moves_by[name] = replica.moves_by.get(name, 0.0) + value
        if name in counters.first_tokens:
            replica.first_tokens = (replica.first_tokens or 0.0) + value
        if name in counters.finished:
            replica.finished = (replica.finished or 0.0) + value
    return found


def _all(counters: Counters) -> tuple[str, ...]:
    named = (*counters.running, *counters.waiting, *counters.progress, *counters.first_tokens, *counters.finished)
    return tuple(dict.fromkeys(named))


def _lines_of(text: str, names: tuple[str, ...]) -> Iterator[str]:
    """Those that may be a series of these: the buckets of other histograms alone are tens of thousands of lines."""
    return (line for line in text.split("\n") if line.startswith(names))


def _series(line: str) -> tuple[str, Mapping[str, str], float] | None:
    matched = _LINE.fullmatch(line[:4000])
    if matched is None:
        return None
    name, labels, number = matched.groups()
    try:
        value = float(number)
    except ValueError:
        return None
    return (name, dict(_LABEL.findall(labels or "")), value) if math.isfinite(value) else None
