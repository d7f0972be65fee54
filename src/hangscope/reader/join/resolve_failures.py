"""Every line of failure with its rank and node, from what the readers found and from who is who."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hangscope.model import Failure, KernelMessage, PythonError, TransportEvent, WatchdogReport
from hangscope.reader.join.resolve_ranks import node_of
from hangscope.reader.join.who_is_who import Identity
from hangscope.reader.logs.failure_line import FailureLine
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.log_lines import line_of
from hangscope.reader.logs.nccl_warnings import NcclWarning, address_host, failure_of
from hangscope.reader.logs.torch_logs import LoggedReport
from hangscope.reader.times import LogTimes
from hangscope.reader.values import short_name

MOST = 20_000
"""Failures of one job that are kept."""


def in_logs(text: TextFile, who: Identity, times: LogTimes, *, torchrun: bool) -> list[Failure]:
    """What one file's lines say. `torchrun`: a launcher's tasks are nodes, and no ranks."""
    return [_resolved(said, text, who, times, torchrun) for said in text.failure_lines]


def _resolved(told: FailureLine, text: TextFile, who: Identity, times: LogTimes, torchrun: bool) -> Failure:
    failure = told.failure
    rank, ranks = failure.rank, failure.ranks
    detail = failure.detail
    if rank is None and told.tasks:
        if torchrun:
            detail = detail or f"task {told.tasks[0]}" + (f" and {len(told.tasks) - 1} more" if told.tasks[1:] else "")
        elif len(told.tasks) == 1:
            rank = told.tasks[0]
        else:
            ranks = told.tasks
    if rank is None:
        rank = who.rank_of(failure.node or text.node, failure.pid)
    if rank is None and failure.local_rank is not None:
        rank = who.by_local_rank.get((short_name(failure.node or text.node or ""), failure.local_rank))
    if rank is None and told.of_writer:
        rank = _writer(told, text, who)
    node = failure.node
    if node is None and (told.of_writer or rank is not None):
        node = node_of(who, rank, text) or text.writers.node_of(told.line.stream)
    elif node is not None:
        node = who.hosts.get(short_name(who.addresses.get(node, node)), node)
    at_ns = failure.at_ns if failure.at_ns is not None else times.ns(told.at)
    return replace(failure, rank=rank, ranks=ranks, node=node, detail=detail, at_ns=at_ns)


def _writer(told: FailureLine, text: TextFile, who: Identity) -> int | None:
    line = told.line
    rank = text.writers.rank_of(line.tag, line.stream, text.rank)
    if rank is None and line.pid is not None:
        rank = who.rank_of(line.host or text.node, line.pid)
    return told.hint if rank is None else rank


def of_reports(lost: Iterable[LoggedReport], text: TextFile, times: LogTimes) -> list[Failure]:
    """Watchdog reports whose rank counts within a group: they still tell which operation somebody waited in."""
    found: list[Failure] = []
    for reading in lost:
        report = reading.report
        if report.kind == "desync":
            continue  # told line by line
        inside = f"rank {report.group_rank} of that group" if report.group_rank is not None else None
        found.append(
            Failure(
                "other",
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
        found.append(
            Failure(
                kind,
                event.text,
                event.source,
                event.rank,
                event.node,
                pid=event.pid,
                peer_rank=event.peer_rank,
                peer_node=event.peer_node or address_host(event.peer_address),
                at_ns=event.at_ns,
                code=event.status,
                effect=effect,
                detail=event.status_name or event.hca,
            )
        )
    return found


_KERNEL_KINDS = {"oom": ("host_oom", -9), "xid": ("xid", None)}


def of_kernel(messages: Iterable[KernelMessage], who: Identity) -> list[Failure]:
    """Kernel messages that tell of a failure; a link that comes up is none."""
    found: list[Failure] = []
    for message in messages:
        kind, code = _KERNEL_KINDS.get(message.kind, ("other", None))
        if message.kind == "link" and "own" not in message.text.lower().replace("unknown", ""):
            continue
        if message.kind == "other" and ("segfault" in message.text or "general protection" in message.text):
            kind, code = "signal", -11
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
            )
        )
    return found


_LOST_PEERS = frozenset(("exception", "socket_error", "nccl_remote_error"))


def distinct(
    failures: Sequence[Failure], watchdog: Iterable[WatchdogReport], errors: Sequence[PythonError]
) -> list[Failure]:
    """Each failure once, oldest line first, without the exceptions that a traceback tells better.

    SIGABRT is how PyTorch's watchdog ends a process: of a rank that reported a timeout it is that report's effect, as
    SIGKILL is of a process that its launcher had asked to stop. So is the status of a rank whose own exceptions all say
    that it waited for others or lost them.
    """
    reported = {report.rank for report in watchdog if report.kind in {"timeout", "async_error"}}
    reported.update(f.rank for f in failures if f.effect and f.rank is not None and f.kind in _LOST_PEERS)
    stopped = {(f.source.file, f.pid) for f in failures if f.kind == "launcher_kill" and f.pid is not None}
    raised = {(e.source.file, e.type.rsplit(".", 1)[-1]) for error in errors for e in _chain(error)}
    gave_up = {e.rank for e in errors if e.consequence and e.rank is not None}
    gave_up -= {e.rank for e in errors if not e.consequence and e.rank is not None}
    kept: dict[tuple[object, ...], Failure] = {}
    for failure in sorted(failures, key=lambda f: (f.source.file, line_of(f.source), f.kind)):
        named = (failure.source.file, (failure.detail or "").rsplit(".", 1)[-1])
        if failure.kind == "exception" and named in raised:
            continue
        aborted = failure.code == -6 and reported and (failure.rank is None or failure.rank in reported)
        followed = failure.kind == "exit" and failure.rank in gave_up
        if aborted or followed or (failure.code in {-9, -15} and (failure.source.file, failure.pid) in stopped):
            failure = replace(failure, effect=True)
        who: tuple[object, ...] = (failure.rank, failure.node, failure.local_rank, failure.ranks, failure.text)
        if failure.pid is not None and failure.kind in {"signal", "exit"}:
            who = ()  # torchrun says it in a line and again in its summary, which knows more
        key = (failure.kind, failure.code, failure.pid, *who)
        known = kept.get(key)
        if known is None or (known.rank is None and failure.rank is not None):
            kept[key] = failure
    return list(kept.values())[:MOST]


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
