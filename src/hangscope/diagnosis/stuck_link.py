"""From "bytes do not arrive" to the connection: its ends and ports, and the pair that NCCL's warnings name."""

from collections.abc import Iterator
from math import inf
from typing import Any

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.hardware.nccl_rings import Way
from hangscope.diagnosis.verdict import CauseKind, Finding, Link, LinkEnd
from hangscope.model import Job, TransportEvent

NETWORK_EVENTS = ("completion_error", "async_event", "connection_error", "connect_failed")


def make(case: Case, way: Way, evidence: str) -> Link:
    """A link with the nodes and NICs at both ends, as far as NCCL's log names them, and what rose on their ports."""
    path = case.ports.path(way)
    sending, receiving = (LinkEnd(end.rank, end.node, end.nic) for end in (path.sending, path.receiving))
    return Link(sending, receiving, way.channel, "; ".join(t for t in (evidence, case.ports.evidence(path)) if t))


def shown(case: Case, chosen: Accusation[Any]) -> Iterator[Finding]:
    """What the counters and the kernel say about a link's ports, or about ports that stand out where none is named."""
    if chosen.kind in (CauseKind.NETWORK, CauseKind.UNKNOWN) and chosen.hang:
        path = case.ports.path(chosen.way) if chosen.way is not None else None
        yield from case.ports.shows(path)


def network_events(job: Job) -> list[TransportEvent]:
    """NCCL's warnings about the network itself, not those that any process exit causes, oldest first."""
    # What comes after the first victim gave up is mostly its own teardown; the first two kinds no teardown causes.
    timeouts = [r.at_ns for r in job.facts.watchdog if r.kind == "timeout" and r.at_ns is not None]
    last = {kind: inf if at < 2 else min(timeouts, default=inf) for at, kind in enumerate(NETWORK_EVENTS)}
    events = [e for e in job.facts.transport if e.kind in last and (e.at_ns or 0) <= last[e.kind]]
    return sorted(events, key=lambda e: (e.at_ns is None, e.at_ns or 0, str(e.source)))
