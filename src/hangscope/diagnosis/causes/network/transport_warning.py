"""network: everybody is inside one operation, and NCCL's own warning names the failing connection."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.everybody_joined import TransportWarning, all_inside, find_joined, find_sign
from hangscope.diagnosis.causes.shared.port_steps import link_steps, ports_step
from hangscope.diagnosis.findings import quoted
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import TransportEvent
from hangscope.text import short

TRANSPORT_WARNING = Grounds(
    "transport_warning",
    Layer.STUCK_BYTES,
    HIGH,
    "everyone is inside, and NCCL's own warning names the failing connection",
)


def propose(case: Case) -> Iterator[Accusation[TransportWarning]]:
    """The ends of a connection of which NCCL warns, while everybody is inside one operation."""
    wait = case.once(find_joined).everybody
    sign = case.once(find_sign)
    if wait is None or not isinstance(sign, TransportWarning):
        return
    event = sign.event
    accused = []
    way = None
    if event.rank is not None:
        accused.append(Accused(event.rank, CauseKind.NETWORK, case.names.wait(wait)))
        if event.peer_rank is not None:
            accused.append(Accused(event.peer_rank, CauseKind.NETWORK))
            way = case.ports.over(event.hca, event.rank, event.peer_rank)
    doubts = () if way is not None else [Doubt.NO_EDGE]
    yield Accusation(TRANSPORT_WARNING, CauseKind.NETWORK, sign, accused, wait, way=way, doubts=doubts)


def words(case: Case, accusation: Accusation[TransportWarning]) -> Words:
    event = accusation.facts.event
    title = case.names.wait(accusation.its_wait)
    port = _port(event)
    who = event.node or "a rank that its log does not name"
    where = who
    if event.rank is not None:
        who = f"rank {event.rank}"
        where = case.names.ranks([event.rank])
    device = f" on {event.hca}" if event.hca else ""
    each = {a.rank: f"NCCL on it reports a transport error{device}" for a in accusation.accused[:1]}
    each |= {a.rank: "is the peer that the transport error names" for a in accusation.accused[1:]}
    warns = f"NCCL on {where} reports {short(event.text, 120)}{port}"
    return Words(
        headline=f"NCCL on {who} reports a transport error{port} inside {title}",
        summary=f"Network: all members are inside {title}, and {warns}.",
        why=[all_inside(case, accusation.its_wait), quoted(event)],
        each=each,
        steps=link_steps(case, accusation.way) or [ports_step(case, accusation.ranks)],
        link=event.text,
    )


def _port(event: TransportEvent) -> str:
    """`` (mlx5_3, port 1)``."""
    if not event.hca:
        return ""
    return f" ({event.hca}, port {event.port})" if event.port else f" ({event.hca})"


CAUSE = Cause(propose, words, (TRANSPORT_WARNING,))
