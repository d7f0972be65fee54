"""Communicators, transport events and RAS answers in ranks of the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hangscope.model import Communicator, Edge, Gap, NetworkPort, RasReport, Source, TransportEvent
from hangscope.model.times import Clock, LogTimes
from hangscope.model.values import line_of, short_name
from hangscope.reader.join.resolve_ranks import node_of, peer_is_gone, raised_by
from hangscope.reader.join.who_is_who import Identity
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.nccl_logs import Channel, NcclProcess
from hangscope.reader.logs.nccl_warnings import address_host, read_warning
from hangscope.sources.nccl_ras.read import Answer


def communicators(who: Identity, processes: Mapping[tuple[str, int], NcclProcess]) -> list[Communicator]:
    """Every process's part of every communicator, with its edges in ranks of the job."""
    found: list[Communicator] = []
    of_rank = {who.rank_of(*key): process for key, process in sorted(processes.items())}
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
                    edges=tuple(_edge(channel, members, process, of_rank) for channel in comm.channels),
                    source=comm.source,
                )
            )
    return found


def _edge(
    channel: Channel,
    members: Mapping[int, int],
    process: NcclProcess,
    of_rank: Mapping[int | None, NcclProcess],
) -> Edge:
    """With PXN the device is one of the process whose proxy sends, which may list its devices in another order."""
    proxy = members.get(channel.proxy) if channel.proxy is not None else None
    owner = process if proxy is None else of_rank.get(proxy, process)
    return Edge(
        channel=channel.channel,
        sender=members.get(channel.sender),
        receiver=members.get(channel.receiver),
        transport=channel.transport,
        nic=owner.device(channel) or process.device(channel),
        side=channel.side,
        source=channel.source,
        proxy=proxy,
    )


def network_ports(
    who: Identity, processes: Mapping[tuple[str, int], NcclProcess], known: Iterable[NetworkPort]
) -> list[NetworkPort]:
    """The ports that samples of their counters speak of, with what NCCL's logs add, and those that NCCL alone names."""
    found = {(port.node, port.device, port.port): port for port in known}
    for (host, _), process in sorted(processes.items()):
        node = who.hosts.get(short_name(host), host)
        for said in process.devices.ports:
            at = (node, said.name, said.port)
            port = found.get(at, NetworkPort(*at))
            found[at] = replace(
                port,
                layer=port.layer or said.layer,
                lid=said.lid if port.lid is None else port.lid,
                gid=said.gid or port.gid,
                pci=port.pci or said.pci,
            )
    return [found[at] for at in sorted(found, key=str)]


def transport_events(
    who: Identity,
    processes: Mapping[tuple[str, int], NcclProcess],
    texts: Iterable[TextFile],
    known: Sequence[Communicator],
    times: LogTimes,
) -> list[TransportEvent]:
    """NCCL's warnings, and those that only PyTorch's log quotes."""
    found: list[TransportEvent] = []
    for (host, pid), process in sorted(processes.items()):
        rank = who.rank_of(host, pid)
        node = who.nodes.get(rank, host) if rank is not None else host
        for warning in {(w.text, w.at_ns): w for w in reversed(process.warnings)}.values():
            found.append(_event(warning.text, warning.source, rank, node, pid, warning.at_ns))
    known_quotes = {(event.rank, event.text) for event in found}
    for text in texts:
        for quote in _quotes(text):
            if (quote.rank, quote.text) not in known_quotes:
                known_quotes.add((quote.rank, quote.text))
                source = text.torch.source(quote.number)
                at_ns = times.ns(quote.at)
                found.append(_event(quote.text, source, quote.rank, node_of(who, quote.rank, text), None, at_ns))
    ends = _network_ends(known)
    return [_with_peer(event, who, ends) for event in found]


class _Quote(NamedTuple):
    """What a line of PyTorch's log says in NCCL's or Gloo's words."""

    text: str
    rank: int | None
    number: int
    at: Clock | int | None


def _quotes(text: TextFile) -> Iterator[_Quote]:
    for reading in text.torch.reports:
        if reading.last_error:
            rank = text.writers.rank_of(reading.tag, reading.stream, text.rank)
            yield _Quote(reading.last_error, rank, reading.number, reading.at)
    for traceback in text.torch.tracebacks:
        if peer_is_gone(traceback):
            message = traceback.message.split("\n", 1)[0]
            yield _Quote(message, raised_by(traceback, text), traceback.number, traceback.at_ns)


def _network_ends(known: Iterable[Communicator]) -> dict[int, set[int]]:
    """Rank → ranks at both ends of the edges over the network that it logged."""
    ends: dict[int, set[int]] = {}
    for comm in known:
        if comm.rank is not None:
            over_network = (edge for edge in comm.edges if edge.transport.startswith("NET/"))
            ends.setdefault(comm.rank, set()).update(
                end for edge in over_network for end in (edge.sender, edge.receiver) if end is not None
            )
    return ends


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


def ras_reports(answers: Sequence[Answer], who: Identity) -> tuple[list[RasReport], list[Gap]]:
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
            found.append(_in_ranks_of_job(report, who))
    return sorted(found, key=lambda r: (r.at or "", r.source.file, line_of(r.source))), foreign


def _in_ranks_of_job(report: RasReport, who: Identity) -> RasReport:
    members = who.members.get(report.comm_id, {})
    of_all_ranks = report.size == who.world_size
    rows = []
    for row in report.ranks:
        rank = members.get(row.rank)
        if rank is None:
            rank = who.rank_of(row.host, row.pid)
        if rank is None and of_all_ranks and not members:
            rank = row.rank
        rows.append(replace(row, global_rank=rank))
    return replace(report, ranks=tuple(rows))
