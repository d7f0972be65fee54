"""The black boxes of a job laid together: each of NCCL's transfers with the ranks at both of its ends.

NCCL's proxy moves data in steps, and a step says what it waits for (NCCL 2.27 to 2.32, net.cc):

    SendGPUWait   the own kernel has not filled the buffer      RecvWait      nothing has come from the peer
    SendPeerWait  the peer has not said that it can receive     RecvFlushWait data is on its way into the GPU
    SendWait      handed to the network, not confirmed          RecvGPUWait   data is there, the own kernel takes none
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.waits.proxy_findings import NcclOperation
from hangscope.model import BlackBox, BlackBoxComm, BlackBoxOp, ProxyOp, ProxyStep

STILL_NS = 1_000_000_000
"""What changed less than this before the box was read may be moving."""
SILENT_NS = 3_000_000_000
"""A process that is scheduled at all says so twice a second."""

Edge = tuple[str, int, int, int]
"""(communicator, sender, receiver, channel), in the communicator's own numbers."""


@dataclass(slots=True)
class Transfer:
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
    def edge(self) -> Edge:
        ends = (self.comm.rank, self.op.peer) if self.op.sends else (self.op.peer, self.comm.rank)
        return (self.comm.hash, *ends, self.op.channel)

    @property
    def launch(self) -> int:
        return self.op.group or self.op.op

    @property
    def point_to_point(self) -> bool:
        return self.op.func in ("Send", "Recv")

    @property
    def operation(self) -> NcclOperation:
        return NcclOperation(self.comm.hash, self.op.func, None if self.point_to_point else self.op.seq)


class ProxyJob:
    """All boxes together; `transfers` are by the rank whose operation it is."""

    def __init__(self, given: Sequence[BlackBox]) -> None:
        self._given = given
        self.boxes: dict[int, BlackBox] = {box.rank: box for box in given if box.rank is not None}
        self.transfers: dict[int, list[Transfer]] = {rank: [] for rank in self.boxes}
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

    def _place(self, op: ProxyOp, box: BlackBox) -> Transfer | None:
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
        return Transfer(op, comm, box, owner.rank, self._ranks.get((comm.hash, op.peer)))

    def all(self) -> Iterator[Transfer]:
        return (transfer for transfers in self.transfers.values() for transfer in transfers)

    def op_of(self, transfer: Transfer) -> BlackBoxOp | None:
        """The call that a transfer is part of."""
        owner = self.boxes[transfer.rank]
        return self._ops.get((owner.host, owner.pid, transfer.op.op))

    def unfinished(self, rank: int) -> list[Transfer]:
        """A rank's transfers of the oldest launch that each of its communicators has not finished."""
        moving = [one for one in self.transfers.get(rank, ()) if one.open and one.op.state == "live"]
        found: list[Transfer] = []
        for transfers in grouped((one.comm.serial, one) for one in moving).values():
            oldest = min(one.launch for one in transfers)
            found += [one for one in transfers if one.launch == oldest]
        return found

    # ---- times -------------------------------------------------------------------------------------------------------

    def is_still(self, at_ns: int, box: BlackBox) -> bool:
        """Whether what changed last then does not move any more."""
        seen = [at for at in (box.alive_ns, box.last_event_ns) if at is not None]
        now = box.read_ns or max(seen, default=None)
        return now is None or now - at_ns >= STILL_NS

    def ran(self, box: BlackBox) -> Says:
        """Was the process scheduled when its box was taken, or while others of its node still were?"""
        if box.alive_ns is None:
            return Says.NOT_KNOWN
        alive_ns = box.alive_ns
        seen = [b.read_ns for b in self._given if b.read_ns and b.alive_ns and b.read_ns - b.alive_ns < SILENT_NS]
        if box.read_ns and seen:
            # Taken long after the others, it may have ended with the job: then its last word is later than theirs.
            return _yes_or_no(box.read_ns - alive_ns < SILENT_NS or max(seen) - alive_ns < SILENT_NS)
        others = [b.alive_ns for b in self._given if b.host == box.host and b.pid != box.pid and b.alive_ns]
        return _yes_or_no(max(others) - alive_ns < SILENT_NS) if others else Says.NOT_KNOWN


def _yes_or_no(holds: bool) -> Says:
    return Says.YES if holds else Says.NO
