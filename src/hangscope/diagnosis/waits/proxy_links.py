"""Links on which nothing moves although both ends would have it move, from the black boxes of their ranks.

A link does not move where the sender has handed over the very step that its receiver has a buffer posted for: no other
rank has a part in that transfer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.waits.proxy_findings import NotKnown, Root, StuckLink, Undelivered
from hangscope.diagnosis.waits.proxy_job import Edge, ProxyJob, Transfer
from hangscope.model import ProxyStep


def stuck_links(job: ProxyJob) -> list[StuckLink]:
    """Every link whose receiver waits for data that its sender has handed over, one a channel."""
    sends = grouped((transfer.edge, transfer) for transfer in job.all() if transfer.op.sends)
    found = []
    for receive in _first_receives(job):
        stuck = _stuck(job, receive, sends.get(receive.edge, []))
        if stuck is not None:
            found.append(_link(job, stuck))
    return found


def the_one_link(links: list[StuckLink]) -> Root:
    """The link, over all its channels; or nothing where several do not move.

    A proxy thread that is stuck in one transfer serves no other: what seems to have left towards, or from, an end of
    the link that is waited for at the network itself, is that link's doing.
    """
    at_the_network = [link for link in links if link.how is Undelivered.SENT]
    ends = {rank for link in at_the_network for rank in (link.sender, link.receiver)}
    explained = all({link.sender, link.receiver} & ends for link in links)
    kept = at_the_network if at_the_network and explained else links
    if len({(link.sender, link.receiver) for link in kept}) > 1:
        return NotKnown("several links are stalled", tuple(kept))
    first = min(kept, key=lambda link: (link.since_ns, link.channels))
    return replace(first, channels=tuple(sorted({channel for link in kept for channel in link.channels})))


def _first_receives(job: ProxyJob) -> list[Transfer]:
    """The oldest unfinished receive of every edge."""
    first: dict[Edge, Transfer] = {}
    for transfer in job.all():
        if not transfer.op.sends and transfer.open:
            known = first.get(transfer.edge)
            if known is None or transfer.op.serial < known.op.serial:
                first[transfer.edge] = transfer
    return [first[edge] for edge in sorted(first)]


@dataclass(frozen=True, slots=True)
class _Stuck:
    """One receive whose data does not come: its step, that of the sender (the same where it counts it as delivered),
    and how it does not arrive."""

    receive: Transfer
    step: ProxyStep
    theirs: ProxyStep
    how: Undelivered
    send: Transfer | None


def _stuck(job: ProxyJob, receive: Transfer, sends: list[Transfer]) -> _Stuck | None:
    step = receive.oldest
    if step is None or receive.peer is None or not job.is_still(step.changed_ns, receive.box):
        return None
    send = next((other for other in sends if _same_operation(receive, other)), None)
    theirs = None if send is None else next((other for other in send.op.live if other.step == step.step), None)
    if send is None or theirs is None:
        left = step.state == "RecvWait" and _counts_as_delivered(job, receive, step, send)
        return _Stuck(receive, step, step, Undelivered.LEFT, send) if left else None
    how = _between(job, receive, step, send, theirs) if job.is_still(theirs.changed_ns, send.box) else None
    return None if how is None else _Stuck(receive, step, theirs, how, send)


def _counts_as_delivered(job: ProxyJob, receive: Transfer, step: ProxyStep, send: Transfer | None) -> bool:
    """Whether the sender has nothing more to do with the step."""
    return _went_before(job, receive) if send is None else send.op.steps_done > step.step


def _between(
    job: ProxyJob, receive: Transfer, step: ProxyStep, send: Transfer, theirs: ProxyStep
) -> Undelivered | None:
    """How a step that both ends are in does not arrive; None where nothing says that it should have."""
    if step.state == "RecvWait" and theirs.state in ("SendWait", "SendPeerWait"):
        if send.op.pid != send.box.pid and not _alone_on_its_way(job, send):
            return None
        return Undelivered.SENT if theirs.state == "SendWait" else Undelivered.CREDIT
    # Of LL and LL128 the proxy may report a receive as soon as it is posted: the kernel sees the data itself.
    posted = step.state == "RecvGPUWait" and theirs.state == "SendWait" and _is_ll(job, receive)
    return Undelivered.SENT if posted else None


def _same_operation(receive: Transfer, send: Transfer) -> bool:
    if receive.op.ordinal is not None and send.op.ordinal is not None:
        return receive.op.ordinal == send.op.ordinal
    p2p = receive.point_to_point or send.point_to_point
    return not p2p and (receive.op.func, receive.op.seq) == (send.op.func, send.op.seq)


def _went_before(job: ProxyJob, receive: Transfer) -> bool:
    """Whether the sender's count of finished sends on that edge includes the one that the receiver waits for."""
    box = None if receive.peer is None else job.boxes.get(receive.peer)
    if box is None or receive.op.ordinal is None or box.dropped:
        return False
    serials = {comm.serial for comm in box.comms if comm.hash == receive.comm.hash}
    way = (receive.comm.rank, receive.op.channel, box.pid)
    sending = [link for link in box.links if link.comm in serials and link.sends]
    counts = [link.ops_done for link in sending if (link.peer, link.channel, link.pid) == way]
    return len(counts) == 1 and counts[0] > receive.op.ordinal


def _alone_on_its_way(job: ProxyJob, send: Transfer) -> bool:
    """Of sends that share a neighbour's proxy (PXN), NCCL may hold one back until all of them are ready."""
    beside = [other for other in job.all() if other.box is send.box and other.op.channel == send.op.channel]
    return all(other.state == "SendWait" for other in beside if other.op.sends and other.open)


def _is_ll(job: ProxyJob, transfer: Transfer) -> bool:
    op = job.op_of(transfer)
    return op is not None and op.protocol in ("LL", "LL128")


def _link(job: ProxyJob, stuck: _Stuck) -> StuckLink:
    receive = stuck.receive
    assert receive.peer is not None
    return StuckLink(
        sender=receive.peer,
        receiver=receive.rank,
        channels=(receive.op.channel,),
        step=stuck.step.step,
        steps=receive.op.steps,
        operation=receive.operation,
        how=stuck.how,
        since_ns=max(stuck.step.changed_ns, stuck.theirs.changed_ns),
        both_ran=_both_ran(job, stuck),
    )


def _both_ran(job: ProxyJob, stuck: _Stuck) -> Says:
    """Did the processes at both ends run, and the neighbour that sends for one of them?"""
    sender = None if stuck.receive.peer is None else job.boxes.get(stuck.receive.peer)
    ran = [job.ran(job.boxes[stuck.receive.rank]), Says.NOT_KNOWN if sender is None else job.ran(sender)]
    if stuck.send is not None and stuck.send.box is not sender:
        ran.append(job.ran(stuck.send.box))
    return next((says for says in (Says.NO, Says.NOT_KNOWN) if says in ran), Says.YES)
