"""mismatch, point-to-point: a rank sends to, or receives from, another peer than the one that waits for it."""

from collections import Counter
from collections.abc import Iterator

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt
from hangscope.diagnosis.align.call_order import outliers
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import shown
from hangscope.diagnosis.findings import cited, outlier_finding, who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits.counterparts import counterpart_of
from hangscope.diagnosis.waits.progress import Place
from hangscope.diagnosis.waits.wait_graph import Because, Wait
from hangscope.model import Communicator, Kind
from hangscope.text import verb

# ---- from dumps ------------------------------------------------------------------------------------------------------


def wrong_peer(case: Case) -> Iterator[Accusation]:
    """A rank inside a call whose peer has moved on, while another rank waits for it in a call it never made."""
    suspects = _suspects(case)
    # Those who wait for one with the wrong peer look alike; whose call is unusual is the one, and may be the peer.
    peers = {rank for _, wait, _ in suspects.values() for rank in wait.blockers}
    odd = outliers(case.progress, sorted(peers | set(suspects)), len(case.job.ranks)) if suspects else {}
    suspects = {rank: found for rank, found in suspects.items() if rank in odd or not odd}
    if not suspects:
        return
    accused: list[Accused] = []
    findings: list[Finding] = []
    for rank, (row, _, against) in sorted(suspects.items()):
        operation, giver = case.job.ops[row], against.inside[0].rank
        accused.append(Accused(rank, "mismatch", operation.title, text=f"but rank {giver} waits for it"))
        text = f"rank {rank} is inside {operation.title}, which its peer never answers, while rank {giver} is inside "
        text += f"{case.names.wait(against)} and waits for rank {rank}"
        sources = (*case.source(rank, operation), *case.source(giver))
        findings.append(Finding(text, sources, shown(operation.frames)))
    _, wait, against = suspects[min(suspects)]
    basis, doubts = Basis.PEER_ELSEWHERE, [Doubt.TWO_SIDES] if len(accused) > 1 else ()
    text = f"{accused[0].text} in {case.names.wait(against)}"
    waits = [w for _, own, other in suspects.values() for w in (own, other)]
    yield Accusation(basis, "mismatch", accused, wait, findings=findings, doubts=doubts, detail=text, explains=waits)


def _suspects(case: Case) -> dict[int, tuple[int, Wait, Wait]]:
    """rank → its row, what it waits in, and what waits for it."""
    found: dict[int, tuple[int, Wait, Wait]] = {}
    for wait in case.waits.all:
        lonely = [(row, c) for row, c in wait.counterparts if c.place is Place.NOT_LAUNCHED and c.common_start]
        for row, other in lonely[:1] if wait.point_to_point else ():
            rank = wait.inside[0].rank
            for against in case.waits.waits_on(rank):
                elsewhere = against.point_to_point and against is not wait and against.inside[0].rank != other.peer
                # Its peer is inside something else that waits for this rank in turn: it will never make this call.
                # An idle peer has not gone on; it is late, and blocks others by itself.
                offered = elsewhere and case.waits.of.get(other.peer) and _offers(case, against, rank, row)
                if offered and case.waits.chain(other.peer, {rank}):
                    found[rank] = (row, wait, against)
    return found


def _offers(case: Case, against: Wait, rank: int, row: int) -> bool:
    """Whether somebody offers what this rank asks another for: a send to it while it receives, or the reverse."""
    kinds = case.job.ops.column("kind")
    opposite = Kind.SEND if int(kinds[row]) == Kind.RECV else Kind.RECV
    unmet = [(r, c) for r, c in against.counterparts if c.place in (Place.NOT_LAUNCHED, Place.QUEUED)]
    return any(c.peer == rank and int(kinds[r]) == opposite for r, c in unmet)


# ---- from habit: the call looks finished, because its launch never ended --------------------------------------------


def unusual_peer(case: Case) -> Iterator[Accusation]:
    """A rank that is missed, and whose last calls name another peer than is usual there; that one never answered.

    A batch is recorded as a whole before it is launched: a rank that is stuck connecting to the wrong peer has it in
    its dump, often as completed.
    """
    waits = [w for w in case.waits.all if w.point_to_point]
    missed = {rank for w in waits for rank, because in w.blockers.items() if because is Because.NOT_LAUNCHED}
    idle = sorted(rank for rank in missed if all(not unit.rows for unit in case.progress.of[rank].inside))
    for outlier in outliers(case.progress, idle, len(case.job.ranks)).values():
        call, usual = case.job.ops[outlier.row], case.job.ops[outlier.usual_row]
        peer = call.destination if call.kind is Kind.SEND else call.source
        same = call.kind in (Kind.SEND, Kind.RECV) and (call.kind, call.frames) == (usual.kind, usual.frames)
        if not same or peer is None or _answered(case, call.row, call.rank, peer):
            continue
        waiting = [w for w in case.waits.waits_on(outlier.rank) if w.point_to_point]
        who = ranks_text({rank for w in waiting for rank in w.waiters})
        text = f"which rank {peer} does not answer, while {who} {verb(waiting, 'waits', 'wait')} for it"
        silence = Finding(f"rank {peer} never made the other side of {call.title}", case.source(peer))
        found = [outlier_finding(case, outlier), silence, who_waits(case, waiting[0])]
        accused = [Accused(outlier.rank, "mismatch", call.title, text=text)]
        basis, doubts = Basis.PEER_UNUSUAL, [Doubt.FEW_CONFIRM] if outlier.few_votes else ()
        yield Accusation(basis, "mismatch", accused, waiting[0], findings=found, doubts=doubts, detail=text)
        return


def _answered(case: Case, row: int, rank: int, peer: int) -> bool:
    """Whether the peer made the other side of a call, as far as anybody can say."""
    other = case.progress.of.get(peer)
    if other is None or other.source != "dump" or not other.own_record:
        return True  # nobody can say that it did not
    return counterpart_of(row, rank, peer, case.progress).row is not None


# ---- from NCCL's log: torch makes a communicator of two for an unbatched send or receive, then records the call ------


def open_connection(case: Case) -> Iterator[Accusation]:
    """Ranks that are stuck making a two-rank communicator with a peer that is elsewhere.

    In a pair's communicator the lower global rank is number 0. A rank whose possible peers have all gone on has named
    the wrong one; a rank that could still be waiting for such a rank is its victim.
    """
    open_pairs = _open_pairs(case)
    if not set(case.waits.blocking()) & set(open_pairs):
        return
    side = {rank: "above" if part.rank_in_comm == 0 else "below" for rank, part in open_pairs.items()}
    # Of those that are open, the highest has nobody above it, the lowest nobody below.
    outermost = {"above": max(open_pairs), "below": min(open_pairs)}
    astray = [rank for rank in open_pairs if rank == outermost[side[rank]]]
    wrong = {rank: f"a peer {side[rank]} it, and all of those went on" for rank in astray}
    named = wrong or dict.fromkeys(open_pairs, "a peer that connects to another rank")
    victims = set(open_pairs) - set(named)
    waiting = [w for w in case.waits.all if set(w.blockers) & set(open_pairs)]
    findings = []
    for rank, part in open_pairs.items():
        peer = f"it is its rank {part.rank_in_comm}, so its peer is {side[rank]} rank {rank}"
        text = f"rank {rank} is making a communicator of two ranks that nobody completes ({peer})"
        findings.append(cited(text, part.source))
    if victims:
        text = f"{ranks_text(victims)} can only be waiting for {ranks_text(named)}: everybody else went on"
        findings.append(Finding(text))
    accused = [Accused(rank, "mismatch", text=text) for rank, text in named.items()]
    basis, doubts = Basis.OPEN_CONNECTION, () if wrong else [Doubt.TWO_SIDES]
    wait, others = next(iter(waiting), None), ranks_text(victims) if victims else "the others"
    yield Accusation(
        basis, "mismatch", accused, wait, findings=findings, doubts=doubts, detail=others, explains=waiting
    )


def _open_pairs(case: Case) -> dict[int, Communicator]:
    """Idle ranks that started a two-rank communicator, never completed it, and whose partner never came."""
    parts = case.job.facts.communicators
    ranks = {(p.comm_id, p.rank) for p in parts}
    sizes = Counter(comm for comm, _ in ranks)
    idle = {rank for rank, mine in case.progress.of.items() if all(not unit.rows for unit in mine.inside)}
    alone = [p for p in parts if p.size == 2 and sizes[p.comm_id] == 1 and p.started and not p.completed]
    found = {p.rank: p for p in alone if p.rank is not None and p.rank in idle}
    return {rank: found[rank] for rank in sorted(found)}
