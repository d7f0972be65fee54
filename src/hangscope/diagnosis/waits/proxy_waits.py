"""Where inside a collective nothing moves, from the black boxes alone: the one edge or rank that all else waits for.

A link on which a step was handed over and not received is found by `proxy_links.py`. Everything else is a wait of one
rank for another, and a rank that others wait for and that waits for nobody is the root: its GPU where it has joined,
otherwise the rank itself. Where two readings fit, the answer is `NotKnown` with both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.waits.proxy_findings import (
    AbsentRank,
    BoxWait,
    Candidate,
    NcclOperation,
    NotKnown,
    Root,
    SilentRank,
    StuckGpu,
    StuckLink,
    in_short,
)
from hangscope.diagnosis.waits.proxy_job import ProxyJob, Transfer
from hangscope.diagnosis.waits.proxy_links import stuck_links, the_one_link
from hangscope.model import BlackBox, BlackBoxOp

__all__ = [
    "AbsentRank",
    "NotKnown",
    "Root",
    "SilentRank",
    "StuckGpu",
    "StuckLink",
    "in_short",
    "root",
    "waiting_ranks",
]

P2P_BATCH = 7
"""So many point-to-point operations on one channel surely run side by side: NCCL's kernel takes eight at a time."""


def root(boxes: Sequence[BlackBox]) -> Root:
    """What the transfers of a job wait for in the end. `boxes` are those of its ranks, as many as there are."""
    job = ProxyJob(boxes)
    if not any(job.unfinished(rank) for rank in job.boxes):
        return NotKnown("no transfer over the network is under way on any rank that has a black box")
    waits = _Waits(job)
    silent = waits.silent_ranks()
    stopped = {one.rank for one in silent}
    links = [link for link in stuck_links(job) if not stopped & {link.sender, link.receiver}]
    if links and silent:
        return NotKnown("a link is stalled, and a process has stopped elsewhere", (*links, *silent))
    if links:
        return the_one_link(links)
    if silent:
        return silent[0] if len(silent) == 1 else NotKnown("several processes have stopped", tuple(silent))
    return waits.last_waited_for()


def waiting_ranks(boxes: Sequence[BlackBox]) -> dict[int, BoxWait]:
    """By rank, the ranks that its transfers wait for, and in what."""
    job = ProxyJob(boxes)
    waits = _Waits(job)
    found = {}
    for rank in sorted(job.boxes):
        mine = [wait for wait in waits.of(rank) if wait.peer is not None]
        if mine:
            peers = {wait.peer for wait in mine if wait.peer is not None}
            oldest = min(mine, key=lambda one: one.op.started_ns)
            found[rank] = BoxWait(tuple(sorted(peers)), _operation(job, oldest))
    return found


class _Waits:
    """Which rank waits for which, by the transfers that each has under way."""

    def __init__(self, job: ProxyJob) -> None:
        self._job = job
        self._of = {rank: self._waits(rank) for rank in job.boxes}

    def of(self, rank: int) -> list[Transfer]:
        return self._of[rank]

    def _waits(self, rank: int) -> list[Transfer]:
        """The transfers in which the rank waits for its peer."""
        kernels = grouped(((one.comm.serial, one.launch), one) for one in self._job.unfinished(rank))
        running = [mine for mine in kernels.values() if not _kernel_is_not_there(mine)]
        return [one for mine in running for one in mine if _is_wait(one) and not self._own_doing(one, mine)]

    def _own_doing(self, one: Transfer, mine: list[Transfer]) -> bool:
        """Whether the peer is the parent in a tree and cannot answer before it gets what this rank has not sent."""
        if one.op.sends or one.oldest is None:
            return False
        back = [other.oldest for other in mine if other.op.sends and _same_pair(one, other)]
        unsent = [step for step in back if step is not None and step.state == "SendGPUWait"]
        return any(step.step <= one.oldest.step for step in unsent) and self._is_parent(one)

    def _is_parent(self, one: Transfer) -> bool:
        """Whether earlier operations show that the peer is this rank's parent on that channel.

        Of a finished tree operation, a child's last send ends before its last receive, and at its parent the other way
        round. All that is still there must say so, at both ends.
        """
        votes = self._ends_as_child(one, one.rank, one.op.peer)
        if one.peer is not None:
            votes += [not child for child in self._ends_as_child(one, one.peer, one.comm.rank)]
        return bool(votes) and all(votes)

    def _ends_as_child(self, one: Transfer, rank: int, peer: int) -> list[bool]:
        """Of a rank's finished operations with a peer on one channel: whether its send ended before its receive."""
        done = [t for t in self._job.transfers.get(rank, ()) if t.op.state == "done" and t.op.peer == peer]
        done = [t for t in done if (t.comm.hash, t.op.channel) == (one.comm.hash, one.op.channel)]
        sends = [t for t in done if t.op.sends]
        receives = [t for t in done if not t.op.sends]
        return [s.op.changed_ns < r.op.changed_ns for s in sends for r in receives if _same_pair(r, s)]

    def silent_ranks(self) -> list[SilentRank]:
        """Ranks whose process was not scheduled any more while others ran on."""
        return [
            SilentRank(rank, box.alive_ns or 0, self._waiting_for(rank))
            for rank, box in sorted(self._job.boxes.items())
            if self._job.ran(box) is Says.NO
        ]

    def _waiting_for(self, rank: int) -> tuple[int, ...]:
        waiting = [other for other, waits in self._of.items() if any(wait.peer == rank for wait in waits)]
        return tuple(sorted(other for other in waiting if other != rank))

    # ---- the root ----------------------------------------------------------------------------------------------------

    def last_waited_for(self) -> Root:
        """The one rank that others wait for and that waits for nobody."""
        wanted: dict[int, list[Transfer]] = {}
        for rank, transfers in self._of.items():
            for transfer in transfers:
                if transfer.peer is None:
                    return NotKnown(f"rank {rank} waits for a rank that has no black box")
                wanted.setdefault(transfer.peer, []).append(transfer)
        found = [self._accuse(rank, wanted[rank]) for rank in sorted(wanted) if not self._of[rank]]
        if not found:
            return NotKnown("every rank that is waited for is waiting itself: the waits form a cycle")
        if len(found) > 1:
            return NotKnown("several ranks are waited for", tuple(c for one in found for c in _candidates(one)))
        return found[0]

    def _accuse(self, rank: int, waits: list[Transfer]) -> Root:
        box = self._job.boxes[rank]
        if box.last_event_ns is not None and not self._job.is_still(box.last_event_ns, box):
            return NotKnown(f"rank {rank} still moves data")
        waiting = tuple(sorted({wait.rank for wait in waits}))
        mine = self._job.unfinished(rank)
        return self._accuse_gpu(rank, mine, waiting) if mine else self._accuse_absent(rank, waits, waiting)

    def _accuse_gpu(self, rank: int, mine: list[Transfer], waiting: tuple[int, ...]) -> Root:
        oldest = min(mine, key=lambda one: one.op.changed_ns)
        gpu = StuckGpu(rank, oldest.operation, waiting, max(one.op.changed_ns for one in mine))
        if _unseen(self._job.boxes[rank], before_ns=max(one.op.started_ns for one in mine)):
            return NotKnown(f"the GPU of rank {rank} may wait in an operation without network", (gpu,))
        return gpu

    def _accuse_absent(self, rank: int, waits: list[Transfer], waiting: tuple[int, ...]) -> Root:
        box = self._job.boxes[rank]
        wait = min(waits, key=lambda one: one.op.started_ns)
        replayed = _is_replayed(self._job, wait)
        reached = _reached(box, wait, replayed=replayed)
        if reached is None or box.dropped or box.torn:
            return NotKnown(f"rank {rank} has no transfer under way, and nothing says whether it came this far")
        absent = AbsentRank(rank, _operation(self._job, wait), reached if reached >= 0 else None, waiting, replayed)
        if _unseen(box) or not _is_over(box):
            why = f"rank {rank} has not launched what others wait in; it may wait in an operation without network"
            return NotKnown(why, (absent,))
        return absent


def _is_wait(one: Transfer) -> bool:
    if one.op.sends:
        return one.state in ("SendWait", "SendPeerWait") or (not one.state and one.op.in_progress)
    return one.state in ("RecvWait", "")


def _same_pair(one: Transfer, other: Transfer) -> bool:
    """Whether both are one collective's transfers with one peer on one channel."""
    same_call = bool(one.op.op) and one.op.op == other.op.op
    ends = (one.comm.hash, one.op.peer, one.op.channel)
    return same_call and ends == (other.comm.hash, other.op.peer, other.op.channel)


def _kernel_is_not_there(mine: list[Transfer]) -> bool:
    """Whether data lies untouched that a running kernel of point-to-point operations would have taken."""
    if not all(one.point_to_point for one in mine):
        return False
    crowd = Counter((one.op.channel, one.op.sends) for one in mine)
    untouched = any(one.state == "RecvGPUWait" and one.op.steps_done == 0 for one in mine)
    return untouched and max(crowd.values()) <= P2P_BATCH


def _operation(job: ProxyJob, wait: Transfer) -> NcclOperation:
    """What it waits in, without a number where that is the captured call's and says nothing of this one."""
    return replace(wait.operation, seq=None) if _is_replayed(job, wait) else wait.operation


def _is_replayed(job: ProxyJob, wait: Transfer) -> bool:
    """Whether a CUDA graph's replay launched it: each replay repeats the number of the call that was captured, or names
    no call at all (NCCL 2.28.9, over the network)."""
    if wait.point_to_point:
        return False
    call = (wait.comm.serial, wait.op.func, wait.op.seq)
    calls = ((op.comm, op.func, op.seq) for op in job.boxes[wait.rank].ops)
    return not wait.op.func or sum(each == call for each in calls) > 1


def _reached(box: BlackBox, wait: Transfer, *, replayed: bool) -> int | None:
    """The last operation of that kind that the rank launched, -1 for none; None where it has launched this one.

    Where calls have no numbers of their own, the transfers between the two ranks are counted.
    """
    comm = next((comm for comm in box.comms if comm.hash == wait.comm.hash), None)
    if comm is None:
        return None
    if wait.point_to_point or replayed:
        way = (comm.serial, wait.comm.rank, wait.op.channel)
        links = [link for link in box.links if (link.comm, link.peer, link.channel) == way]
        begun = max((link.ops for link in links if link.sends != wait.op.sends), default=0)
        return None if wait.op.ordinal is None or begun > wait.op.ordinal else begun - 1
    last = comm.last.get(wait.op.func)
    if last is None:
        return -1
    return None if last[0] >= wait.op.seq else last[0]


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


def _is_over(box: BlackBox) -> bool:
    """Whether every operation that moved data over the network is seen to have moved all of it."""
    return all(op.proxies_done >= op.proxies for op in box.ops)


def _candidates(found: Root) -> tuple[Candidate, ...]:
    return found.candidates if isinstance(found, NotKnown) else (found,)
