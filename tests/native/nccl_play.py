"""A small model of NCCL's kernels and proxies: what each rank's profiler plugin would be told, up to where it stands.

Ranks run operations of rings, trees and point-to-point batches over several channels. A kernel works through its
receives and sends in order; a proxy posts up to eight steps, as NCCL's net.cc does. One thing can go wrong: a link that
stops, a GPU that never runs its kernel, a rank that never launches, a process that stops. The order in which ranks get
on is drawn from a seed. The result is one script a rank for `drive`, through the real plugin.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

WINDOW = 8
SEND_GPU, SEND, RECV, FLUSH, RECV_GPU, PEER = 8, 9, 10, 11, 12, 20


@dataclass
class Fault:
    kind: str = "none"
    """link, lost (the sender counts it as sent), gpu, absent, frozen"""
    rank: int = -1
    """The victim, or the sender of the link."""
    to: int = -1
    operation: int = 0
    """Which operation of the program it hits."""
    step: int = 0


@dataclass
class Operation:
    """`shape`: ring, chain (a ring broadcast), tree, alltoall, pairs (each rank with the next), of some ranks."""

    shape: str
    members: list[int]
    channels: int = 2
    steps: int = 6
    comm: int = 0


@dataclass
class Half:
    """One end of a connection, for one operation."""

    steps: int
    posted: int = 0
    sent: int = 0
    arrived: int = 0
    done: int = 0
    filled: int = 0


@dataclass
class Wire:
    """One operation's connection on one channel."""

    sender: int
    receiver: int
    channel: int
    steps: int
    send: Half = field(init=False)
    recv: Half = field(init=False)
    names: dict[int, int] = field(default_factory=dict)
    no_credit_for: int = -1

    def __post_init__(self) -> None:
        self.send, self.recv = Half(self.steps), Half(self.steps)


Act = tuple[str, Wire, int]


def wires_and_kernels(operation: Operation) -> tuple[list[Wire], dict[int, list[list[Act]]]]:
    """The connections, and for each rank the threads of its kernel: lists of receives and sends, in order."""
    wires: list[Wire] = []
    threads: dict[int, list[list[Act]]] = {rank: [] for rank in operation.members}
    for channel in range(operation.channels):
        {"ring": _ring, "chain": _chain, "tree": _tree, "alltoall": _pairs, "pairs": _pairs}[operation.shape](
            operation, channel, wires, threads
        )
    return wires, threads


def _ring(operation: Operation, channel: int, wires: list[Wire], threads: dict[int, list[list[Act]]]) -> None:
    order = operation.members if channel % 2 == 0 else operation.members[::-1]
    after = {rank: Wire(rank, order[(i + 1) % len(order)], channel, operation.steps) for i, rank in enumerate(order)}
    wires.extend(after.values())
    for i, rank in enumerate(order):
        before = after[order[i - 1]]
        acts: list[Act] = []
        for step in range(operation.steps):
            acts += [("send", after[rank], step), ("recv", before, step)]
        threads[rank].append(acts)


def _chain(operation: Operation, channel: int, wires: list[Wire], threads: dict[int, list[list[Act]]]) -> None:
    order = operation.members if channel % 2 == 0 else [operation.members[0], *operation.members[:0:-1]]
    links = [Wire(a, b, channel, operation.steps) for a, b in pairwise(order)]
    wires.extend(links)
    for i, rank in enumerate(order):
        acts: list[Act] = []
        for step in range(operation.steps):
            if i > 0:
                acts.append(("recv", links[i - 1], step))
            if i < len(links):
                acts.append(("send", links[i], step))
        threads[rank].append(acts)


def _tree(operation: Operation, channel: int, wires: list[Wire], threads: dict[int, list[list[Act]]]) -> None:
    order = operation.members if channel % 2 == 0 else operation.members[::-1]
    up = {order[i]: Wire(order[i], order[(i - 1) // 2], channel, operation.steps) for i in range(1, len(order))}
    down = {order[i]: Wire(order[(i - 1) // 2], order[i], channel, operation.steps) for i in range(1, len(order))}
    wires += [*up.values(), *down.values()]
    for i, rank in enumerate(order):
        children = [order[c] for c in (2 * i + 1, 2 * i + 2) if c < len(order)]
        rising: list[Act] = []
        falling: list[Act] = []
        for step in range(operation.steps):
            rising += [("recv", up[child], step) for child in children]
            if i > 0:
                rising.append(("send", up[rank], step))
                falling.append(("recv", down[rank], step))
            (falling if i > 0 else rising).extend(("send", down[child], step) for child in children)
        threads[rank] += [rising, falling]


def _pairs(operation: Operation, channel: int, wires: list[Wire], threads: dict[int, list[list[Act]]]) -> None:
    members = operation.members
    for i, sender in enumerate(members):
        for j, receiver in enumerate(members):
            near = operation.shape == "pairs" and (i + 1) % len(members) == j and channel == 0
            if i != j and (near or (operation.shape == "alltoall" and (j - i) % operation.channels == channel)):
                wire = Wire(sender, receiver, channel, operation.steps)
                wires.append(wire)
                threads[sender].append([("send", wire, step) for step in range(operation.steps)])
                threads[receiver].append([("recv", wire, step) for step in range(operation.steps)])


class Play:
    """The whole job. `network` is "socket", which takes what a sender has without asking, or "ib", which asks first."""

    def __init__(self, operations: list[Operation], fault: Fault, network: str, seed: int) -> None:
        self.operations, self.fault, self.network = operations, fault, network
        self.random = random.Random(seed)
        self.ranks = sorted({rank for operation in operations for rank in operation.members})
        self.lines: dict[int, list[str]] = {rank: [] for rank in self.ranks}
        self.names = dict.fromkeys(self.ranks, 0)
        self.shapes = [wires_and_kernels(operation) for operation in operations]
        self.launched: dict[int, int] = dict.fromkeys(self.ranks, 0)
        self.cursor: dict[tuple[int, int], list[int]] = {}
        self.frozen: set[int] = set()
        self.acts = 0
        self.used: set[tuple[int, int]] = set()

    def run(self) -> dict[int, str]:
        for rank in self.ranks:
            for comm in sorted({operation.comm for operation in self.operations}):
                members = next(o.members for o in self.operations if o.comm == comm)
                if rank in members:
                    self.say(rank, f"comm {comm} {0xC0 + comm:x} 2 {len(members)} {members.index(rank)}")
        sources = self.sources()
        while True:
            self.random.shuffle(sources)
            moves = next((found for source in sources if (found := list(source()))), None)
            if not moves:
                break
            self.random.choice(moves)()
            self.acts += 1
            if self.fault.kind == "frozen" and self.acts == 40 + self.fault.step * 20:
                self.frozen.add(self.fault.rank)
        return {rank: "\n".join(lines) + "\n" for rank, lines in self.lines.items()}

    def say(self, rank: int, line: str) -> None:
        self.lines[rank].append(line)

    # ---- everything that could happen next ---------------------------------------------------------------------------

    def sources(self) -> list[Callable[[], Iterator[Callable[[], None]]]]:
        """Who can do something: hosts, kernels, and both proxies of each connection."""
        found: list[Callable[[], Iterator[Callable[[], None]]]] = [partial(self._host, rank) for rank in self.ranks]
        for number, (wires, threads) in enumerate(self.shapes):
            found += [partial(self._gpu, rank, number, threads[rank]) for rank in threads]
            for wire in wires:
                found += [partial(self._sending, number, wire), partial(self._receiving, number, wire)]
        return found

    def _host(self, rank: int) -> Iterator[Callable[[], None]]:
        number = self.launched[rank]
        while number < len(self.operations) and rank not in self.operations[number].members:
            number += 1
        away = self.fault.kind == "absent" and self.fault.rank == rank and number >= self.fault.operation
        if number < len(self.operations) and not away and rank not in self.frozen:
            yield lambda: self.launch(rank, number)

    def _gpu(self, rank: int, number: int, threads: list[list[Act]]) -> Iterator[Callable[[], None]]:
        if rank not in self.frozen and self.launched[rank] > number and self._turn(rank, number):
            yield from self._kernel(rank, number, threads)

    def launch(self, rank: int, number: int) -> None:
        operation = self.operations[number]
        self.launched[rank] = number + 1
        p2p = operation.shape in ("alltoall", "pairs")
        mine = [w for w in self.shapes[number][0] if rank in (w.sender, w.receiver)]
        comm_rank = operation.members.index
        earlier = sum(o.comm == operation.comm and o.shape == operation.shape for o in self.operations[:number])
        name = {"ring": "AllReduce", "chain": "Broadcast", "tree": "AllReduce"}.get(operation.shape, "")
        if not p2p:
            op = self._name(rank)
            algorithm = "T" if operation.shape == "tree" else "R"
            same = sum(
                o.comm == operation.comm and {o.shape, operation.shape} <= {"ring", "tree"}
                for o in self.operations[:number]
            )
            seq = same if name == "AllReduce" else earlier
            self.say(rank, f"coll {op} {operation.comm} {number} {name} {seq} 1024 {operation.channels} {algorithm}")
            self.say(rank, f"enqueued {op}")
        for wire in mine:
            sends = wire.sender == rank
            peer = comm_rank(wire.receiver if sends else wire.sender)
            if p2p:
                op = self._name(rank)
                self.say(rank, f"p2p {op} {operation.comm} {number} {'Send' if sends else 'Recv'} 1024 {peer}")
                self.say(rank, f"enqueued {op}")
            proxy = wire.names[int(sends)] = self._name(rank)
            self.say(rank, f"proxy {proxy} {operation.comm} {op} {wire.channel} {peer} {wire.steps} {int(sends)}")

    def _name(self, rank: int) -> int:
        self.names[rank] += 1
        return self.names[rank]

    def _turn(self, rank: int, number: int) -> bool:
        """Kernels of one communicator run one after another; a stuck GPU runs none from its operation on."""
        if self.fault.kind == "gpu" and self.fault.rank == rank and number >= self.fault.operation:
            return False
        for earlier in range(number):
            if self.operations[earlier].comm == self.operations[number].comm:
                threads = self.shapes[earlier][1].get(rank, [])
                places = self.cursor.get((rank, earlier), [0] * len(threads))
                if any(place < len(acts) for place, acts in zip(places, threads, strict=True)):
                    return False
        return True

    def _kernel(self, rank: int, number: int, threads: list[list[Act]]) -> Iterator[Callable[[], None]]:
        places = self.cursor.setdefault((rank, number), [0] * len(threads))
        for thread, acts in enumerate(threads):
            if places[thread] >= len(acts):
                continue
            what, wire, step = acts[places[thread]]
            if what == "send" and wire.send.filled < wire.send.posted and wire.send.filled == step:
                yield lambda t=thread, w=wire: self._fill(places, t, w)
            if what == "recv" and wire.recv.done < wire.recv.arrived and wire.recv.done == step:
                yield lambda t=thread, w=wire, r=rank: self._take(places, t, w, r)

    def _fill(self, places: list[int], thread: int, wire: Wire) -> None:
        wire.send.filled += 1
        places[thread] += 1

    def _take(self, places: list[int], thread: int, wire: Wire, rank: int) -> None:
        name = wire.names[0]
        self.say(rank, f"done {name} {wire.recv.done}")
        wire.recv.done += 1
        places[thread] += 1
        if wire.recv.done == wire.steps:
            self.say(rank, f"end {name}")

    # ---- proxies -----------------------------------------------------------------------------------------------------

    def _is_turn_of(self, number: int, wire: Wire, sends: bool) -> bool:
        """Operations of one connection run one after another."""
        for wires, _ in self.shapes[:number]:
            for other in wires:
                same = (other.sender, other.receiver, other.channel) == (wire.sender, wire.receiver, wire.channel)
                half = other.send if sends else other.recv
                if same and half.done < half.steps:
                    return False
        return True

    def _sending(self, number: int, wire: Wire) -> Iterator[Callable[[], None]]:
        half, rank = wire.send, wire.sender
        if 1 not in wire.names or rank in self.frozen or not self._is_turn_of(number, wire, True):
            return
        if half.posted < min(half.steps, half.done + WINDOW):
            yield lambda: self._post(wire, half, rank, 1, SEND_GPU)
        if half.sent < half.filled:
            if self.network == "socket" or wire.recv.posted > half.sent:
                yield lambda: self._hand_over(wire)
            elif wire.no_credit_for != half.sent:
                yield lambda: self._no_credit(wire)
        if half.done < half.sent and self._delivers(number, wire, half.done):
            yield lambda: self._sent(wire)

    def _no_credit(self, wire: Wire) -> None:
        wire.no_credit_for = wire.send.sent
        for _ in range(2):  # NCCL says it again on every poll
            self.say(wire.sender, f"state {wire.names[1]} {wire.send.sent} {PEER} 0")

    def _hand_over(self, wire: Wire) -> None:
        half = wire.send
        self.say(wire.sender, f"state {wire.names[1]} {half.sent} {PEER} 0")
        self.say(wire.sender, f"state {wire.names[1]} {half.sent} {SEND} 4096")
        half.sent += 1
        self.used.add((wire.sender, wire.receiver))

    def _cut(self, number: int, wire: Wire, step: int, kind: str) -> bool:
        fault = self.fault
        return (
            fault.kind == kind
            and (wire.sender, wire.receiver) == (fault.rank, fault.to)
            and (number, step) >= (fault.operation, fault.step)
        )

    def _delivers(self, number: int, wire: Wire, step: int) -> bool:
        """Whether the sender's step is confirmed: on IB when it has arrived, on a socket when there is room for it."""
        if self._cut(number, wire, step, "link"):
            return False
        if self.network == "ib":
            return wire.recv.arrived > step
        return wire.recv.arrived > step or step - wire.recv.arrived < 3

    def _sent(self, wire: Wire) -> None:
        self.say(wire.sender, f"done {wire.names[1]} {wire.send.done}")
        wire.send.done += 1
        if wire.send.done == wire.steps:
            self.say(wire.sender, f"end {wire.names[1]}")

    def _receiving(self, number: int, wire: Wire) -> Iterator[Callable[[], None]]:
        half, rank = wire.recv, wire.receiver
        if 0 not in wire.names or rank in self.frozen or not self._is_turn_of(number, wire, False):
            return
        if half.posted < min(half.steps, half.done + WINDOW):
            yield lambda: self._post(wire, half, rank, 0, RECV)
        cut = self._cut(number, wire, half.arrived, "link") or self._cut(number, wire, half.arrived, "lost")
        if half.arrived < min(half.posted, wire.send.sent) and not cut and wire.sender not in self.frozen:
            yield lambda: self._arrive(wire)

    def _post(self, wire: Wire, half: Half, rank: int, sends: int, state: int) -> None:
        name = wire.names[sends]
        if half.posted == 0:
            self.say(rank, f"progress {name}")
        self.say(rank, f"step {name} {half.posted}")
        self.say(rank, f"state {name} {half.posted} {state} 0")
        half.posted += 1

    def _arrive(self, wire: Wire) -> None:
        half = wire.recv
        self.say(wire.receiver, f"state {wire.names[0]} {half.arrived} {FLUSH} 4096")
        self.say(wire.receiver, f"state {wire.names[0]} {half.arrived} {RECV_GPU} 4096")
        half.arrived += 1
