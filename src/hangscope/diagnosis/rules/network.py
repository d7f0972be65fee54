"""network: everybody launched; bytes do not arrive. Its twin, a GPU that fails inside NCCL, needs more evidence."""

from __future__ import annotations

from hangscope.diagnosis import links
from hangscope.diagnosis.align import is_guessed
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding, Link
from hangscope.diagnosis.waits import Wait
from hangscope.diagnosis.words import ranks_text
from hangscope.model import State, TransportEvent

_COLLECT = (
    "next time collect NCCL's log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH (rings, channels, NICs), "
    "and the network counters from before and after: `hangscope run` does both"
)


def network(case: Case) -> Draft | None:
    """Operations that every member has joined and that do not finish."""
    joined = [w for w in case.waits.all if not w.blockers and is_whole(case, w)]
    return nobody_missing(case, joined) if joined else None


def nobody_missing(case: Case, waits: list[Wait]) -> Draft:
    """Judge operations that wait for no rank: cut off at the far end, a pair, or everybody inside."""
    broken = [w for w in waits if w.finished and not w.point_to_point]
    if broken:
        return _partial(case, max(broken, key=lambda w: len(w.finished)))
    collective = [w for w in waits if not w.point_to_point]
    if not collective:
        return _pair(case, waits)
    return _everyone(case, max(collective, key=lambda w: len(w.inside)))


def is_whole(case: Case, wait: Wait) -> bool:
    """Whether it is known who belongs to the operation: otherwise nobody can say that all have joined."""
    if wait.point_to_point:
        return bool(wait.counterparts)
    group = case.groups[wait.group]
    if is_guessed(group):
        return len(wait.inside) == len(case.job.ranks)
    return group.members is not None


# ---- some finished, some did not -------------------------------------------------------------------------------------


def _partial(case: Case, wait: Wait) -> Draft:
    """Peers finished the operation that these ranks are inside of: the far end of a chain of transfers is cut off."""
    group = case.groups[wait.group]
    inside = set(wait.waiters)
    # An all_to_all goes over pairs, not along the ring.
    ring = not wait.name.startswith(("all_to_all", "alltoall"))
    edge = links.upstream_edge(case.job, group, inside, set(wait.finished)) if ring else None
    title = case.title(wait)
    if edge is None and len(inside) > 1 and not any(case.standings.of[r].timing for r in inside):
        # Nothing says whose GPU got there, and no ring says where bytes stop.
        text = f"{ranks_text(wait.finished)} finished {title}, {ranks_text(inside)} did not"
        return _untimed(case, wait, Finding(text, case.source(min(inside))))
    why = [
        Finding(
            f"{ranks_text(wait.finished)} finished {title} of {case.group_label(wait.group)}; "
            f"{ranks_text(inside)} {'is' if len(inside) == 1 else 'are'} still inside it",
            case.source(min(inside)),
        )
    ]
    link: Link | None = None
    culprits = dict.fromkeys(sorted(inside), f"is stuck in {title}, which its peers have finished")
    event = _naming_event(case, inside | set(wait.finished))
    if edge is not None:
        sender, receiver, channel = edge
        link = links.make(
            case.job, sender, receiver, channel, f"ring {channel:02d} of NCCL's log: {sender} -> {receiver}"
        )
        culprits = {receiver: f"receives {title} from rank {sender}, and does not get it"}
        why.append(
            Finding(
                f"in the ring of {case.group_label(wait.group)}, rank {receiver} receives from rank "
                f"{sender}, which has finished",
                (),
            )
        )
    if event is not None:
        why.append(_event_finding(event))
    where = f"from rank {link.sender.rank} to rank {link.receiver.rank}" if link else f"towards {ranks_text(inside)}"
    timing = all(case.standings.of[r].timing for r in inside)
    # An all_reduce that some finish and some do not may also be the trace of an earlier disagreement.
    sure = "high" if link is not None and timing and not case.is_symmetric(wait) else "medium"
    return Draft(
        kind="network",
        headline=f"{title} does not arrive at {ranks_text(culprits)}",
        summary=f"Bytes of {title} do not get through {where}: {ranks_text(wait.finished)} finished it, "
        f"{ranks_text(inside)} "
        f"{'is' if len(inside) == 1 else 'are'} stuck inside it.",
        confidence=sure,
        rule="network: some members finished, and the ring in NCCL's log names the edge to the first that did not"
        if link
        else "network: some members finished and some did not; the edge is not determined",
        culprits=culprits,
        wait=wait,
        link=link,
        why=why,
        next_steps=_link_steps(link) if link else [_ports_step(case, sorted(inside)), _COLLECT],
    )


# ---- a send and its receive, both launched ---------------------------------------------------------------------------


def _pair(case: Case, waits: list[Wait]) -> Draft:
    """A send and its receive were both launched, and the data does not arrive: the pair itself is the link."""
    ops = case.job.ops
    pairs = [
        (ops[row], other)
        for wait in waits
        for row, other in wait.counterparts
        if other.row is not None or other.place.value == "completed"
    ]
    # A receive that waits for a send which its sender has finished is the surest of them.
    pairs.sort(key=lambda item: (item[1].place.value != "completed", item[0].kind.name != "RECV", item[0].row))
    wait = waits[0]
    link: Link | None = None
    culprits: dict[int, str] = {}
    if pairs:
        operation, _ = pairs[0]
        sender, receiver = operation.source, operation.destination
        if sender is not None and receiver is not None:
            wait = next(w for w in waits if operation.row in w.inside[0].rows)
            link = links.make(
                case.job, sender, receiver, None, f"{operation.title}: both sides launched it and it does not finish"
            )
            culprits = {
                sender: f"sends {operation.title}, which does not arrive",
                receiver: "receives it, and does not get it",
            }
    title = case.title(wait)
    if not any(case.standings.of[rank].timing for w in waits for rank in w.waiters):
        return _untimed(
            case,
            wait,
            Finding(f"both sides of {title} launched it, and it does not finish", case.source(wait.waiters[0])),
        )
    text = f"from rank {link.sender.rank} to rank {link.receiver.rank}" if link else f"in {title}"
    return Draft(
        kind="network",
        headline=f"bytes {text} do not arrive",
        summary=f"Sender and receiver both launched {title}, and bytes {text} do not arrive.",
        confidence="medium",
        rule="network: a point-to-point call that both ends launched does not finish",
        culprits=culprits,
        wait=wait,
        link=link,
        why=[
            Finding(
                f"{ranks_text({u.rank for w in waits for u in w.inside})} wait in point-to-point calls "
                f"whose other side has joined",
                case.source(wait.waiters[0]),
            )
        ],
        next_steps=_link_steps(link) if link else [_COLLECT],
    )


# ---- everyone is inside, nobody finished -----------------------------------------------------------------------------


def _everyone(case: Case, wait: Wait) -> Draft:
    """All members are inside one operation. Warnings may name the link, an Xid the GPU; otherwise it is not known."""
    title = case.title(wait)
    where = case.group_label(wait.group)
    started = [u for u in wait.inside if u.state is State.STARTED]
    hardware = _xid(case, wait)
    if hardware is not None:
        return hardware
    event = _naming_event(case, set(wait.waiters))
    inside = Finding(
        f"all {len(wait.inside)} members of {where} {'started' if len(started) == len(wait.inside) else 'launched'} "
        f"{title}, and none finished it",
        case.source(wait.waiters[0]),
    )
    if event is not None:
        return _named_by_event(case, wait, event, inside)
    all_started = len(started) == len(wait.inside) and bool(started)
    others = [_event_finding(e) for e in links.network_events(case.job, _first_timeout(case))[:2]]
    summary = f"Network or hardware inside {title} of {where}, edge not determined: all {len(wait.inside)} members "
    summary += "started it and none finished." if all_started else "launched it and none finished."
    if all_started or others:
        return Draft(
            kind="network",
            headline=f"network or hardware inside {title}, edge not determined",
            summary=summary,
            confidence="medium" if all_started else "low",
            rule="network: every member's GPU started the operation, and nobody finished it"
            if all_started
            else "network: everybody launched, and NCCL warned of the transport",
            wait=wait,
            why=[inside, *others],
            next_steps=[_ports_step(case, sorted(wait.waiters)), _COLLECT],
        )
    return _untimed(case, wait, inside)


def _untimed(case: Case, wait: Wait, inside: Finding) -> Draft:
    """Everybody is inside, and the recording does not say whose GPU got there."""
    title, where = case.title(wait), case.group_label(wait.group)
    return Draft(
        kind="unknown",
        headline=f"everybody is inside {title}; a GPU or the network, not determined",
        summary=f"All that take part launched {title} of {where} and do not finish it; whether a GPU never got there "
        "or bytes do not arrive is not recorded (timing was off).",
        confidence="low",
        rule="unknown: without timing, a GPU that never started looks like a network that does not deliver",
        wait=wait,
        why=[inside],
        next_steps=["set TORCH_NCCL_ENABLE_TIMING=1, so that the recorder tells started from scheduled", _COLLECT],
    )


def _xid(case: Case, wait: Wait) -> Draft | None:
    """A GPU error on one member while everybody is inside: the GPU, not the network."""
    hit = {rank: messages for rank in wait.waiters if (messages := case.gpu_messages(rank))}
    if not hit:
        return None
    title = case.title(wait)
    codes = ", ".join(str(messages[0].code) for messages in hit.values())
    return Draft(
        kind="gpu",
        headline=f"the GPU of {ranks_text(hit)} failed inside {title}",
        summary=f"The GPU of {ranks_text(hit)} reported an error (Xid {codes}) while all members were inside {title}.",
        confidence="high",
        rule="gpu: everybody started, and the kernel reports an Xid of one member's GPU",
        culprits={rank: f"its GPU reported Xid {messages[0].code}" for rank, messages in hit.items()},
        wait=wait,
        why=[Finding(f"kernel: {m.text[:160]}", (m.source,)) for messages in hit.values() for m in messages[:2]],
        next_steps=[
            f"node: drain {case.job.nodes.get(rank) or f'the node of rank {rank}'}, then nvidia-smi -q and a GPU reset"
            for rank in hit
        ],
    )


def _named_by_event(case: Case, wait: Wait, event: TransportEvent, inside: Finding) -> Draft:
    title = case.title(wait)
    reporter, peer = event.rank, event.peer_rank
    link = None
    culprits: dict[int, str] = {}
    if reporter is not None and peer is not None:
        link = links.make(case.job, reporter, peer, None, event.text)
        culprits = {
            reporter: "NCCL on it reports the transport error",
            peer: "is the peer that the transport error names",
        }
    elif reporter is not None:
        culprits = {reporter: f"NCCL on it reports a transport error{f' on {event.hca}' if event.hca else ''}"}
    at = f" ({event.hca}{f', port {event.port}' if event.port else ''})" if event.hca else ""
    where = case.who(reporter) if reporter is not None else event.node or "a rank"
    return Draft(
        kind="network",
        headline=f"NCCL on {ranks_text([reporter] if reporter is not None else [])} reports a transport "
        f"error{at} inside {title}",
        summary=f"Network: all members are inside {title}, and NCCL on {where} reports "
        f"{' '.join(event.text.split())[:120]}{at}.",
        confidence="high" if link else "medium",
        rule="network: everybody is inside, and NCCL's own warning names the failing connection",
        culprits=culprits,
        wait=wait,
        link=link,
        why=[inside, _event_finding(event)],
        next_steps=_link_steps(link) if link else [_ports_step(case, sorted(culprits))],
    )


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _first_timeout(case: Case) -> int | None:
    return min((r.at_ns for r in case.job.facts.watchdog if r.kind == "timeout" and r.at_ns is not None), default=None)


def _naming_event(case: Case, ranks: set[int]) -> TransportEvent | None:
    """The first network warning that names a device or a peer, on one of these ranks."""
    for event in links.network_events(case.job, _first_timeout(case)):
        named = event.hca is not None or event.peer_rank is not None or event.kind == "completion_error"
        # Status 5 is a flush: a consequence of an earlier error on the same queue pair.
        if named and event.status != 5 and (event.rank is None or event.rank in ranks):
            return event
    return None


def _event_finding(event: TransportEvent) -> Finding:
    who = f"rank {event.rank}" if event.rank is not None else event.node or "a rank"
    return Finding(f"NCCL on {who}: {' '.join(event.text.split())[:200]}", (event.source,))


def _link_steps(link: Link) -> list[str]:
    steps = []
    for end, word in ((link.sender, "sending"), (link.receiver, "receiving")):
        node = end.node or f"the node of rank {end.rank}"
        nic = f" {end.nic}" if end.nic else ""
        steps.append(
            f"link: check the {word} port{nic} on {node}: ibstat{nic}, rdma statistic, ethtool -S, dmesg | grep -i link"
        )
    steps.append("if the ports look well, swap one of the two nodes: the error follows the bad one")
    return steps


def _ports_step(case: Case, ranks: list[int]) -> str:
    nodes = sorted({case.job.nodes[r] for r in ranks if r in case.job.nodes})
    where = ", ".join(nodes[:8]) + (" …" if len(nodes) > 8 else "") if nodes else "the members' nodes"
    return (
        f"network: look for port errors on {where}: rdma statistic, ibstat, ethtool -S, dmesg | grep "
        f"-i -E 'mlx5|link|xid'"
    )
