"""Every line of failure with its rank and node, from what the readers found and from who is who."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from hangscope.model import Failure, FailureKind, KernelMessage, PythonError, Source, TransportEvent, WatchdogReport
from hangscope.model.times import LogTimes
from hangscope.model.values import line_of, short_name
from hangscope.reader.join.resolve_ranks import node_of
from hangscope.reader.join.who_is_who import Identity
from hangscope.reader.logs.failure_line import FailureLine
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.nccl_warnings import NcclWarning, address_host, failure_of, taken_twice
from hangscope.reader.logs.torch_logs import LoggedReport

LAUNCH_FAILURE = "launch failure"
"""How a kernel ends that was made to: by what it waited in, or because its GPU was asked for a core."""
MOST = 20_000
"""Failures of one job that are kept."""


def in_logs(text: TextFile, who: Identity, times: LogTimes, *, torchrun: bool) -> list[Failure]:
    """What one file's lines say. `torchrun`: a launcher's tasks are nodes, and no ranks."""
    return [_resolved(said, text, who, times, torchrun) for said in text.failure_lines]


def _resolved(said: FailureLine, text: TextFile, who: Identity, times: LogTimes, torchrun: bool) -> Failure:
    failure = said.failure
    if failure.rank is None and said.tasks:
        failure = _with_tasks(failure, said.tasks, torchrun)
    rank = failure.rank if failure.rank is not None else _rank_of(said, text, who)
    at_ns = failure.at_ns if failure.at_ns is not None else times.ns(said.at)
    return replace(failure, rank=rank, node=_node(said, rank, text, who), at_ns=at_ns)


def _with_tasks(failure: Failure, tasks: tuple[int, ...], torchrun: bool) -> Failure:
    if torchrun:
        others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        return replace(failure, detail=failure.detail or f"task {tasks[0]}{others}")
    if len(tasks) == 1:
        return replace(failure, rank=tasks[0])
    return replace(failure, ranks=tasks)


def _rank_of(said: FailureLine, text: TextFile, who: Identity) -> int | None:
    """By its process, by its local rank on its node, or by who wrote the line."""
    failure = said.failure
    host = failure.node or text.node
    rank = who.rank_of(host, failure.pid)
    if rank is None and failure.local_rank is not None:
        rank = who.by_local_rank.get((short_name(host or ""), failure.local_rank))
    if rank is None and said.of_writer:
        rank = _writer(said, text, who)
    if rank is None and failure.local_rank is not None and _is_whole_job(text):
        return failure.local_rank
    return rank


def _is_whole_job(text: TextFile) -> bool:
    """Whether the launcher of this log started all ranks of the job: then a local rank is the rank."""
    ranks = text.writers.tags.keys()
    return bool(ranks) and len(ranks) == len(text.launcher.workers) == max(ranks) + 1


def _writer(said: FailureLine, text: TextFile, who: Identity) -> int | None:
    line = said.line
    rank = text.writers.rank_of(line.tag, line.stream, text.rank)
    if rank is None and line.pid is not None:
        rank = who.rank_of(line.host or text.node, line.pid)
    return said.hint if rank is None else rank


def _node(said: FailureLine, rank: int | None, text: TextFile, who: Identity) -> str | None:
    node = said.failure.node
    if node is not None:
        return who.hosts.get(short_name(who.addresses.get(node, node)), node)
    if said.of_writer or rank is not None:
        return node_of(who, rank, text) or text.writers.node_of(said.line.stream)
    return None


def of_reports(lost: Iterable[LoggedReport], text: TextFile, times: LogTimes) -> list[Failure]:
    """Watchdog reports whose rank counts within a group: they still tell which operation somebody waited in."""
    found: list[Failure] = []
    for reading in lost:
        report = reading.report
        if report.kind == "desync":
            continue  # its lines are failures themselves
        inside = f"rank {report.group_rank} of that group" if report.group_rank is not None else None
        found.append(
            Failure(
                FailureKind.OTHER,
                report.error or f"{report.kind} of {report.operation or 'an operation'}",
                report.source,
                None,
                text.node,
                at_ns=times.ns(reading.at),
                operation=report.operation,
                seq=report.seq,
                group_name=report.group_name,
                effect=report.kind in {"timeout", "status"},
                detail=inside,
            )
        )
    return found


def of_transport(events: Iterable[TransportEvent]) -> list[Failure]:
    """NCCL's warnings that tell of a failure."""
    found: list[Failure] = []
    for event in events:
        warned = NcclWarning(event.kind, event.peer_address, status=event.status, fatal=event.fatal)
        kind, effect = failure_of(warned, event.text)
        if kind is None:
            continue
        taken = taken_twice(event.text)
        found.append(
            Failure(
                kind,
                event.text,
                event.source,
                event.rank,
                event.node,
                pid=event.pid,
                ranks=taken.ranks if taken is not None else (),
                peer_rank=event.peer_rank,
                peer_node=event.peer_node or address_host(event.peer_address),
                at_ns=event.at_ns,
                code=event.status,
                effect=effect,
                detail=taken.what if taken is not None else event.status_name or event.hca,
            )
        )
    return found


def of_fabric(texts: Iterable[TextFile]) -> list[Failure]:
    """What ports of the fabric have counted."""
    return [failure for text in texts for failure in text.fabric.failures]


_KERNEL_KINDS = {"oom": (FailureKind.HOST_OOM, -9), "xid": (FailureKind.XID, None)}


def of_kernel(messages: Iterable[KernelMessage], who: Identity) -> list[Failure]:
    """Kernel messages that tell of a failure; a link that comes up is none."""
    found: list[Failure] = []
    for message in messages:
        kind, code = _KERNEL_KINDS.get(message.kind, (FailureKind.OTHER, None))
        if message.kind == "link" and "own" not in message.text.lower().replace("unknown", ""):
            continue
        if message.kind == "other" and ("segfault" in message.text or "general protection" in message.text):
            kind = FailureKind.SIGNAL
            code = -11
        found.append(
            Failure(
                kind,
                message.text.strip(),
                message.source,
                who.rank_of(message.node, message.pid),
                message.node,
                pid=message.pid,
                code=message.code if message.code is not None else code,
                detail=message.pci or message.device,
                effect="blocked for more than" in message.text,
            )
        )
    return found


_STUCK = frozenset((FailureKind.ENGINE_STUCK, FailureKind.HEARTBEAT_STUCK))
_AFTER_A_HANG = re.compile(r"MPI_ABORT was invoked|ActorDiedError|RayActorError|ActorUnavailableError")
"""How MPI and Ray say that a process which gave up waiting is gone."""
_LOST_PEERS = frozenset(
    (FailureKind.EXCEPTION, FailureKind.PROCESS_DIED, FailureKind.SOCKET_ERROR, FailureKind.NCCL_REMOTE_ERROR)
)


_SHORTEST_TIMEOUT_MS = 1000
"""No one waits so little for a collective: a number in seconds was given as milliseconds, or a test set it."""


def without_short_timeouts(watchdog: Sequence[WatchdogReport]) -> tuple[list[WatchdogReport], list[Failure]]:
    """The reports; and those of timeouts that are set so short that they tell of the setting and of no hang."""
    timeouts = [report for report in watchdog if report.kind == "timeout"]
    short = [r for r in timeouts if r.timeout_ms is not None and r.timeout_ms < _SHORTEST_TIMEOUT_MS]
    if len(short) < len(timeouts):
        return list(watchdog), []
    failures = [
        Failure(
            FailureKind.SHORT_TIMEOUT,
            report.error or "timed out",
            report.source,
            report.rank,
            None,
            at_ns=report.at_ns,
            operation=report.operation,
            seq=report.seq,
            detail=f"{report.timeout_ms} ms",
        )
        for report in short
    ]
    return [report for report in watchdog if report not in short], failures


_FOLLOWS_WITHIN = 300
"""Lines between a reason and the exception of the same process that it explains."""


def explained(errors: Sequence[PythonError], failures: Iterable[Failure]) -> list[PythonError]:
    """The exceptions, those as consequences that stand behind a line of their writer, or of nobody in particular, that
    names a peer, a device or another reason."""
    reasons: dict[str, list[tuple[int, int | None]]] = {}
    for failure in failures:
        if failure.explains:
            reasons.setdefault(failure.source.file, []).append((line_of(failure.source), failure.rank))
    if not reasons:
        return list(errors)
    return [replace(e, consequence=True) if _is_explained(e, reasons.get(e.source.file, ())) else e for e in errors]


def _is_explained(error: PythonError, reasons: Iterable[tuple[int, int | None]]) -> bool:
    ends = line_of(error.source) + len(error.frames) * 2 + len(error.message.splitlines())
    return not error.consequence and any(
        line <= ends + 2 and ends - line <= _FOLLOWS_WITHIN and (rank is None or rank == error.rank)
        for line, rank in reasons
    )


def distinct(
    failures: Sequence[Failure], watchdog: Iterable[WatchdogReport], errors: Sequence[PythonError]
) -> list[Failure]:
    """Each failure once, oldest line first, without the exceptions that a traceback tells better."""
    effects = _effects(failures, watchdog, errors)
    raised = {(e.source.file, e.type.rsplit(".", 1)[-1]) for error in errors for e in _chain(error)}
    kept: dict[tuple[object, ...], Failure] = {}
    for failure in sorted(failures, key=lambda f: (f.source.file, line_of(f.source), f.kind)):
        named = (failure.source.file, (failure.detail or "").rsplit(".", 1)[-1])
        if failure.kind == FailureKind.EXCEPTION and named in raised:
            continue
        if effects.include(failure):
            failure = replace(failure, effect=True)
        key = _identity(failure)
        known = kept.get(key)
        if known is None or (known.rank is None and failure.rank is not None):
            kept[key] = failure
    return list(kept.values())[:MOST]


class Stopped:
    """Files in which somebody stopped the whole job and nothing was wrong before: a peer that is lost there afterwards
    is lost to that."""

    def __init__(self, watchdog: Iterable[WatchdogReport], failures: Iterable[Failure]) -> None:
        stops = [f for f in failures if f.kind == FailureKind.LAUNCHER_KILL and f.rank is None and f.pid is None]
        lines: dict[str, int] = {}
        for stop in stops:
            lines[stop.source.file] = min(lines.get(stop.source.file, line_of(stop.source)), line_of(stop.source))
        wrong_before = {f.source.file for f in failures if not f.effect}
        wrong_before |= {r.source.file for r in watchdog if line_of(r.source) < lines.get(r.source.file, 0)}
        self._lines = {file: line for file, line in lines.items() if file not in wrong_before}

    def __contains__(self, source: Source) -> bool:
        line = self._lines.get(source.file)
        return line is not None and line_of(source) > line

    def reports(self, watchdog: Iterable[WatchdogReport]) -> list[WatchdogReport]:
        return [report for report in watchdog if report.kind != "async_error" or report.source not in self]

    def failures(self, found: Iterable[Failure]) -> list[Failure]:
        return [failure for failure in found if failure.kind not in _LOST_PEERS or failure.source not in self]


class CoresAsked:
    """A job whose GPUs were asked for cores: the error that each process reports then is our doing, or somebody's; so
    are peers that are lost, and ends of processes after that.

    The driver says the same where a kernel failed by itself and cores were switched on for that: then there is another
    error of CUDA's.
    """

    def __init__(self, watchdog: Iterable[WatchdogReport], failures: Iterable[Failure]) -> None:
        found = list(failures)
        said = [failure.text for failure in found if failure.kind == FailureKind.CUDA_ERROR]
        said += [report.error or "" for report in watchdog if report.kind == "cuda_error"]
        by_hand = all(LAUNCH_FAILURE in text for text in said)
        self._lines = _first_lines(_sources(found, {FailureKind.GPU_CORE})) if by_hand else {}

    def _came_after(self, source: Source, *, elsewhere: bool) -> bool:
        """Behind the driver's line in its file; `elsewhere`: or in a file without one, where there is one at all."""
        line = self._lines.get(source.file)
        return bool(self._lines) and elsewhere if line is None else line_of(source) > line

    def reports(self, watchdog: Iterable[WatchdogReport]) -> list[WatchdogReport]:
        ours = {"cuda_error", "async_error"}
        return [r for r in watchdog if r.kind not in ours or not self._came_after(r.source, elsewhere=True)]

    def failures(self, found: Iterable[Failure]) -> list[Failure]:
        ours = {FailureKind.CUDA_ERROR, *_LOST_PEERS}
        kept = [f for f in found if f.kind not in ours or not self._came_after(f.source, elsewhere=True)]
        return [
            f
            for f in kept
            if f.kind not in {FailureKind.SIGNAL, FailureKind.EXIT} or not self._came_after(f.source, elsewhere=False)
        ]

    def errors(self, found: Iterable[PythonError]) -> list[PythonError]:
        return [
            error
            for error in found
            if LAUNCH_FAILURE not in error.message or not self._came_after(error.source, elsewhere=True)
        ]


def _identity(failure: Failure) -> tuple[object, ...]:
    """What two lines about one failure have in common."""
    end = (failure.kind, failure.code, failure.pid)
    if failure.pid is not None and failure.kind in {FailureKind.SIGNAL, FailureKind.EXIT}:
        return end  # torchrun says it in a line and again in its summary, which knows more
    return (*end, failure.rank, failure.node, failure.local_rank, failure.ranks, failure.text)


@dataclass(frozen=True, slots=True)
class _Effects:
    """Which ends of processes follow from something that was reported before.

    SIGABRT is how PyTorch's watchdog ends a process: of a rank that reported a timeout it is that report's effect, as
    SIGKILL is of a process that its launcher had asked to stop. So is the status of a rank whose own exceptions all say
    that it waited for others or lost them. What a file says behind the timeouts in it came after them: an abort, or an
    end that names no process.
    """

    reported: set[int]
    timeouts: Mapping[str, int]
    """File → the first line of it that reports a timeout, of a collective or of an engine."""
    signalled: Mapping[str, int]
    """File → the line in which a launcher says that it got a signal, by which it ends its workers."""
    stopped: set[tuple[str, int]]
    """(file, pid) of processes that their launcher stopped."""
    gave_up: set[int]
    aborted: set[int | None]
    """Ranks, or None where no line names them, whose runtime says why it aborts them."""

    def include(self, failure: Failure) -> bool:
        if failure.code == -6 and self.aborted and not self.aborted.isdisjoint((None, failure.rank)):
            return True
        if failure.code == -6 and self.reported and (failure.rank is None or failure.rank in self.reported):
            return True
        if self._follows(failure) or (failure.kind == FailureKind.ACTOR_DIED and self._died_of_timeout(failure)):
            return True
        if failure.kind == FailureKind.EXIT and failure.rank in self.gave_up:
            return True
        return failure.code in {-9, -15} and (failure.source.file, failure.pid) in self.stopped

    def _died_of_timeout(self, failure: Failure) -> bool:
        """Ray says last, and loudest, that an actor died: one whose own watchdog gave up before died of that."""
        first = self.timeouts.get(failure.source.file)
        follows = first is not None and line_of(failure.source) > first
        return follows if failure.rank is None else failure.rank in self.reported

    def _follows(self, failure: Failure) -> bool:
        signalled = self.signalled.get(failure.source.file)
        if (
            signalled is not None
            and line_of(failure.source) > signalled
            and failure.kind in {FailureKind.SIGNAL, FailureKind.EXIT}
        ):
            return True
        first = self.timeouts.get(failure.source.file)
        if first is None or line_of(failure.source) < first:
            return False
        if failure.kind == FailureKind.CUDA_ERROR and LAUNCH_FAILURE in failure.text:
            return True  # how kernels end that gave up waiting, as DeepEP's
        if failure.kind == FailureKind.ACTOR_DIED or _AFTER_A_HANG.search(failure.text):
            return True
        if failure.kind not in {FailureKind.SIGNAL, FailureKind.EXIT}:
            return False
        nameless = failure.rank is None and failure.pid is None and failure.local_rank is None
        return failure.code == -6 or (failure.code in {-9, -15} and nameless)


def _effects(
    failures: Sequence[Failure], watchdog: Iterable[WatchdogReport], errors: Sequence[PythonError]
) -> _Effects:
    timed_out = [report for report in watchdog if report.kind in {"timeout", "async_error"} or report.own_timeout]
    reported = {report.rank for report in timed_out}
    reported.update(f.rank for f in failures if f.effect and f.rank is not None and f.kind in _LOST_PEERS)
    stopped = {(f.source.file, f.pid) for f in failures if f.kind == FailureKind.LAUNCHER_KILL and f.pid is not None}
    return _Effects(
        reported,
        _first_lines([*(report.source for report in timed_out), *_sources(failures, _STUCK)]),
        _first_lines(_sources(failures, {FailureKind.LAUNCHER_SIGNAL, FailureKind.CANCELLED})),
        stopped,
        _gave_up(errors),
        {f.rank for f in failures if f.effect and f.explains},
    )


def _sources(failures: Iterable[Failure], kinds: Set[str]) -> list[Source]:
    return [failure.source for failure in failures if failure.kind in kinds]


def _first_lines(sources: Iterable[Source]) -> dict[str, int]:
    """File → the first of some lines of it."""
    first: dict[str, int] = {}
    for source in sources:
        line = line_of(source)
        first[source.file] = min(line, first.get(source.file, line))
    return first


def _gave_up(errors: Sequence[PythonError]) -> set[int]:
    """Ranks whose exceptions all say that they waited for others or lost them."""
    waited = {e.rank for e in errors if e.consequence and e.rank is not None}
    return waited - {e.rank for e in errors if not e.consequence}


def _chain(error: PythonError) -> Iterable[PythonError]:
    found: PythonError | None = error
    while found is not None:
        yield found
        found = found.cause


def ranks_named(failures: Iterable[Failure], nodes: Mapping[int, str]) -> set[int]:
    """Every rank that a failure names as a member of the job."""
    found = set(nodes)
    for failure in failures:
        found.update(failure.ranks)
        found.update(rank for rank in (failure.rank, failure.peer_rank) if rank is not None)
    return found


_LONGEST_PATH = 4096
_DETECTOR_STACKS = re.compile(r"(?:^|[/\\!])stack_traces[/\\]rank_\d+\.log$")


def of_hang_detector(texts: Iterable[TextFile]) -> Iterator[Failure]:
    """That Ray Train's hang detector (2.60) saw a hang: it writes hang_detector/stack_traces then, and only then."""
    for text in texts:
        if text.stacks.captures and _DETECTOR_STACKS.search(text.file[-_LONGEST_PATH:]):
            said = "Ray Train's hang detector saw NCCL's counters unchanged, and wrote the stacks of all workers"
            detail = "by Ray Train's hang detector"
            yield Failure(FailureKind.ENGINE_STUCK, said, Source(text.file), None, None, effect=True, detail=detail)
            return
