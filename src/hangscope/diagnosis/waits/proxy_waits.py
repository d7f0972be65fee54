"""Where inside a collective it stands still, from the black boxes alone: the one edge or rank that all else waits for.

NCCL's proxy moves data in steps, and a step says what it waits for (NCCL 2.27 to 2.32, net.cc):

    SendGPUWait   the own kernel has not filled the buffer      RecvWait      nothing has come from the peer
    SendPeerWait  the peer has not said that it can receive     RecvFlushWait data is on its way into the GPU
    SendWait      handed to the network, not confirmed          RecvGPUWait   data is there, the own kernel takes none

A link stands still where the sender has handed over the very step that its receiver has a buffer posted for: no other
rank has a part in that transfer. Everything else is a wait of one rank for another, and a rank that others wait for and
that waits for nobody is the root: its GPU where it has joined, otherwise the rank itself. Where two readings fit, the
answer is `NotKnown` with both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hangscope.model import BlackBox, BlackBoxComm, BlackBoxOp, ProxyOp, ProxyStep

STILL_NS = 1_000_000_000
"""What changed less than this before the box was read may be moving."""
SILENT_NS = 3_000_000_000
"""A process that is scheduled at all says so twice a second."""
P2P_BATCH = 7
"""So many point-to-point operations on one channel surely run side by side: NCCL's kernel takes eight at a time."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation by what all its members call alike. `seq` counts per function; None for point-to-point."""

    comm: str
    func: str
    seq: int | None


@dataclass(frozen=True, slots=True)
class StuckLink:
    """Nothing moves from `sender` to `receiver`, and both would have it move.

    `what` is "sent" where the sender waits for the network, "left" where it counts the data as delivered, "credit"
    where the receiver's word that it is ready did not come back. `alive` says whether both processes ran when the boxes
    were taken; None where nothing tells it.
    """

    sender: int
    receiver: int
    channels: tuple[int, ...]
    step: int
    steps: int
    operation: Operation
    what: str
    since_ns: int
    alive: bool | None


@dataclass(frozen=True, slots=True)
class StuckGpu:
    """`rank` has launched, has data and room, and its GPU does not get on."""

    rank: int
    operation: Operation
    waiting: tuple[int, ...]
    since_ns: int


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """`rank` has not launched what the others wait in, and waits in nothing that the black box can see."""

    rank: int
    operation: Operation
    last_seq: int | None
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SilentRank:
    """The process of `rank` was not scheduled any more while others ran on: it is dead or stopped."""

    rank: int
    last_seen_ns: int
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotKnown:
    why: str
    candidates: tuple[StuckLink | StuckGpu | AbsentRank | SilentRank, ...] = ()


Root = StuckLink | StuckGpu | AbsentRank | SilentRank | NotKnown


def root(boxes: Sequence[BlackBox]) -> Root:
    """What the transfers of a job wait for in the end. `boxes` are those of its ranks, as many as there are."""
    job = _Job(boxes)
    if not any(job.unfinished(rank) for rank in job.boxes):
        return NotKnown("no transfer over the network is under way on any rank that has a black box")
    links = job.stuck_links()
    silent = job.silent_ranks()
    touching = [one for one in silent if any(one.rank in (link.sender, link.receiver) for link in links)]
    links = [link for link in links if not {one.rank for one in touching} & {link.sender, link.receiver}]
    if links and silent:
        return NotKnown("a link stands still, and a process has stopped elsewhere", (*links, *silent))
    if links:
        return _one_link(links)
    if silent:
        return silent[0] if len(silent) == 1 else NotKnown("several processes have stopped", tuple(silent))
    return job.last_waited_for()


def in_short(found: Root) -> str:
    """For tables and tests: ``link 2>3``, ``gpu 1``, ``absent 0``, ``silent 3``, ``unknown: …``."""
    if isinstance(found, StuckLink):
        return f"link {found.sender}>{found.receiver}"
    if isinstance(found, NotKnown):
        also = ", ".join(in_short(one) for one in found.candidates)
        return f"unknown: {found.why}{f' ({also})' if also else ''}"
    word = {StuckGpu: "gpu", AbsentRank: "absent", SilentRank: "silent"}[type(found)]
    return f"{word} {found.rank}"


def _one_link(links: list[StuckLink]) -> Root:
    """The link, over all its channels; or nothing where several stand still.

    A proxy thread that is stuck in one transfer serves no other: what seems to have left towards, or from, an end of
    the link that is waited for at the network itself, is that link's doing.
    """
    sure = [link for link in links if link.what == "sent"]
    ends = {rank for link in sure for rank in (link.sender, link.receiver)}
    kept = sure if sure and all({link.sender, link.receiver} & ends for link in links) else links
    pairs = {(link.sender, link.receiver) for link in kept}
    if len(pairs) > 1:
        return NotKnown("several links stand still", tuple(kept))
    first = min(kept, key=lambda link: (link.since_ns, link.channels))
    channels = tuple(sorted({channel for link in kept for channel in link.channels}))
    return StuckLink(
        first.sender, first.receiver, channels, first.step, first.steps, first.operation, first.what, first.since_ns,
        first.alive,
    )  # fmt: skip


@dataclass(slots=True)
class _Transfer:
    """A `ProxyOp` with the ranks of the job at both ends."""

    op: ProxyOp
    comm: BlackBoxComm
    box: BlackBox
    """Of the process whose proxy moves it."""
    rank: int
    peer: int | None

    @property
    def open(self) -> bool:
        return self.op.state != "done" and self.op.steps_done < self.op.steps

    @property
    def oldest(self) -> ProxyStep | None:
        return next((step for step in self.op.live if step.step >= self.op.steps_done), None)

    @property
    def state(self) -> str:
        return self.oldest.state if self.oldest else ""

    @property
    def edge(self) -> tuple[str, int, int, int]:
        """(communicator, sender, receiver, channel), in the communicator's own numbers."""
        ends = (self.comm.rank, self.op.peer) if self.op.sends else (self.op.peer, self.comm.rank)
        return (self.comm.hash, *ends, self.op.channel)

    @property
    def launch(self) -> int:
        return self.op.group or self.op.op


class _Job:
    """All boxes together; `transfers` are by the rank whose operation it is."""

    def __init__(self, given: Sequence[BlackBox]) -> None:
        self.given = given
        self.boxes: dict[int, BlackBox] = {box.rank: box for box in given if box.rank is not None}
        self.transfers: dict[int, list[_Transfer]] = {rank: [] for rank in self.boxes}
        self._ranks = self._members()
        self._ops = {(box.host, box.pid, op.serial): op for box in given for op in box.ops}
        for box in self.boxes.values():
            for op in box.transfers:
                found = self._place(op, box)
                if found is not None:
                    self.transfers[found.rank].append(found)

    def _members(self) -> dict[tuple[str, int], int]:
        """(communicator, its rank) → rank of the job; a pair that two processes claim belongs to none."""
        found: dict[tuple[str, int], set[int]] = {}
        for rank, box in self.boxes.items():
            for comm in box.comms:
                found.setdefault((comm.hash, comm.rank), set()).add(rank)
        return {key: next(iter(ranks)) for key, ranks in found.items() if len(ranks) == 1}

    def _place(self, op: ProxyOp, box: BlackBox) -> _Transfer | None:
        """Whose transfer it is: with PXN, the proxy of a neighbour on the same node moves it."""
        owner = box
        if op.pid != box.pid:
            owners = [other for other in self.boxes.values() if (other.host, other.pid) == (box.host, op.pid)]
            if len(owners) != 1:
                return None
            owner = owners[0]
        comm = next((comm for comm in owner.comms if comm.serial == op.comm), None)
        if comm is None or owner.rank is None:
            return None
        return _Transfer(op, comm, box, owner.rank, self._ranks.get((comm.hash, op.peer)))

    # ---- times -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _now(box: BlackBox) -> int | None:
        return box.read_ns or max((at for at in (box.alive_ns, box.last_event_ns) if at is not None), default=None)

    def _still(self, at_ns: int, box: BlackBox) -> bool:
        now = self._now(box)
        return now is None or now - at_ns >= STILL_NS

    def alive(self, box: BlackBox) -> bool | None:
        """Whether the process was scheduled when its box was taken, or while others of its node still were."""
        if box.alive_ns is None:
            return None
        seen = [b.read_ns for b in self.given if b.read_ns and b.alive_ns and b.read_ns - b.alive_ns < SILENT_NS]
        if box.read_ns and seen:
            # Taken long after the others, it may have ended with the job: then its last word is later than theirs.
            return box.read_ns - box.alive_ns < SILENT_NS or max(seen) - box.alive_ns < SILENT_NS
        others = [b.alive_ns for b in self.given if b.host == box.host and b.pid != box.pid and b.alive_ns]
        return max(others) - box.alive_ns < SILENT_NS if others else None

    def silent_ranks(self) -> list[SilentRank]:
        return [
            SilentRank(rank, box.alive_ns or 0, self._waiting_for(rank))
            for rank, box in sorted(self.boxes.items())
            if self.alive(box) is False
        ]

    # ---- links -------------------------------------------------------------------------------------------------------

    def stuck_links(self) -> list[StuckLink]:
        sends: dict[tuple[str, int, int, int], list[_Transfer]] = {}
        for transfer in self._all():
            if transfer.op.sends:
                sends.setdefault(transfer.edge, []).append(transfer)
        found = []
        for receive in self._first_receives():
            link = self._stuck(receive, sends.get(receive.edge, []))
            if link is not None:
                found.append(link)
        return found

    def _all(self) -> Iterable[_Transfer]:
        return (transfer for transfers in self.transfers.values() for transfer in transfers)

    def _first_receives(self) -> list[_Transfer]:
        """The oldest unfinished receive of every edge."""
        first: dict[tuple[str, int, int, int], _Transfer] = {}
        for transfer in self._all():
            if not transfer.op.sends and transfer.open:
                known = first.get(transfer.edge)
                if known is None or transfer.op.serial < known.op.serial:
                    first[transfer.edge] = transfer
        return [first[edge] for edge in sorted(first)]

    def _stuck(self, receive: _Transfer, sends: list[_Transfer]) -> StuckLink | None:
        step = receive.oldest
        if step is None or receive.peer is None or not self._still(step.changed_ns, receive.box):
            return None
        send = next((s for s in sends if _same_operation(receive, s)), None)
        if send is None:
            gone = step.state == "RecvWait" and self._went_before(receive)
            return self._link(receive, step, step, "left", None) if gone else None
        theirs = next((s for s in send.op.live if s.step == step.step), None)
        if theirs is not None and not self._still(theirs.changed_ns, send.box):
            return None
        if theirs is not None and step.state == "RecvWait" and theirs.state in ("SendWait", "SendPeerWait"):
            if send.op.pid != send.box.pid and not self._alone_on_its_way(send):
                return None
            what = "sent" if theirs.state == "SendWait" else "credit"
            return self._link(receive, step, theirs, what, send)
        if theirs is not None and step.state == "RecvGPUWait" and theirs.state == "SendWait" and self._is_ll(receive):
            # Of LL and LL128 the proxy may report a receive as soon as it is posted: the kernel sees the data itself.
            return self._link(receive, step, theirs, "sent", send)
        if theirs is None and step.state == "RecvWait" and send.op.steps_done > step.step:
            return self._link(receive, step, step, "left", send)
        return None

    def _went_before(self, receive: _Transfer) -> bool:
        """Whether the sender's count of finished sends on that edge includes the one that the receiver waits for."""
        box = self.boxes.get(receive.peer if receive.peer is not None else -1)
        if box is None or receive.op.ordinal is None or box.dropped:
            return False
        serials = {comm.serial for comm in box.comms if comm.hash == receive.comm.hash}
        counts = [
            link.ops_done
            for link in box.links
            if link.comm in serials
            and link.sends
            and (link.peer, link.channel, link.pid) == (receive.comm.rank, receive.op.channel, box.pid)
        ]
        return len(counts) == 1 and counts[0] > receive.op.ordinal

    def _alone_on_its_way(self, send: _Transfer) -> bool:
        """Of sends that share a neighbour's proxy (PXN), NCCL may hold one back until all of them are ready."""
        return all(
            other.state == "SendWait"
            for other in self._all()
            if other.op.sends and other.open and other.box is send.box and other.op.channel == send.op.channel
        )

    def _is_ll(self, transfer: _Transfer) -> bool:
        op = self._op_of(transfer)
        return op is not None and op.protocol in ("LL", "LL128")

    def _op_of(self, transfer: _Transfer) -> BlackBoxOp | None:
        owner = self.boxes[transfer.rank]
        return self._ops.get((owner.host, owner.pid, transfer.op.op))

    def _link(
        self, receive: _Transfer, step: ProxyStep, theirs: ProxyStep, what: str, send: _Transfer | None
    ) -> StuckLink:
        assert receive.peer is not None
        ends = [self.alive(self.boxes[receive.rank])]
        sender = self.boxes.get(receive.peer)
        ends.append(self.alive(sender) if sender is not None else None)
        if send is not None and send.box is not sender:
            ends.append(self.alive(send.box))
        alive = False if False in ends else None if None in ends else True
        return StuckLink(
            receive.peer,
            receive.rank,
            (receive.op.channel,),
            step.step,
            receive.op.steps,
            _named(receive),
            what,
            max(step.changed_ns, theirs.changed_ns),
            alive,
        )

    # ---- who waits for whom ------------------------------------------------------------------------------------------

    def unfinished(self, rank: int) -> list[_Transfer]:
        """A rank's transfers of the oldest launch that each of its communicators has not finished."""
        found: dict[int, list[_Transfer]] = {}
        for transfer in self.transfers.get(rank, ()):
            if transfer.open and transfer.op.state == "live":
                found.setdefault(transfer.comm.serial, []).append(transfer)
        return [
            transfer
            for transfers in found.values()
            for transfer in transfers
            if transfer.launch == min(other.launch for other in transfers)
        ]

    def _waits(self, rank: int) -> list[_Transfer]:
        """The transfers in which the rank waits for its peer."""
        kernels: dict[tuple[int, int], list[_Transfer]] = {}
        for one in self.unfinished(rank):
            kernels.setdefault((one.comm.serial, one.launch), []).append(one)
        return [
            one
            for mine in kernels.values()
            if not self._kernel_is_not_there(mine)
            for one in mine
            if _is_wait(one) and not self._own_doing(one, mine)
        ]

    def _own_doing(self, one: _Transfer, mine: list[_Transfer]) -> bool:
        """Whether the peer is the parent in a tree and cannot answer before it gets what this rank has not sent."""
        back = [other for other in mine if other.op.sends and _same_pair(one, other)]
        return (
            not one.op.sends
            and one.oldest is not None
            and any(
                other.state == "SendGPUWait" and other.oldest and other.oldest.step <= one.oldest.step for other in back
            )
            and self._is_parent(one)
        )

    def _is_parent(self, one: _Transfer) -> bool:
        """Whether earlier operations show that the peer is this rank's parent on that channel.

        Of a finished tree operation, a child's last send ends before its last receive, and at its parent the other way
        round. All that is still there must say so, at both ends.
        """
        ends = [(one.rank, one.op.peer, True)]
        if one.peer is not None:
            ends.append((one.peer, one.comm.rank, False))
        votes = []
        for rank, peer, child in ends:
            done = [t for t in self.transfers.get(rank, ()) if t.op.state == "done" and t.op.peer == peer]
            done = [t for t in done if (t.comm.hash, t.op.channel) == (one.comm.hash, one.op.channel)]
            for send in (t for t in done if t.op.sends):
                votes += [
                    (send.op.changed_ns < receive.op.changed_ns) is child
                    for receive in done
                    if not receive.op.sends and _same_pair(receive, send)
                ]
        return bool(votes) and all(votes)

    @staticmethod
    def _kernel_is_not_there(mine: list[_Transfer]) -> bool:
        """Whether data lies untouched that a running kernel of point-to-point operations would have taken."""
        if any(one.op.func not in ("Send", "Recv") for one in mine):
            return False
        crowd = Counter((one.op.channel, one.op.sends) for one in mine)
        untouched = any(one.state == "RecvGPUWait" and one.op.steps_done == 0 for one in mine)
        return untouched and max(crowd.values()) <= P2P_BATCH

    def _waiting_for(self, rank: int) -> tuple[int, ...]:
        return tuple(
            sorted(other for other in self.boxes if any(w.peer == rank for w in self._waits(other)) and other != rank)
        )

    def last_waited_for(self) -> Root:
        """The one rank that others wait for and that waits for nobody."""
        waits = {rank: self._waits(rank) for rank in self.boxes}
        wanted: dict[int, list[_Transfer]] = {}
        for rank, transfers in waits.items():
            for transfer in transfers:
                if transfer.peer is None:
                    return NotKnown(f"rank {rank} waits for a rank that has no black box")
                wanted.setdefault(transfer.peer, []).append(transfer)
        found = [self._accuse(rank, wanted[rank]) for rank in sorted(wanted) if not waits[rank]]
        if not found:
            return NotKnown("nobody is waited for who waits for nobody: the waits go in a circle")
        if len(found) > 1:
            return NotKnown("several ranks are waited for", tuple(c for f in found for c in _candidates(f)))
        return found[0]

    def _accuse(self, rank: int, waits: list[_Transfer]) -> Root:
        box = self.boxes[rank]
        waiting = tuple(sorted({wait.rank for wait in waits}))
        if box.last_event_ns is not None and not self._still(box.last_event_ns, box):
            return NotKnown(f"rank {rank} still moves data")
        mine = self.unfinished(rank)
        if mine:
            oldest = min(mine, key=lambda one: one.op.changed_ns)
            gpu = StuckGpu(rank, _named(oldest), waiting, max(one.op.changed_ns for one in mine))
            if self._unseen(box, before_ns=max(one.op.started_ns for one in mine)):
                return NotKnown(f"the GPU of rank {rank} may wait in an operation without network", (gpu,))
            return gpu
        wait = min(waits, key=lambda one: one.op.started_ns)
        reached = self._reached(rank, wait)
        if reached is None or box.dropped or box.torn:
            return NotKnown(f"rank {rank} has no transfer under way, and nothing says whether it came this far")
        absent = AbsentRank(rank, _named(wait), reached if reached >= 0 else None, waiting)
        if self._unseen(box) or not self._is_over(box):
            why = f"rank {rank} has not launched what others wait in; it may wait in an operation without network"
            return NotKnown(why, (absent,))
        return absent

    def _reached(self, rank: int, wait: _Transfer) -> int | None:
        """The last operation of that kind that the rank launched, -1 for none; None where it has launched this one."""
        box = self.boxes[rank]
        comm = next((comm for comm in box.comms if comm.hash == wait.comm.hash), None)
        if comm is None:
            return None
        if wait.op.func in ("Send", "Recv"):
            links = [
                link.ops
                for link in box.links
                if (link.comm, link.peer, link.channel) == (comm.serial, wait.comm.rank, wait.op.channel)
                and link.sends != wait.op.sends
            ]
            begun = max(links, default=0)
            return None if wait.op.ordinal is None or begun > wait.op.ordinal else begun - 1
        last = comm.last.get(wait.op.func)
        return -1 if last is None else None if last[0] >= wait.op.seq else last[0]

    @staticmethod
    def _unseen(box: BlackBox, before_ns: int | None = None) -> bool:
        """Whether the rank launched something that moves nothing over the network, and that may not be over.

        It says nothing any more once a later operation of the same communicator has moved data.
        """
        own = {comm.serial: comm.rank for comm in box.comms}
        small = {comm.serial for comm in box.comms if comm.size == 1}
        newest: dict[int, BlackBoxOp] = {}
        for op in box.ops:
            alone = op.comm in small or (op.kind == "p2p" and op.peer == own.get(op.comm))
            if not alone and (before_ns is None or op.started_ns <= before_ns):
                newest[op.comm] = op
        return any(op.proxies == 0 for op in newest.values())

    @staticmethod
    def _is_over(box: BlackBox) -> bool:
        """Whether every operation that moved data over the network is seen to have moved all of it."""
        return all(op.proxies_done >= op.proxies for op in box.ops)


def _same_operation(receive: _Transfer, send: _Transfer) -> bool:
    if receive.op.ordinal is not None and send.op.ordinal is not None:
        return receive.op.ordinal == send.op.ordinal
    p2p = "Send" in (receive.op.func, send.op.func) or "Recv" in (receive.op.func, send.op.func)
    return not p2p and (receive.op.func, receive.op.seq) == (send.op.func, send.op.seq)


def _is_wait(one: _Transfer) -> bool:
    if one.op.sends:
        return one.state in ("SendWait", "SendPeerWait") or (not one.state and one.op.in_progress)
    return one.state in ("RecvWait", "")


def _same_pair(one: _Transfer, other: _Transfer) -> bool:
    """Whether both are one collective's transfers with one peer on one channel."""
    return bool(one.op.op) and (one.comm.hash, one.op.peer, one.op.channel, one.op.op) == (
        other.comm.hash,
        other.op.peer,
        other.op.channel,
        other.op.op,
    )


def _named(transfer: _Transfer) -> Operation:
    p2p = transfer.op.func in ("Send", "Recv")
    return Operation(transfer.comm.hash, transfer.op.func, None if p2p else transfer.op.seq)


def _candidates(found: Root) -> tuple[StuckLink | StuckGpu | AbsentRank | SilentRank, ...]:
    return found.candidates if isinstance(found, NotKnown) else (found,)
