"""From two ranks to the two ports between them, and what these ports show.

A port is suspect where counters that a link in order does not raise rose on it and hardly elsewhere, or where it is not
up. Counters that rose everywhere alike tell of load or of the fabric, and single no port out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from hangscope.diagnosis.hardware.counter_meaning import counter_text, gravity, is_fault, is_much, over_limit, span
from hangscope.diagnosis.hardware.nccl_rings import Way
from hangscope.diagnosis.verdict import Finding
from hangscope.model import CounterChange, Edge, Job, KernelMessage, NetworkPort, Source

_TIMES = 10
"""A rise is an outlier where it is so many times what half of all ports have at most."""
_SHOWN = 3
_UP = ("ACTIVE", "")


class Bearing(Enum):
    """What the ports say about a connection."""

    HERE = auto()
    """Only its own ports are suspect."""
    ELSEWHERE = auto()
    """Both ends were sampled and are quiet, while another port of the job is suspect."""
    UNCLEAR = auto()
    """Nothing is suspect, both this and others are, or an end's counters are not known."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection. `by` is the rank whose proxy sends in the rank's place (PXN)."""

    rank: int
    node: str | None
    nic: str | None
    ports: tuple[NetworkPort, ...] = ()
    by: int | None = None

    @property
    def sampled(self) -> bool:
        return bool(self.ports) and all(port.sampled for port in self.ports)


@dataclass(frozen=True, slots=True)
class Path:
    """A connection with its ports."""

    way: Way
    sending: End
    receiving: End

    def __str__(self) -> str:
        ends = (", ".join(part for part in (end.node, end.nic) if part) for end in (self.sending, self.receiving))
        one, other = (f" ({text})" if text else "" for text in ends)
        return f"from rank {self.way.sender}{one} to rank {self.way.receiver}{other}"

    @property
    def ports(self) -> tuple[NetworkPort, ...]:
        return (*self.sending.ports, *self.receiving.ports)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Ports that are outliers, the ranks whose traffic they carry, and a connection that runs over them."""

    ports: tuple[NetworkPort, ...]
    ranks: tuple[int, ...]
    path: Path
    only: bool
    """Whether no other connection does."""

    @property
    def where(self) -> str:
        return " and ".join(f"port {port} of {port.node}" for port in self.ports)


class Ports:
    """All ports of a job and what moved on them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._of_node: dict[str, list[NetworkPort]] = {}
        for port in job.facts.ports:
            self._of_node.setdefault(port.node, []).append(port)
        self._changes: dict[tuple[str, str, int | None], list[CounterChange]] = {}
        for change in job.facts.counters:
            self._changes.setdefault((change.node, change.device, change.port), []).append(change)
        self._edges: dict[tuple[int | None, int | None], list[Edge]] = {}
        used: dict[int, set[str]] = {}
        for part in job.facts.communicators:
            for edge in part.edges:
                self._edges.setdefault((edge.sender, edge.receiver), []).append(edge)
                if edge.nic is not None and part.rank is not None:
                    used.setdefault(part.rank, set()).update(edge.nic.split("+"))
        self._used: dict[str, set[str] | None] = {}
        for rank, node in job.nodes.items():
            known = self._used.get(node, set())
            self._used[node] = known | used[rank] if known is not None and rank in used else None
        self._usual: dict[tuple[str, bool], int | None] = {}
        self.suspects = tuple(port for port in job.facts.ports if self._is_suspect(port))
        """Ports that NCCL uses, or may use where a node has no log of it."""

    # ---- counters ----------------------------------------------------------------------------------------------------

    def changes(self, port: NetworkPort) -> list[CounterChange]:
        """What rose on a port, and on its interface where it is RoCE, gravest first."""
        own = self._changes.get((port.node, port.device, port.port), [])
        interface = self._changes.get((port.node, port.interface, None), []) if port.interface else []
        return sorted((c for c in (*own, *interface) if c.rise), key=gravity)

    def faults(self, port: NetworkPort) -> list[CounterChange]:
        return [change for change in self.changes(port) if is_fault(change)]

    def _is_suspect(self, port: NetworkPort) -> bool:
        used = self._used.get(port.node)
        serves = port.port is not None if not used else bool({str(port), port.device} & used)
        return serves and (_is_down(port) or any(map(self._is_outlier, self.faults(port))))

    def _is_outlier(self, change: CounterChange) -> bool:
        """Above what half of all ports have. Of one port alone, only a published limit says that it is much."""
        usual = self._usual_rise(change.counter, change.port is None)
        return is_much(change) and (over_limit(change) if usual is None else change.rise >= _TIMES * usual)

    def _usual_rise(self, counter: str, interface: bool) -> int | None:
        key = (counter, interface)
        if key not in self._usual:
            alike = [(p.node, p.device, p.port) for p in self.job.facts.ports if p.sampled]
            rises = sorted(
                sum(c.rise for c in self._changes.get(at, ()) if c.counter == counter)
                for at in alike
                if (at[2] is None) is interface
            )
            self._usual[key] = rises[(len(rises) - 1) // 2] if len(rises) > 1 else None
        return self._usual[key]

    # ---- connections -------------------------------------------------------------------------------------------------

    def path(self, way: Way) -> Path:
        """The connection with the NICs at both ends, as far as the end's own log names them."""
        logged = self._edges.get((way.sender, way.receiver), [])
        logged = [e for e in logged if e.channel == way.channel] or logged
        ends = (
            self._end(way.sender, [e for e in logged if e.side == "send"]),
            self._end(way.receiver, [e for e in logged if e.side == "receive"]),
        )
        return Path(way, *ends)

    def _end(self, rank: int, logged: Sequence[Edge]) -> End:
        newest = next((edge for edge in reversed(logged) if edge.nic), None)
        node = self.job.nodes.get(rank)
        if newest is None or newest.nic is None:
            return End(rank, node, None)
        by = newest.proxy if newest.proxy != rank else None
        ports = tuple(port for name in newest.nic.split("+") for port in self._named(node, name))
        return End(rank, node, newest.nic, ports, by)

    def _named(self, node: str | None, name: str) -> list[NetworkPort]:
        """The ports of that name; both of an adapter with two where the log names the adapter alone."""
        of_node = self._of_node.get(node or "", [])
        return [port for port in of_node if name in (str(port), port.device)]

    def bearing(self, path: Path) -> Bearing:
        here = [port for port in self.suspects if port in path.ports]
        others = [port for port in self.suspects if port not in path.ports and not _is_behind(port, path)]
        if here and not others:
            return Bearing.HERE
        quiet = not here and path.sending.sampled and path.receiving.sampled
        return Bearing.ELSEWHERE if others and quiet else Bearing.UNCLEAR

    def likeliest(self, ways: Sequence[Way], others: Sequence[Way] = ()) -> tuple[Path | None, bool]:
        """(the connection, whether it is the only one or the ports single it out); none where several fit alike.

        Ways of one pair over several channels are one connection: the channel whose ports are suspect stands for it.
        `others` count only where the ports point at one of them, and otherwise keep the answer from being the only one.
        """
        paths = [self.path(way) for way in (*ways, *others)]
        marked = [path for path in paths if any(port in path.ports for port in self.suspects)]
        if len({path.way[:2] for path in marked}) == 1 and self.bearing(marked[0]) is Bearing.HERE:
            return marked[0], True
        first = paths[: len(ways)]
        first = [path for path in first if path.sending.nic or path.receiving.nic] or first
        if len({path.way[:2] for path in first}) != 1:
            return None, False
        return first[0], len({path.way[:2] for path in paths}) == 1

    def between(self, one: int, other: int) -> Path:
        """The connection of a pair, in the direction whose ports are suspect, else that whose NICs are known."""
        paths = [self.path(Way(one, other)), self.path(Way(other, one))]
        return min(paths, key=lambda p: (self.bearing(p) is not Bearing.HERE, not (p.sending.nic and p.receiving.nic)))

    def over(self, adapter: str | None, rank: int, peer: int) -> Way:
        """The connection of a rank with a peer over that adapter of the rank's, as the log has it.

        Who warns of a connection may be its receiving end: where NCCL made only the one from the peer, it is that one.
        """
        for way, side in ((Way(rank, peer), "send"), (Way(peer, rank), "receive")):
            logged = [edge for edge in self._edges.get(way[:2], []) if edge.nic]
            own = [edge for edge in logged if edge.side == side]
            fits = [e for e in own if adapter in {part.partition(":")[0] for part in (e.nic or "").split("+")}]
            if fits:
                return way._replace(channel=fits[0].channel)
            if logged:
                return way
        return Way(rank, peer)

    def trouble(self, ranks: Iterable[int]) -> Trouble | None:
        """The one port whose counters are outliers, or both of one connection, among those that these ranks use."""
        if not self.suspects:
            return None
        found = self._over_all_suspects(set(ranks))
        if not found or (len(self.suspects) > 1 and len(found) > 1):
            return None
        ends = [end for path in found for end in (path.sending, path.receiving)]
        carried = {end.rank for end in ends if set(end.ports) & set(self.suspects)}
        return Trouble(self.suspects, tuple(sorted(carried)), found[0], only=len(found) == 1)

    def _over_all_suspects(self, members: set[int]) -> list[Path]:
        """The connections between some ranks that run over every suspect port, one of each pair."""
        found: dict[tuple[int, int], Path] = {}
        nodes = {port.node for port in self.suspects}
        for edge in (edge for part in self.job.facts.communicators if part.node in nodes for edge in part.edges):
            if edge.sender is None or edge.receiver is None or not {edge.sender, edge.receiver} <= members:
                continue
            path = self.path(Way(edge.sender, edge.receiver, edge.channel))
            if all(port in path.ports for port in self.suspects):
                found.setdefault(path.way[:2], path)
        return list(found.values())

    # ---- in words ----------------------------------------------------------------------------------------------------

    def shows(self, path: Path | None) -> list[Finding]:
        """What the counters, the state and the kernel say about both ends, and about other ports that might mislead."""
        ends = (path.sending, path.receiving) if path else ()
        found = [finding for end in ends for finding in self._end_shows(end)]
        others = [port for port in self.suspects if path is None or not (port in path.ports or _is_behind(port, path))]
        for port in others[:_SHOWN]:
            moved = self.faults(port)
            what = ", ".join(counter_text(change) for change in moved[:_SHOWN]) or f"it was {port.state} at the stall"
            unknown = any(end.node == port.node and not end.ports for end in ends)
            where = ", and no log says whether this link uses it" if unknown else ", which this link does not use"
            name = f"port {port} of {port.node}{_address(port)}{where if path else ''}"
            found.append(Finding(f"{name}, {span(moved)}: {what}", _sources(moved)))
        return found

    def _end_shows(self, end: End) -> Iterable[Finding]:
        if end.by is not None:
            yield Finding(f"rank {end.rank} sends by the proxy of rank {end.by} over {end.nic} (PXN)")
        for port in end.ports:
            moved = self.changes(port)
            name = f"port {port} of {port.node}{_address(port)}"
            if _is_down(port):
                yield Finding(f"{name} was {port.state} at the stall")
            if moved and any(map(is_fault, moved)):
                what = ", ".join(counter_text(change) for change in moved[:_SHOWN])
                alike = "" if port in self.suspects else "; that is low, or no higher than elsewhere"
                yield Finding(f"{name}, {span(moved)}: {what}{alike}", _sources(moved))
            elif port.sampled and not _is_down(port):
                load = "".join(f"; {counter_text(change)}" for change in moved if gravity(change) < _KNOWN)
                yield Finding(f"{name}: no error counter rose since the job started{load}", _sources(moved))
            elif port.port is not None and not port.sampled:
                yield Finding(f"{name}: its counters were not read both at the start and at the stall")
            yield from (Finding(f"kernel of {m.node}: {m.text[:160]}", (m.source,)) for m in self._kernel(port)[:2])

    def _kernel(self, port: NetworkPort) -> list[KernelMessage]:
        names = {port.device, port.interface} - {None}
        return [
            message
            for message in self.job.facts.kernel
            if message.kind in ("link", "nic") and message.node == port.node
            if (port.pci is not None and message.pci == port.pci) or message.device in names
        ]

    def evidence(self, path: Path) -> str:
        """Both ports and what rose on them, in one line."""
        ends = []
        for end in (path.sending, path.receiving):
            for port in end.ports:
                moved = [counter_text(change, meaning=False) for change in self.faults(port)[:_SHOWN]]
                ends.append(f"{port} of {port.node}{_address(port)}{': ' if moved else ''}{', '.join(moved)}")
        return "; ".join(ends)


_KNOWN = gravity(CounterChange("", "", None, "", 0, 0, Source("")))


def _is_down(port: NetworkPort) -> bool:
    return (port.state or "") not in _UP


def _is_behind(port: NetworkPort, path: Path) -> bool:
    """Whether it is the network interface of one of the path's own ports."""
    return any(own.node == port.node and own.interface == port.device for own in path.ports)


def _address(port: NetworkPort) -> str:
    known = [f"LID {port.lid}" if port.lid else "", f"GID {port.gid}" if port.gid else ""]
    text = ", ".join(part for part in known if part)
    return f" ({text})" if text else ""


def _sources(changes: Sequence[CounterChange]) -> tuple[Source, ...]:
    return tuple(dict.fromkeys(change.source for change in changes))[:1]
