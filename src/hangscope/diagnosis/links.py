"""From "bytes do not arrive" to the connection: the ring or tree in NCCL's log, and the pair that its warnings name."""

from hangscope.diagnosis.verdict import Link, LinkEnd
from hangscope.model import Communicator, Group, Job, TransportEvent

NETWORK_EVENTS = ("completion_error", "async_event", "connection_error", "connect_failed")


def rings(job: Job, group: Group) -> dict[int, dict[int, int]]:
    """Per channel: global rank → next global rank of the group's communicator, from the logs of its members."""
    members = group.members or ()
    newest = {c.rank: c for c in job.facts.communicators if c.rank is not None and c.rings and _belongs(c, members)}
    found: dict[int, dict[int, int]] = {}
    for rank, part in newest.items():
        for channel, (before, after) in part.rings.items():
            following = found.setdefault(channel, {})
            if 0 <= after < len(members):
                following[rank] = members[after]
            if 0 <= before < len(members):
                following.setdefault(members[before], rank)
    return found


def _belongs(part: Communicator, members: tuple[int, ...]) -> bool:
    place = part.rank_in_comm
    return part.size == len(members) and part.rank is not None and members[place : place + 1] == (part.rank,)


def upstream_edge(job: Job, group: Group, stuck: set[int], finished: set[int]) -> tuple[int, int, int] | None:
    """The one edge of the ring from a rank that finished to a rank that is stuck: (from, to, channel).

    Data flows along the ring, so the first stuck rank behind a finished one is where bytes stop arriving.
    """
    for channel, following in sorted(rings(job, group).items()):
        edges = [(a, b) for a, b in sorted(following.items()) if a in finished and b in stuck]
        if len(edges) == 1:
            return (*edges[0], channel)
    return None


def make(job: Job, sender: int, receiver: int, channel: int | None, evidence: str) -> Link:
    """A link with the nodes and network interfaces at both ends, as far as NCCL's log names them."""
    sending = LinkEnd(sender, job.nodes.get(sender), _nic(job, sender, receiver, channel, "send"))
    receiving = LinkEnd(receiver, job.nodes.get(receiver), _nic(job, sender, receiver, channel, "receive"))
    return Link(sending, receiving, channel, evidence)


def _nic(job: Job, sender: int, receiver: int, channel: int | None, side: str) -> str | None:
    edges = [edge for part in job.facts.communicators for edge in part.edges if channel in (None, edge.channel)]
    nics = [e.nic for e in edges if (e.sender, e.receiver, e.side) == (sender, receiver, side)]
    return nics[-1] if nics else None


def network_events(job: Job, before_ns: int | None) -> list[TransportEvent]:
    """NCCL's warnings about the network itself, not those that any process exit causes, oldest first."""
    # What comes after the first victim gave up is mostly its own teardown.
    events = [
        e
        for e in job.facts.transport
        if e.kind in ("completion_error", "async_event")
        or (e.kind in NETWORK_EVENTS and (before_ns is None or e.at_ns is None or e.at_ns <= before_ns))
    ]
    return sorted(events, key=lambda e: (e.at_ns is None, e.at_ns or 0, str(e.source)))
