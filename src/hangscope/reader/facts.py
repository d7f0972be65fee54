"""Facts about ranks, from what the readers found and from who is who."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hangscope.model import (
    Communicator,
    Edge,
    Frame,
    Gap,
    KernelMessage,
    PythonError,
    RasReport,
    Source,
    ThreadStack,
    TransportEvent,
    WatchdogReport,
)
from hangscope.reader import nccl_logs, ras
from hangscope.reader.identity import Identity
from hangscope.reader.lines import Clock, line_of, resolve_time
from hangscope.reader.nccl_warnings import address_host, read_warning
from hangscope.reader.rosters import NETWORK, ErrorFile, Note
from hangscope.reader.texts import TextFile, rank_in_path
from hangscope.reader.torch_words import gloo_timeout
from hangscope.reader.tracebacks import Traceback
from hangscope.reader.values import short_name

_YEAR_2100 = 4_102_444_800_000_000_000


class Times:
    """Turns the times of log lines into ns since the epoch. Years come from whatever else has a full date."""

    def __init__(self, references: Iterable[int]) -> None:
        # a date outside these years is no date, and would carry all others with it
        self._reference = max((ns for ns in references if 0 < ns < _YEAR_2100), default=None)
        self._now = time.time_ns()

    def ns(self, at: Clock | int | None) -> int | None:
        return resolve_time(at, self._reference, self._now)


def launcher_notes(text: TextFile) -> list[Note]:
    """What launchers say in one file, on the node in whose directory it lies."""
    return [note if note.node else replace(note, node=text.node) for note in text.launcher.notes]


def network_notes(who: Identity, processes: Mapping[tuple[str, int], nccl_logs.Process]) -> list[Note]:
    """Node, pid and GPU of ranks as NCCL's log has them."""
    notes: list[Note] = []
    for (host, pid), process in sorted(processes.items()):
        rank = who.rank_of(host, pid)
        source = process.first_source
        if rank is None or source is None:
            continue
        gpu = next((comm.gpu for comm in process.comms if comm.gpu), None)
        notes.append(Note(NETWORK, source, rank=rank, node=host, pid=pid, gpu=gpu))
    return notes


# ---- PyTorch's log ---------------------------------------------------------------------------------------------------


def watchdog_reports(text: TextFile, times: Times, who: Identity) -> tuple[list[WatchdogReport], int]:
    """(the reports of one file, how many could not be given to a rank)."""
    found: list[WatchdogReport] = []
    lost = 0
    for draft in text.torch.reports:
        rank = text.writers.rank_of(draft.tag, draft.stream, text.rank)
        if rank is None:
            rank = draft.group_rank
        if rank is None or (who.world_size is not None and rank >= who.world_size):
            lost += 1
            continue
        found.append(
            WatchdogReport(
                rank=rank,
                kind=draft.kind,
                source=text.torch.source(draft.number),
                at_ns=times.ns(draft.at),
                group_name=draft.group_name,
                group_desc=draft.group_desc,
                seq=draft.seq,
                operation=draft.operation,
                numel_in=draft.numel_in,
                numel_out=draft.numel_out,
                timeout_ms=draft.timeout_ms,
                elapsed_ms=draft.elapsed_ms,
                last_enqueued=draft.last_enqueued,
                last_completed=draft.last_completed,
                error=draft.error,
                frames=tuple(draft.frames),
                signalled_by=draft.signalled_by,
            )
        )
    for traceback in text.torch.tracebacks:
        report = _gloo_report(traceback, _raised_by(traceback, text), text, times)
        if report is not None:
            found.append(report)
    return found, lost


def _gloo_report(traceback: Traceback, rank: int | None, text: TextFile, times: Times) -> WatchdogReport | None:
    """Gloo has no watchdog: the collective that timed out, or whose peer went away, raises in the caller."""
    limit = gloo_timeout(traceback.message)
    closed = _peer_is_gone(traceback)
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


def _peer_is_gone(traceback: Traceback) -> bool:
    return "gloo" in traceback.message and read_warning(traceback.message).kind == "connection_closed"


def _called_operation(inner: Sequence[Frame]) -> str | None:
    """The collective's name by the innermost function of torch.distributed that is not a wrapper."""
    for frame in inner:
        if frame.filename.endswith("distributed_c10d.py") and not frame.name.startswith("_"):
            return {"all_gather_into_tensor": "_all_gather_base", "reduce_scatter_tensor": "_reduce_scatter_base"}.get(
                frame.name, frame.name.removesuffix("_single")
            )
    return None


def python_errors(text: TextFile, times: Times, who: Identity) -> list[PythonError]:
    """Exceptions of one file, with those that were logged without a traceback."""
    found: list[PythonError] = []
    for traceback in text.torch.tracebacks:
        rank = _raised_by(traceback, text)
        node = _node(who, rank, text)
        found.append(_python_error(traceback, rank, node, text.file, times.ns(traceback.at_ns)))
    for note in text.torch.out_of_memory:
        rank = text.writers.rank_of(note.tag, note.stream, text.rank)
        source = text.torch.source(note.number)
        at_ns = times.ns(note.at)
        found.append(PythonError(rank, "torch.OutOfMemoryError", note.text, (), source, at_ns, _node(who, rank, text)))
    for note in text.torch.fatal_errors:
        rank = text.writers.rank_of(note.tag, note.stream, text.rank)
        found.append(
            PythonError(
                rank,
                "Fatal Python error",
                note.text,
                _crash_frames(text, note.number),
                text.torch.source(note.number),
                times.ns(note.at),
                _node(who, rank, text),
                # SIGABRT is how PyTorch's watchdog ends a process, SIGTERM how a launcher does
                consequence=note.text.startswith(("Aborted", "Terminated")),
            )
        )
    return found


def _raised_by(traceback: Traceback, text: TextFile) -> int | None:
    """The rank of a traceback: torchrun's summary says whose it quotes, otherwise the line's writer."""
    quoted = text.launcher.traceback_ranks.get(traceback.number)
    return quoted if quoted is not None else text.writers.rank_of(traceback.tag, traceback.stream, text.rank)


def _crash_frames(text: TextFile, number: int) -> tuple[Frame, ...]:
    """The crashed thread's frames that faulthandler printed under the error, outermost first."""
    for capture in text.stacks.captures:
        if number < capture.number <= number + 4:
            thread = next((t for t in capture.threads if t.current), capture.threads[0])
            return tuple(reversed(thread.frames))
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
    )


def _node(who: Identity, rank: int | None, text: TextFile) -> str | None:
    return who.nodes.get(rank, text.node) if rank is not None else text.node


def error_file(found: ErrorFile, file: str, node: str | None, parts: tuple[str, ...], who: Identity) -> PythonError:
    """torchrun's error file; its rank is in its name, that of the log beside it, or follows from its local rank."""
    rank = rank_in_path(parts)
    if rank is None:
        rank = who.by_directory.get(parts[:-1])
    if rank is None and found.local_rank is not None:
        rank = who.by_local_rank.get((short_name(node or ""), found.local_rank))
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


def distinct(reports: Iterable[WatchdogReport]) -> list[WatchdogReport]:
    """Each report once: the same lines often lie in a rank's own log and in its node's."""
    kept: dict[tuple[object, ...], WatchdogReport] = {}
    for report in sorted(reports, key=lambda r: (r.source.file, line_of(r.source))):
        said = (report.kind, report.group_name, report.seq, report.operation, report.at_ns, report.elapsed_ms)
        kept.setdefault((report.rank, *said, report.last_enqueued, report.signalled_by, report.error), report)
    return list(kept.values())


# ---- NCCL -----------------------------------------------------------------------------------------------------------


def communicators(who: Identity, processes: Mapping[tuple[str, int], nccl_logs.Process]) -> list[Communicator]:
    """Every process's part of every communicator, with its edges in ranks of the job."""
    found: list[Communicator] = []
    for (host, pid), process in sorted(processes.items()):
        rank = who.rank_of(host, pid)
        node = who.nodes.get(rank, host) if rank is not None else host
        for comm in process.comms:
            members = who.members.get(comm.comm_id or "", {})
            found.append(
                Communicator(
                    comm_id=comm.comm_id or "",
                    rank_in_comm=comm.rank,
                    size=comm.size,
                    node=node,
                    pid=pid,
                    rank=rank,
                    gpu=comm.gpu,
                    cuda_device=comm.cuda_device,
                    completed=comm.completed,
                    split=comm.split,
                    started_at_ns=comm.started_at_ns,
                    rings=comm.rings,
                    trees=comm.trees,
                    edges=tuple(_edge(channel, members, process) for channel in comm.channels),
                    source=comm.source,
                )
            )
    return found


def _edge(channel: nccl_logs.Channel, members: Mapping[int, int], process: nccl_logs.Process) -> Edge:
    return Edge(
        channel=channel.channel,
        sender=members.get(channel.sender),
        receiver=members.get(channel.receiver),
        transport=channel.transport,
        nic=process.device(channel),
        side=channel.side,
        source=channel.source,
    )


def transport_events(
    who: Identity,
    processes: Mapping[tuple[str, int], nccl_logs.Process],
    texts: Iterable[TextFile],
    known: Sequence[Communicator],
    times: Times,
) -> list[TransportEvent]:
    """NCCL's warnings, and those that only PyTorch's log quotes."""
    found: list[TransportEvent] = []
    quoted: set[tuple[int | None, str]] = set()
    for (host, pid), process in sorted(processes.items()):
        rank = who.rank_of(host, pid)
        node = who.nodes.get(rank, host) if rank is not None else host
        for warning in {(w.text, w.at_ns): w for w in reversed(process.warnings)}.values():
            quoted.add((rank, warning.text))
            found.append(_event(warning.text, warning.source, rank, node, pid, warning.at_ns))
    for text in texts:
        for draft in text.torch.reports:
            rank = text.writers.rank_of(draft.tag, draft.stream, text.rank)
            if draft.last_error and (rank, draft.last_error) not in quoted:
                quoted.add((rank, draft.last_error))
                source = text.torch.source(draft.number)
                found.append(_event(draft.last_error, source, rank, _node(who, rank, text), None, times.ns(draft.at)))
        for traceback in text.torch.tracebacks:
            message = traceback.message.split("\n", 1)[0]
            rank = _raised_by(traceback, text)
            if _peer_is_gone(traceback) and (rank, message) not in quoted:
                quoted.add((rank, message))
                source = text.torch.source(traceback.number)
                found.append(_event(message, source, rank, _node(who, rank, text), None, times.ns(traceback.at_ns)))
    ends: dict[int, set[int]] = {}
    for comm in known:
        if comm.rank is not None:
            over_network = (edge for edge in comm.edges if edge.transport.startswith("NET/"))
            ends.setdefault(comm.rank, set()).update(
                end for edge in over_network for end in (edge.sender, edge.receiver) if end is not None
            )
    return [_with_peer(event, who, ends) for event in found]


def _event(
    text: str, source: Source, rank: int | None, node: str | None, pid: int | None, at_ns: int | None
) -> TransportEvent:
    warned = read_warning(text)
    return TransportEvent(
        kind=warned.kind,
        text=text,
        source=source,
        rank=rank,
        node=node,
        pid=pid,
        at_ns=at_ns,
        peer_address=warned.peer_address,
        hca=warned.hca,
        port=warned.port,
        status=warned.status,
        status_name=warned.status_name,
        fatal=warned.fatal,
    )


def _with_peer(event: TransportEvent, who: Identity, ends: Mapping[int, set[int]]) -> TransportEvent:
    """The peer's node by its address; its rank where only one on that node can be meant, `ends` being neighbours."""
    address = address_host(event.peer_address)
    if address is None:
        return event
    node = who.addresses.get(address)
    if node is None and short_name(address) in who.hosts:
        node = who.hosts[short_name(address)]
    if node is None:
        return event
    node = who.hosts.get(short_name(node), node)
    there = {rank for rank, name in who.nodes.items() if name == node and rank != event.rank}
    neighbours = ends.get(event.rank, set()) & there if event.rank is not None else set()
    candidates = neighbours or there
    return replace(event, peer_node=node, peer_rank=next(iter(candidates)) if len(candidates) == 1 else None)


def ras_reports(answers: Sequence[ras.Answer], who: Identity) -> tuple[list[RasReport], list[Gap]]:
    """(all communicators that RAS spoke of, with ranks of the job; answers of other jobs, left out).

    The text form is used where there is no JSON.
    """
    own = {id(report) for report in who.reports}
    in_json = {report.comm_id for answer in answers if answer.is_json for report in answer.reports}
    found: list[RasReport] = []
    foreign: list[Gap] = []
    for answer in answers:
        for report in answer.reports:
            if id(report) not in own:
                where = Source(report.source.file)
                foreign.append(Gap("NCCL RAS answer", "it is about another job on the same node", source=where))
                continue
            if not answer.is_json and report.comm_id in in_json:
                continue
            members = who.members.get(report.comm_id, {})
            alike = report.size == who.world_size
            rows = []
            for row in report.ranks:
                rank = members.get(row.rank)
                if rank is None:
                    rank = who.rank_of(row.host, row.pid)
                if rank is None and alike and not members:
                    rank = row.rank
                rows.append(replace(row, global_rank=rank))
            found.append(replace(report, ranks=tuple(rows)))
    return sorted(found, key=lambda r: (r.at or "", r.source.file, line_of(r.source))), foreign


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
                    main=thread.main,
                    sample=capture.sample,
                    active=thread.active,
                    node=_node(who, rank, text),
                )
            )
    return found


def kernel_messages(text: TextFile, who: Identity) -> list[KernelMessage]:
    found: list[KernelMessage] = []
    for message in text.kernel.messages:
        node = message.node or text.node
        if node is not None:
            node = who.hosts.get(short_name(node), node)
        found.append(replace(message, node=node))
    return found
