"""NCCL's log: which process is which rank of which communicator, on which GPU, over which NIC, and its warnings.

The prefix ``host:pid:tid [device]`` may stand anywhere in a line. It names a process and no rank: ranks come from the
Init lines of the same process. ``Channel`` lines name no communicator; they are given to one by process and order.
Wordings from NCCL 2.18 to 2.30, also where the lines sit inside a rank's own output.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from hangscope.model import Source
from hangscope.model.numbers import hexadecimal, integer
from hangscope.model.times import parse_time
from hangscope.model.values import comm_id, is_loopback
from hangscope.reader.logs.line_writers import Writers
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.logs.nccl_devices import Devices
from hangscope.reader.logs.nccl_hash import split_hash

RECENT = 256
"""Communicators of a process, newest first, that a line without a communicator's name may belong to."""

_HOST = r"(?:\.{2,4}|…|\*{1,12}|<\w[\w -]{0,30}>)[\w.-]{0,250}|[A-Za-z0-9][\w.-]{0,254}"
"""A host's name, also where whoever pasted the log took a part of it away."""
_LINE = re.compile(
    rf"(?<![\w.-])(?P<host>{_HOST}):(?P<pid>\d+):(?P<tid>\d+) (?:\[(?P<dev>-?\d+)\] )?"
    r"(?:(?P<where>[\w./+-]+:\d+) (?:\([^)]*\) )?)?NCCL (?P<level>INFO|WARN) (?P<text>.*)"
)
_VERSION = re.compile(
    r"\b(?:NCCL|RCCL) version (?P<nccl>\d+\.\d+(?:\.\d+)?)\S*?(?:\+(?P<kind>cuda|hip)(?P<cuda>\d+\.\d+))?(?:\s|$)"
)
_INIT = re.compile(
    r"(?:^|\s)(?:ncclComm\w+ )?(?:\[Rank \d+\] )?comm (?P<ptr>0x[0-9a-fA-F]+) rank (?P<rank>\d{1,6}) "
    r"nranks (?P<size>\d{1,6}) cudaDev (?P<dev>-?\d+)(?: nvmlDev -?\d+)?(?: busId (?P<bus>[0-9a-fA-F]+))?"
    r"(?P<rest>.{0,300}?)-\s?Init (?P<phase>START|COMPLETE)"
)
_COMM_ID = re.compile(r"commId (0x[0-9a-fA-F]+)")
_PARENT = re.compile(r"parent (?P<ptr>0x[0-9a-fA-F]+).{0,100}?color (?P<color>-?\d+)")
_HASH = re.compile(r"^0x[0-9a-f]{1,16}$")
_COUNT = re.compile(r"(?:split|child)Count (-?\d+)")
_RING = re.compile(r"^Ring (?P<channel>\d+) : (?P<prev>\d+) -> (?P<me>\d+) -> (?P<next>\d+)")
_TREES = re.compile(r"\[(?P<channel>\d+)\] (?P<down>-?\d+(?:/-?\d+)*)->(?P<me>-?\d+)->(?P<up>-?\d+)")
_CHANNEL = re.compile(
    r"^Channel (?P<channel>\d+)(?:/\d+)? : (?P<from>\d+)\[[0-9a-fA-F]+\] -> (?P<to>\d+)\[[0-9a-fA-F]+\] "
    r"(?:\[(?P<side>send|receive)\] )?via (?P<via>\S.*?)\s*$"
)
_NET = re.compile(r"^NET/(?P<net>.+)/(?P<index>\d+)(?:\((?P<proxy>\d+)\))?(?P<rest>(?:/.*)?)$")
_RCCL_TAIL = re.compile(r"\scomm 0x[0-9a-fA-F]+ nRanks \d+.*$")
_BOOTSTRAP = re.compile(r"^Bootstrap ?: Using (?P<interface>[\w.@-]+):(?P<address>[\w.:%\[\]-]+?)<\d+>")


@dataclass(eq=False)
class Comm:
    """One process's part of one communicator, in the communicator's own ranks."""

    pointer: str
    rank: int
    size: int
    source: Source
    comm_id: str | None = None
    parent: str | None = None
    color: int | None = None
    count: int | None = None
    gpu: str | None = None
    cuda_device: int | None = None
    completed: bool = False
    started_at_ns: int | None = None
    thread: str = ""
    rings: dict[int, tuple[int, int]] = field(default_factory=dict)
    trees: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    channels: list[Channel] = field(default_factory=list)
    connected: set[tuple[int, int, int, str]] = field(default_factory=set)
    """(channel, sender, receiver, side) of every connection that was logged."""

    @property
    def split(self) -> bool:
        return self.parent is not None


@dataclass
class Channel:
    """One connection as one side logged it, in the communicator's own ranks."""

    channel: int
    sender: int
    receiver: int
    transport: str
    side: str
    net: str | None
    device_index: int | None
    source: Source
    proxy: int | None = None
    """The rank whose proxy posts the sends (PXN), where it is not the sender itself."""


@dataclass
class WarnLine:
    """One NCCL WARN of one process."""

    text: str
    source: Source
    at_ns: int | None


@dataclass
class NcclProcess:
    """Everything one process said: its communicators in the order of creation, its network devices, its warnings."""

    host: str
    pid: int
    comms: list[Comm] = field(default_factory=list)
    newest: dict[str, Comm] = field(default_factory=dict)
    """Pointer → the last communicator that had it."""
    started: dict[str, list[Comm]] = field(default_factory=dict)
    """Pointer → communicators that had it and were not seen to be complete."""
    splits: Counter[str | None] = field(default_factory=Counter)
    """Parent → how many communicators were split off it."""
    devices: Devices = field(default_factory=Devices)
    addresses: set[str] = field(default_factory=set)
    warnings: list[WarnLine] = field(default_factory=list)
    first_source: Source | None = None
    tags: set[int] = field(default_factory=set)
    """Ranks that PyTorch's tags or the file put beside this process's lines."""
    stream: str = ""
    """What a launcher put in front of its first line."""

    def device(self, channel: Channel) -> str | None:
        if channel.net is None or channel.device_index is None:
            return None
        return self.devices.name(channel.net, channel.device_index)


class NcclLog:
    """Reads the NCCL lines of one file. `processes` is keyed by (host, pid)."""

    def __init__(self, file: str, writers: Writers) -> None:
        self.file = file
        self.writers = writers
        self.processes: dict[tuple[str, int], NcclProcess] = {}
        self.nccl_version: str | None = None
        self.cuda_version: str | None = None
        self.starts_with_nccl: bool | None = None

    def feed(self, line: Line) -> None:
        text = line.text
        if self.starts_with_nccl is None and text.strip():
            self.starts_with_nccl = "NCCL " in text
        if "CCL " not in text:
            return
        match = _LINE.search(text)
        if match is None:
            self._version(text)
            return
        key = (match["host"], integer(match["pid"]))
        process = self.processes.get(key)
        source = Source(self.file, f"line {line.number}")
        if process is None:
            process = self.processes[key] = NcclProcess(*key, first_source=source, stream=line.stream)
            self.writers.nccl_pids.add(key)
        if line.tag is not None:
            process.tags.add(line.tag)
        at_ns = parse_time(text[: match.start()]) if match.start() else None
        at_ns = line.at_ns if at_ns is None else at_ns
        message = match["text"]
        if match["level"] == "WARN":
            process.warnings.append(WarnLine(message.strip(), source, at_ns))
            return
        self._info(process, message, match["tid"], source, at_ns)

    def _info(self, process: NcclProcess, message: str, thread: str, source: Source, at_ns: int | None) -> None:
        if message.startswith("Channel"):
            if match := _CHANNEL.match(_RCCL_TAIL.sub("", message)):
                self._channel(process, match, thread, source)
        elif message.startswith("Ring "):
            if (match := _RING.match(message)) and (comm := self._building(process, thread, integer(match["me"]))):
                comm.rings[integer(match["channel"])] = (integer(match["prev"]), integer(match["next"]))
        elif message.startswith("Trees "):
            self._trees(process, message, thread)
        elif "Init " in message and (match := _INIT.search(message)):
            self._init(process, match, thread, source, at_ns)
        elif message.startswith("NET/"):
            for address in process.devices.feed(message):
                self._address(process, address)
        elif message.startswith("Bootstrap"):
            if match := _BOOTSTRAP.match(message):
                self._address(process, match["address"])
        elif "CCL version" in message:
            self._version(message)

    # ---- communicators ----

    def _init(self, process: NcclProcess, match: re.Match[str], thread: str, source: Source, at_ns: int | None) -> None:
        pointer = match["ptr"].lower()
        rest = match["rest"]
        done = match["phase"] == "COMPLETE"
        if done and process.started.get(pointer):
            process.started[pointer].pop().completed = True
            return
        ident = _COMM_ID.search(rest)
        comm = Comm(pointer, integer(match["rank"]), integer(match["size"]), source, thread=thread, started_at_ns=at_ns)
        comm.comm_id = comm_id(ident[1]) if ident else None
        comm.completed = done
        comm.gpu = bus_id(match["bus"]) if match["bus"] else None
        comm.cuda_device = integer(match["dev"])
        if parent := _PARENT.search(rest):
            comm.color = integer(parent["color"])
            count = _COUNT.search(rest)
            comm.count = integer(count[1]) if count else None
            above = process.newest.get(parent["ptr"].lower())
            comm.parent = above.comm_id if above is not None and above.comm_id else f"pointer {parent['ptr'].lower()}"
        if comm.comm_id is None:
            comm.comm_id = _made_up_id(process, comm)
        process.comms.append(comm)
        process.newest[pointer] = comm
        process.splits[comm.parent] += 1
        if not done:
            process.started.setdefault(pointer, []).append(comm)

    def _building(self, process: NcclProcess, thread: str, me: int) -> Comm | None:
        """The communicator that this thread of the process is setting up; else the newest in which it has that rank."""
        fitting = [comm for comm in process.comms[-RECENT:] if comm.rank == me]
        return next(
            (c for c in reversed(fitting) if c.thread == thread and not c.completed),
            next((c for c in reversed(fitting) if not c.completed), fitting[-1] if fitting else None),
        )

    def _trees(self, process: NcclProcess, message: str, thread: str) -> None:
        for match in _TREES.finditer(message):
            comm = self._building(process, thread, integer(match["me"]))
            if comm is not None:
                down = tuple(rank for part in match["down"].split("/") if (rank := integer(part)) >= 0)
                comm.trees[integer(match["channel"])] = (integer(match["up"]), down)

    def _channel(self, process: NcclProcess, match: re.Match[str], thread: str, source: Source) -> None:
        channel = integer(match["channel"])
        sender = integer(match["from"])
        receiver = integer(match["to"])
        via = match["via"]
        net = _NET.match(via)
        side = match["side"] or "send"
        remote_proxy = net is not None and net["proxy"] is not None
        comm = self._owner(process, channel, sender, receiver, side, thread, remote_proxy)
        if comm is None:
            return
        transport = f"NET/{net['net']}{net['rest']}" if net else via.split("[", 1)[0].strip()
        comm.connected.add((channel, sender, receiver, side))
        comm.channels.append(
            Channel(
                channel,
                sender,
                receiver,
                transport,
                side,
                net["net"] if net else None,
                integer(net["index"]) if net else None,
                source,
                integer(net["proxy"]) if net and net["proxy"] else None,
            )
        )

    def _owner(
        self, process: NcclProcess, channel: int, sender: int, receiver: int, side: str, thread: str, remote_proxy: bool
    ) -> Comm | None:
        """Which communicator a Channel line belongs to. Since NCCL 2.22 it may come long after Init COMPLETE.

        First the one that this thread is setting up, then the one whose ring or tree has that neighbour and has not
        logged this connection yet, then the newest in which this process has that rank.
        """
        mine = sender if side == "send" else receiver
        fitting = [
            comm
            for comm in process.comms[-RECENT:]
            if max(sender, receiver) < comm.size and (comm.rank == mine or remote_proxy)
        ]
        if not fitting:
            return None
        building = [comm for comm in fitting if not comm.completed and comm.thread == thread]
        if building:
            return building[-1]

        def weight(numbered: tuple[int, Comm]) -> tuple[bool, bool, int]:
            order, comm = numbered
            known = (channel, sender, receiver, side) in comm.connected
            ring = comm.rings.get(channel)
            up, down = comm.trees.get(channel, (-1, ()))
            other = receiver if side == "send" else sender
            neighbour = (ring is not None and other in ring) or other == up or other in down
            return (not known, neighbour, order)

        return max(enumerate(fitting), key=weight)[1]

    # ---- devices, addresses, versions ----

    def _address(self, process: NcclProcess, address: str) -> None:
        host = address.strip("[]").split("%")[0]
        if not is_loopback(host):
            process.addresses.add(host)

    def _version(self, text: str) -> None:
        if self.nccl_version is None and (match := _VERSION.search(text)):
            self.nccl_version = match["nccl"]
            if match["kind"] == "cuda":
                self.cuda_version = match["cuda"]

    def finish(self) -> None:
        for process in self.processes.values():
            labelled = self.writers.rank_of(None, process.stream, None) if process.stream else None
            if not process.tags and labelled is not None:
                process.tags.add(labelled)
            if not process.tags and len(self.writers.tags) == 1 and not self.writers.shared:
                process.tags.update(self.writers.tags)


def bus_id(packed: str) -> str:
    """NCCL's packed bus id as a PCI address: ``9b000`` is ``0000:9b:00.0``."""
    value = hexadecimal(packed)
    return f"{value >> 20:04x}:{(value >> 12) & 0xFF:02x}:{(value >> 4) & 0xFF:02x}.{value & 0xF:x}"


def _made_up_id(process: NcclProcess, comm: Comm) -> str:
    """The identity of a communicator whose line has none (NCCL ≥2.23 leaves it out for splits).

    All members of one split share parent, colour and the parent's count of splits, and NCCL's own hash follows from
    these. Without a count (2.23) the ordinal of the split on this process stands in, which is the same on all members
    because a split is collective.
    """
    if comm.parent is None:
        return f"{process.host}:{process.pid}:{comm.pointer}"
    if comm.count is not None and comm.color is not None and _HASH.match(comm.parent):
        return f"0x{split_hash(hexadecimal(comm.parent), comm.count, comm.color):x}"
    count = comm.count
    if count is None:
        count = process.splits[comm.parent]
    return f"{comm.parent}/{count}/{comm.color}"
