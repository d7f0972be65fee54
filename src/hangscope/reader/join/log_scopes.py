"""What each log can testify: who wrote into it, over which time, and whether it shows the beginning and the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hangscope.model import Dump, LogProgress, LogScope, Source, ThreadStack, WatchdogReport
from hangscope.model.ranks_in_paths import worker_of
from hangscope.model.times import Clock, LogTimes, parse_time
from hangscope.model.values import line_of
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.progress_lines import Shows, moves
from hangscope.reader.logs.torch_words import clock_of

_BEGINS = re.compile(
    r"Setting OMP_NUM_THREADS|Starting elastic_operator|\*{30,}|Initializing (?:distributed|TorchBackend)"
    r"|distributed init \(?rank|Bootstrap ?: Using|Init START|CCL version [\d.]+\+|GLOBAL_RANK: \d+, MEMBER"
    r"|ProcessGroupNCCL (?:environments|initialized)|launching .{0,40}processes|Namespace\(|nccl_version"
)
_ENDS = re.compile(
    r"ChildFailedError|Root Cause \(first observed failure\)|^={20,}$|core dumped|^Killed$|Terminated$"
    r"|srun: error: .{0,80}: tasks? |mpirun (?:noticed|detected)|exits with return code|CANCELLED AT"
    r"|destroy_process_group\(\) was not called|Job step aborted|Force Terminated|exitcode\s*: |return code ="
)
_OUTPUT = re.compile(r"std(?:out|err)")
_ZONED = re.compile(r"\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)\b")
LAST = 12
"""Lines at the end among which one must show that it is the end."""


def log_scopes(
    texts: Sequence[TextFile], times: LogTimes, ranks: Mapping[str, set[int]], *, incident: bool
) -> list[LogScope]:
    """One scope a file. `ranks` maps a file to the ranks that something else puts into it (reports without a tag).

    A file is whole if hangscope or torchrun wrote it for a single rank, or if it is one of several that are named by
    rank: nobody cuts excerpts like that. Its end is seen only if it does not break off within a line.
    """
    named = {text for text in texts if text.name_rank is not None and text.rank == text.name_rank and text.lines}
    if len({text.rank for text in named}) <= 1:
        named = set()
    scopes = []
    for text in texts:
        whole = text.lines > 0 and (_written_for_one_rank(text, incident) or text in named)
        scopes.append(_scope(text, times, writers_of(text) | ranks.get(text.file, set()), whole))
    return scopes


def _written_for_one_rank(text: TextFile, incident: bool) -> bool:
    """Whether hangscope or torchrun wrote a file, for a single rank."""
    if incident and text.node is not None:
        return True
    return worker_of(text.parts) is not None and _OUTPUT.match(text.parts[-1]) is not None


def _scope(text: TextFile, times: LogTimes, ranks: set[int], whole: bool) -> LogScope:
    ended = any(_ENDS.search(row.strip()) for row in list(text.tail)[-LAST:])
    return LogScope(
        text.file,
        tuple(sorted(ranks)),
        _first_time(text.head, times),
        _first_time(reversed(text.tail), times),
        from_start=whole or any(_BEGINS.search(row) for row in text.head),
        to_end=(whole and text.whole_last_line) or ended,
        lines=text.lines,
        local_time=_local_time(text),
    )


def log_progress(texts: Iterable[TextFile]) -> list[LogProgress]:
    """The logs that show their job moving."""
    return [_progress_of(text) for text in texts if moves(text.progress)]


def _progress_of(text: TextFile) -> LogProgress:
    ended = [line for line in text.progress if line.shows is Shows.FINISHED]
    shown = (ended or text.progress)[-1]
    counters = [line.counter for line in text.progress if line.counter is not None]
    return LogProgress(
        Source(text.file, f"line {shown.number}"),
        finished=bool(ended),
        lines=tuple(line.number for line in text.progress),
        first=counters[0] if counters else None,
        last=counters[-1] if counters else None,
    )


def _first_time(rows: Iterable[str], times: LogTimes) -> int | None:
    return next((at for row in rows if (at := times.ns(_moment(row))) is not None), None)


def _local_time(text: TextFile) -> bool:
    """Whether the file has times, and none of them with a zone. c10 never names one."""
    rows = [row for row in (*text.head, *text.tail) if _moment(row) is not None]
    return bool(rows) and not any(_ZONED.search(row) for row in rows)


def _moment(row: str) -> Clock | int | None:
    return clock_of(row) or parse_time(row)


def writers_of(text: TextFile) -> set[int]:
    """The ranks whose lines stand in a file."""
    found = set(text.writers.last_lines())
    if text.rank is not None and text.lines:
        found.add(text.rank)
    return found


def signs_of_life(
    texts: Iterable[TextFile],
    reports: Iterable[WatchdogReport],
    stacks: Iterable[ThreadStack],
    dumps: Mapping[int, Sequence[Dump]],
) -> dict[int, Source]:
    """Rank → its last own line, else its last own file. A log without a line is no sign of anything."""
    found: dict[int, Source] = {}
    for rank, of_rank in dumps.items():
        found[rank] = Source(of_rank[-1].file)
    for stack in stacks:
        if stack.rank is not None and not stack.outside:
            found[stack.rank] = stack.source
    lines: dict[int, Source] = {}
    for text in sorted(texts, key=lambda text: text.file):
        lines.update({rank: Source(text.file, f"line {number}") for rank, number in _last_lines(text).items()})
    for report in sorted(reports, key=lambda r: line_of(r.source)):
        known = lines.get(report.rank)
        if known is None or (known.file == report.source.file and line_of(known) < line_of(report.source)):
            lines[report.rank] = report.source
    return dict(sorted((found | lines).items()))


def _last_lines(text: TextFile) -> dict[int, int]:
    """Rank → its last line in a file."""
    own = text.writers.last_lines()
    if text.rank is not None and text.lines:
        own[text.rank] = max(own.get(text.rank, 0), text.lines)
    for note in text.torch.alive:
        writer = text.writers.rank_of(note.tag, note.stream, text.rank)
        writer = note.hint if writer is None else writer
        if writer is not None:
            own[writer] = max(own.get(writer, 0), note.number)
    return own
