"""Facts about ranks, from what the readers found and from who is who."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hangscope.model import (
    CUT_OFF,
    FATAL_ERROR,
    GLOO_SIZE,
    Frame,
    KernelMessage,
    Process,
    PythonError,
    Source,
    ThreadStack,
    WatchdogReport,
)
from hangscope.model.numbers import integer
from hangscope.model.ranks_in_paths import rank_of_log, worker_of
from hangscope.model.statements import Statement, Trust
from hangscope.model.times import LogTimes
from hangscope.model.values import host_name, line_of, short_name
from hangscope.reader.join.who_is_who import Identity
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.nccl_logs import NcclProcess
from hangscope.reader.logs.nccl_warnings import read_warning
from hangscope.reader.logs.torch_logs import LoggedReport
from hangscope.reader.logs.torch_words import gloo_timeout
from hangscope.reader.logs.tracebacks import Traceback
from hangscope.reader.sources.error_files import ErrorFile

_SETTING_UP = re.compile(r"\[(\d{1,6})\] is setting up NCCL communicator", re.ASCII)


def launcher_statements(text: TextFile) -> list[Statement]:
    """What launchers say in one file, on the node in whose directory it lies; and where the culprit of a verdict ran
    that we printed there."""
    placed = [
        said if said.process.node else replace(said, process=replace(said.process, node=text.node))
        for said in (*text.launcher.statements, *text.framework.statements)
    ]
    for verdict in text.printed.found:
        if len(verdict.ranks) == 1 and host_name(verdict.node):
            process = Process(rank=verdict.ranks[0], node=verdict.node, source=verdict.source)
            placed.append(Statement(Trust.PRINTED, process))
    return placed


def network_statements(who: Identity, processes: Mapping[tuple[str, int], NcclProcess]) -> list[Statement]:
    """Node, pid and GPU of ranks as NCCL's log has them."""
    found: list[Statement] = []
    for (host, pid), process in sorted(processes.items()):
        rank = who.rank_of(host, pid)
        source = process.first_source
        if rank is None or source is None:
            continue
        gpu = next((comm.gpu for comm in process.comms if comm.gpu), None)
        found.append(Statement(Trust.NETWORK, Process(rank=rank, node=host, pid=pid, gpu=gpu, source=source)))
    return found


# ---- PyTorch's log ---------------------------------------------------------------------------------------------------


def report_rank(reading: LoggedReport, text: TextFile, who: Identity) -> int | None:
    """The rank whose report it is; None where the lines tell only its number within a group."""
    rank = text.writers.rank_of(reading.tag, reading.stream, text.rank)
    if rank is None:
        rank = reading.hint
    return None if rank is None or (who.world_size is not None and rank >= who.world_size) else rank


def watchdog_reports(text: TextFile, times: LogTimes, who: Identity) -> tuple[list[WatchdogReport], list[LoggedReport]]:
    """(the reports of one file, those that could not be given to a rank)."""
    found: list[WatchdogReport] = []
    lost: list[LoggedReport] = []
    for reading in text.torch.reports:
        rank = report_rank(reading, text, who)
        if rank is None:
            lost.append(reading)
        else:
            found.append(replace(reading.report, rank=rank, at_ns=times.ns(reading.at)))
    for traceback in text.torch.tracebacks:
        report = _gloo_report(traceback, raised_by(traceback, text), text, times)
        if report is not None:
            found.append(report)
    return found, lost


def _gloo_report(traceback: Traceback, rank: int | None, text: TextFile, times: LogTimes) -> WatchdogReport | None:
    """Gloo has no watchdog: the collective that timed out, or whose peer went away, raises in the caller."""
    limit = gloo_timeout(traceback.message)
    closed = peer_is_gone(traceback)
    if rank is None or (limit is None and not closed):
        return None
    inner = tuple(reversed(traceback.frames))
    return WatchdogReport(
        rank=rank,
        kind="timeout" if limit is not None else "async_error",
        source=text.torch.source(traceback.number),
        at_ns=times.ns(traceback.at_ns),
        operation=_called_operation(inner),
        timeout_ms=limit,
        error=traceback.message.split("\n", 1)[0],
        frames=inner,
    )


def lost_peers(errors: Iterable[PythonError]) -> Iterator[WatchdogReport]:
    """The same of exceptions whose rank was found out later."""
    for error in errors:
        if error.rank is not None and _peer_is_gone(error.message):
            inner = error.frames[::-1]
            text = error.message.split("\n", 1)[0]
            operation = _called_operation(inner)
            yield WatchdogReport(
                error.rank, "async_error", error.source, error.at_ns, operation=operation, error=text, frames=inner
            )


def peer_is_gone(traceback: Traceback) -> bool:
    return _peer_is_gone(traceback.message)


def _peer_is_gone(message: str) -> bool:
    return "gloo" in message and read_warning(message).kind == "connection_closed"


def _called_operation(inner: Sequence[Frame]) -> str | None:
    """The collective's name by the innermost function of torch.distributed that is not a wrapper."""
    for frame in inner:
        if frame.filename.endswith("distributed_c10d.py") and not frame.name.startswith("_"):
            return {"all_gather_into_tensor": "_all_gather_base", "reduce_scatter_tensor": "_reduce_scatter_base"}.get(
                frame.name, frame.name.removesuffix("_single")
            )
    return None


def python_errors(text: TextFile, times: LogTimes, who: Identity) -> list[PythonError]:
    """Exceptions of one file, with those that were logged without a traceback."""
    found: list[PythonError] = []
    for traceback in text.torch.tracebacks:
        rank = raised_by(traceback, text)
        node = node_of(who, rank, text) or text.writers.node_of(traceback.stream)
        found.append(_python_error(traceback, rank, node, text.file, times.ns(traceback.at_ns)))
    for note in text.torch.out_of_memory:
        rank = text.writers.rank_of(note.tag, note.stream, text.rank)
        source = text.torch.source(note.number)
        at_ns = times.ns(note.at)
        found.append(
            PythonError(rank, "torch.OutOfMemoryError", note.text, (), source, at_ns, node_of(who, rank, text))
        )
    for note in text.torch.wrong_sizes:
        rank = text.writers.rank_of(note.tag, note.stream, text.rank)
        source = text.torch.source(note.number)
        found.append(PythonError(rank, GLOO_SIZE, note.text, (), source, times.ns(note.at), node_of(who, rank, text)))
    for note in text.torch.fatal_errors:
        rank = text.writers.rank_of(note.tag, note.stream, text.rank)
        found.append(
            PythonError(
                rank,
                FATAL_ERROR,
                note.text,
                _crash_frames(text, note.number),
                text.torch.source(note.number),
                times.ns(note.at),
                node_of(who, rank, text),
                # SIGABRT is how PyTorch's watchdog ends a process, SIGTERM how a launcher does
                consequence=note.text.startswith(("Aborted", "Terminated")),
            )
        )
    return found


def raised_by(traceback: Traceback, text: TextFile) -> int | None:
    """The rank of a traceback: torchrun's summary says whose it quotes, otherwise the line's writer."""
    quoted = text.launcher.traceback_ranks.get(traceback.number)
    if quoted is not None:
        return quoted
    rank = text.writers.rank_of(traceback.tag, traceback.stream, text.rank)
    if rank is None and (named := _SETTING_UP.match(traceback.message)):
        rank = integer(named[1])
    return rank


def _crash_frames(text: TextFile, number: int) -> tuple[Frame, ...]:
    """The crashed thread's frames that faulthandler printed under the error, outermost first."""
    for capture in text.stacks.captures:
        begun = [capture.number, *(thread.number for thread in capture.threads[:1])]  # ours have a head of their own
        if any(number < line <= number + 4 for line in begun):
            # C++ may abort on a thread of its own, which Python does not list: then the main thread says where it was.
            first = sorted(capture.threads, key=lambda thread: (not thread.current, not thread.main))[0]
            return tuple(reversed(first.frames))
    return ()


def _python_error(
    traceback: Traceback, rank: int | None, node: str | None, file: str, at_ns: int | None, place: str = ""
) -> PythonError:
    cause = None
    if traceback.cause is not None:
        cause = _python_error(traceback.cause, rank, node, file, at_ns, place)
    return PythonError(
        rank=rank,
        type=traceback.type,
        message=traceback.message,
        frames=tuple(traceback.frames),
        source=Source(file, place or f"line {traceback.number}"),
        at_ns=at_ns,
        node=node,
        consequence=traceback.consequence,
        cause=cause,
        code=tuple(traceback.code),
    )


def node_of(who: Identity, rank: int | None, text: TextFile) -> str | None:
    return who.nodes.get(rank, text.node) if rank is not None else text.node


def error_file(found: ErrorFile, file: str, node: str | None, parts: tuple[str, ...], who: Identity) -> PythonError:
    """torchrun's error file; its rank is in its name, that of the log beside it, or follows from its local rank."""
    rank = rank_of_log(parts)
    if rank is None:
        rank = who.by_directory.get(parts[:-1])
    local_rank = worker_of(parts)
    if rank is None and local_rank is not None:
        rank = who.by_local_rank.get((short_name(node or ""), local_rank))
    node = who.nodes.get(rank, node) if rank is not None else node
    return _python_error(found.traceback, rank, node, file, found.at_ns, "message")


def without_echoes(errors: Iterable[PythonError]) -> list[PythonError]:
    """Each exception once: what a launcher or an error file repeats without naming a rank is dropped."""
    kept: list[PythonError] = []
    with_rank: set[tuple[str, str]] = set()
    seen: set[tuple[int | None, str, str, Frame | None]] = set()
    for error in sorted(
        errors, key=lambda e: (e.rank is None, not e.source.place.startswith("line"), e.source.file, line_of(e.source))
    ):
        first_line = error.message.split("\n", 1)[0]
        short = (error.type.rsplit(".", 1)[-1], first_line)
        key = (error.rank, *short, error.frames[-1] if error.frames else None)
        if key in seen or (error.rank is None and short in with_rank):
            continue
        seen.add(key)
        if error.rank is not None:
            with_rank.add(short)
        kept.append(error)
    return kept


def without_cut_off(
    errors: Sequence[PythonError], processes: Mapping[int, Process], others: Sequence[object]
) -> list[PythonError]:
    """The exceptions but for those of which the paste has only the beginning, the weakest evidence there is: they count
    where nothing else tells of a failure (`others`), or where their rank is known to have ended."""
    if not others and all(error.type == CUT_OFF for error in errors):
        return list(errors)
    ended = {rank for rank, process in processes.items() if process.exit_status is not None}
    return [error for error in errors if error.type != CUT_OFF or error.rank in ended]


def distinct(reports: Iterable[WatchdogReport]) -> list[WatchdogReport]:
    """Each report once: the same lines often lie in a rank's own log and in its node's."""
    kept: dict[tuple[object, ...], WatchdogReport] = {}
    for report in sorted(reports, key=lambda r: (r.source.file, line_of(r.source))):
        said = (report.kind, report.group_name, report.seq, report.operation, report.at_ns, report.elapsed_ms)
        kept.setdefault((report.rank, *said, report.last_enqueued, report.signalled_by, report.error), report)
    return list(kept.values())


def interrupted(errors: Iterable[PythonError], stacks: Iterable[ThreadStack]) -> Iterator[ThreadStack]:
    """Where Ctrl-C found ranks whose stacks nobody has: the traceback of a KeyboardInterrupt is one."""
    known = {stack.rank for stack in stacks}
    for error in errors:
        if error.type == "KeyboardInterrupt" and error.rank is not None and error.rank not in known and error.frames:
            known.add(error.rank)
            frames = tuple(reversed(error.frames))
            yield ThreadStack(error.rank, None, "MainThread", frames, error.source, main=True, outside=True)


# ---- stacks and the kernel ------------------------------------------------------------------------------------------


def thread_stacks(text: TextFile, who: Identity) -> list[ThreadStack]:
    found: list[ThreadStack] = []
    for capture in text.stacks.captures:
        rank = capture.rank
        if rank is None:
            rank = who.rank_of(text.node, capture.pid)
        if rank is None:
            rank = text.writers.rank_of(capture.tag, capture.stream, text.rank)
        for thread in capture.threads:
            found.append(
                ThreadStack(
                    rank=rank,
                    pid=capture.pid,
                    thread=thread.name,
                    frames=tuple(thread.frames),
                    source=Source(text.file, f"line {thread.number}"),
                    main=thread.main and capture.parent is None,
                    sample=capture.sample,
                    active=thread.active,
                    node=node_of(who, rank, text),
                    outside=capture.by in ("py-spy", "memory") or capture.parent is not None,
                    native=tuple(thread.native),
                    holds_gil=thread.holds_gil,
                    child=capture.parent is not None,
                )
            )
    return found


def kernel_messages(texts: Iterable[TextFile], who: Identity) -> list[KernelMessage]:
    found: list[KernelMessage] = []
    for text in texts:
        for message in text.kernel.messages:
            node = message.node or text.node
            if node is not None:
                node = who.hosts.get(short_name(node), node)
            found.append(replace(message, node=node))
    return found
