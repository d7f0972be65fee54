"""network: everybody launched; bytes do not arrive. Its twin, a GPU that fails inside NCCL, needs more evidence."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt, doubts_where
from hangscope.diagnosis.align.agreement import is_symmetric, members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.findings import kernel_lines, quoted
from hangscope.diagnosis.hardware import stuck_link, xids
from hangscope.diagnosis.hardware.nccl_rings import Way, ways_in
from hangscope.diagnosis.hardware.port_paths import Bearing, Trouble
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits.progress import Place
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Kind, Operation, State, TransportEvent
from hangscope.text import verb


def network(case: Case) -> Iterator[Accusation]:
    """Operations that every member has joined and that do not finish: cut off at the far end, a pair, or everybody."""
    waits = [w for w in case.waits.all if case.all_joined(w).says is Says.YES]
    # That some finished is seen, whoever else belongs to the group.
    finished = [w for w in case.waits.all if w.finished and not w.blockers and not w.point_to_point]
    broken = [w for w in finished if not members_not_recorded(case.groups[w.group])]
    collective = [w for w in waits if not w.point_to_point and len(w.inside) > 1]
    if broken:
        yield _cut_off(case, max(broken, key=lambda w: len(w.finished)))
    elif collective:
        yield _everyone(case, max(collective, key=lambda w: (w.age_s or 0.0, len(w.inside))))
    elif waits:
        yield _pair(case, waits)


# ---- some finished, some did not -------------------------------------------------------------------------------------


def _cut_off(case: Case, wait: Wait) -> Accusation:
    """Peers finished the operation that these ranks are inside of: the far end of a chain of transfers is cut off."""
    inside, title = set(wait.waiters), case.names.wait(wait)
    finished, stuck = ranks_text(wait.finished), ranks_text(inside)
    # An all_to_all goes over pairs, not along the ring; an all_reduce may go over trees instead.
    trees, pairs = (wait.name.startswith(names) for names in (("all_reduce", "allreduce"), ("all_to_all", "alltoall")))
    ways = ways_in(case.job, case.groups[wait.group], inside, set(wait.finished), trees=trees)
    path, only = case.ports.likeliest(*ways) if not pairs else (None, False)
    if path is None and len(inside) > 1 and not any(case.progress.of[r].timing for r in inside):
        # Nothing says whose GPU got there, and no ring says where bytes stop.
        return _untimed(case, wait, f"{finished} finished {title}, {stuck} did not")
    text = f"{finished} finished {case.names.wait_in_group(wait)}; {stuck} {verb(inside, 'is', 'are')} still inside it"
    findings, link = [Finding(text, case.source(min(inside)))], None
    accused = [Accused(rank, "network", title) for rank in sorted(inside)]
    bearing = case.ports.bearing(path) if path else None
    pointed = only and bearing is Bearing.HERE
    if path is not None:
        sender, receiver, channel = path.way
        link = stuck_link.make(case, path.way, f"channel {channel} of NCCL's log: {sender} -> {receiver}")
        accused = [Accused(receiver, "network", title, text=f"from rank {sender}")]
        receives = f"rank {receiver} receives from rank {sender}, which has finished"
        findings.append(Finding(f"in the ring of {case.names.group(wait.group)}, {receives}"))
    doubts = {
        Doubt.NOT_TIMED: not pointed and not all(case.progress.of[r].timing for r in inside),
        Doubt.EARLIER_DISAGREEMENT: not pointed and is_symmetric(wait.name),
        Doubt.NO_EDGE: path is None,
        Doubt.OTHER_WAYS: path is not None and not only,
        Doubt.ERRORS_ELSEWHERE: bearing is Bearing.ELSEWHERE,
    }
    findings += [quoted(event) for event in _naming_events(case, inside | set(wait.finished))[:1]]
    return Accusation(
        Basis.CUT_OFF, "network", accused, wait, link=link, findings=findings, doubts=doubts_where(doubts)
    )


# ---- a send and its receive, both launched ---------------------------------------------------------------------------


def _pair(case: Case, waits: list[Wait]) -> Accusation:
    """A send and its receive were both launched, and the data does not arrive: the pair itself is the link."""
    wait, operation = waits[0], _surest(case, waits)
    link, accused = None, []
    if operation is not None and operation.source is not None and operation.destination is not None:
        wait = next(w for w in waits if operation.row in w.inside[0].rows)
        evidence = f"{operation.title}: both sides launched it and it does not finish"
        link = stuck_link.make(case, Way(operation.source, operation.destination), evidence)
        accused = [
            Accused(operation.source, "network", operation.title, text="which does not arrive"),
            Accused(operation.destination, "network", text="receives it, and does not get it"),
        ]
    if not any(case.progress.of[rank].timing for w in waits for rank in w.waiters):
        return _untimed(case, wait, f"both sides of {case.names.wait(wait)} launched it, and it does not finish")
    who = ranks_text({u.rank for w in waits for u in w.inside})
    found = Finding(f"{who} wait in point-to-point calls whose other side has joined", case.source(wait.waiters[0]))
    return Accusation(Basis.PAIR, "network", accused, wait, link=link, findings=[found], explains=waits)


def _surest(case: Case, waits: list[Wait]) -> Operation | None:
    """A receive that waits for a send which its sender has finished is the surest of them."""
    pairs = [
        (other.place is not Place.COMPLETED, case.job.ops.column("kind")[row] != Kind.RECV, row)
        for wait in waits
        for row, other in wait.counterparts
        if other.row is not None or other.place is Place.COMPLETED
    ]
    return case.job.ops[min(pairs)[2]] if pairs else None


# ---- everyone is inside, nobody finished -----------------------------------------------------------------------------


def _everyone(case: Case, wait: Wait) -> Accusation:
    """All members are inside one operation. Warnings may name the link, an Xid the GPU; otherwise it is not known."""
    title, where = case.names.wait(wait), case.names.group(wait.group)
    hit = {rank: messages for rank in wait.waiters if (messages := xids.about(case.job, rank))}
    if hit:
        gpus = [Accused(rank, "gpu", title, text=f"Xid {found[0].code}") for rank, found in hit.items()]
        findings = [finding for messages in hit.values() for finding in kernel_lines(messages)]
        return Accusation(Basis.GPU_ERROR, "gpu", gpus, wait, findings=findings)
    started = len(wait.inside) > 1 and all(u.state is State.STARTED for u in wait.inside)
    how = "started" if started else "launched"
    text = f"all {len(wait.inside)} members of {where} {how} {title}, and none finished it"
    inside = Finding(text, case.source(wait.waiters[0]))
    naming = _naming_events(case, set(wait.waiters))
    if naming:
        return _named_by(case, wait, naming[0], inside)
    others, trouble = [quoted(e) for e in stuck_link.network_events(case.job)[:2]], case.ports.trouble(wait.waiters)
    doubts = doubts_where({Doubt.NOT_TIMED: not started, Doubt.MAY_RUN: not case.hang.age_known})
    if trouble is not None:
        return _at_ports(case, wait, trouble, inside, doubts)
    link, findings = None, [inside, *others]
    if len(wait.waiters) == 2:
        pair = case.ports.between(*wait.waiters)
        text = f"{text}; they have one connection, {pair}"
        link = stuck_link.make(case, pair.way, f"{where} has two members, and so one connection") if started else None
    if not started and not others:
        return _untimed(case, wait, text)
    return Accusation(Basis.EVERYBODY_INSIDE, "network", (), wait, link=link, findings=findings, doubts=doubts)


def _at_ports(case: Case, wait: Wait, trouble: Trouble, inside: Finding, doubts: list[Doubt]) -> Accusation:
    """Of all connections, those over the ports whose counters stand out."""
    accused = [Accused(rank, "network", case.names.wait(wait)) for rank in trouble.ranks]
    link = stuck_link.make(case, trouble.path.way, "the only connection over these ports") if trouble.only else None
    doubts = doubts if trouble.only else [*doubts, Doubt.NO_EDGE]
    return Accusation(
        Basis.PORT_ERRORS, "network", accused, wait, link=link, findings=[inside], doubts=doubts, detail=trouble.where
    )


def _untimed(case: Case, wait: Wait, text: str) -> Accusation:
    """Everybody is inside, and the recording does not say whose GPU got there."""
    found = [Finding(text, case.source(wait.waiters[0]))]
    return Accusation(Basis.EVERYBODY_LAUNCHED, "unknown", wait=wait, findings=found)


def _named_by(case: Case, wait: Wait, event: TransportEvent, inside: Finding) -> Accusation:
    link, accused = None, []
    if event.rank is not None:
        accused = [Accused(event.rank, "network", case.names.wait(wait))]
    if event.rank is not None and event.peer_rank is not None:
        link = stuck_link.make(case, case.ports.over(event.hca, event.rank, event.peer_rank), event.text)
        accused.append(Accused(event.peer_rank, "network", text="is the peer that the transport error names"))
    findings, doubts = [inside, quoted(event)], () if link else [Doubt.NO_EDGE]
    return Accusation(Basis.TRANSPORT_WARNING, "network", accused, wait, None, link, findings, doubts, detail=event)


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _naming_events(case: Case, ranks: set[int]) -> list[TransportEvent]:
    """The network warnings that name a device or a peer, on one of these ranks."""
    # Status 5 is a flush: a consequence of an earlier error on the same queue pair.
    events = [e for e in stuck_link.network_events(case.job) if e.status != 5 and (e.rank is None or e.rank in ranks)]
    return [e for e in events if e.hca is not None or e.peer_rank is not None or e.kind == "completion_error"]
