"""mismatch, point-to-point: a rank sends to, or receives from, another peer than the one that waits for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import shown
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.call_order import outliers
from hangscope.diagnosis.waits.progress import Place
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Kind

PEER_ELSEWHERE = Grounds(
    "peer_elsewhere",
    Layer.OTHER_CALLS,
    HIGH,
    "a point-to-point call names a peer that moved on, while another offers what it asks for",
)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A rank's call that its peer never answers (`row`, in `wait`), and a call of another rank that offers it the same
    (`offer`)."""

    row: int
    wait: Wait
    offer: Wait

    @property
    def giver(self) -> int:
        """The rank that waits for it in vain."""
        return self.offer.inside[0].rank


@dataclass(frozen=True, slots=True)
class WrongPeers:
    """The accused ranks' calls, in the order of ranks."""

    by_rank: Mapping[int, Unanswered]


def propose(case: Case) -> Iterator[Accusation[WrongPeers]]:
    """A rank inside a call whose peer has moved on, while another rank waits for it in a call it never made."""
    suspects = _suspects(case)
    if not suspects:
        return
    # Those who wait for one with the wrong peer look alike; whose call is unusual is the one, and may be the peer.
    peers = {rank for call in suspects.values() for rank in call.wait.blockers}
    odd = outliers(case.progress, sorted(peers | set(suspects)), len(case.job.ranks))
    chosen = {rank: call for rank, call in sorted(suspects.items()) if rank in odd or not odd}
    if not chosen:
        return
    accused = [Accused(rank, CauseKind.MISMATCH, case.job.ops[call.row].title) for rank, call in chosen.items()]
    yield Accusation(
        PEER_ELSEWHERE,
        CauseKind.MISMATCH,
        WrongPeers(chosen),
        accused,
        chosen[min(chosen)].wait,
        doubts=[Doubt.TWO_SIDES] if len(accused) > 1 else (),
        explains=[wait for call in chosen.values() for wait in (call.wait, call.offer)],
    )


def _suspects(case: Case) -> dict[int, Unanswered]:
    """Rank → its call that is never answered."""
    found: dict[int, Unanswered] = {}
    for wait in case.waits.all:
        if not wait.point_to_point:
            continue
        alone = [(row, c.peer) for row, c in wait.counterparts if c.place is Place.NOT_LAUNCHED and c.common_start]
        for row, peer in alone[:1]:
            rank = wait.inside[0].rank
            for offer in case.waits.waits_on(rank):
                if offer is not wait and _is_offered_elsewhere(case, offer, rank, row, peer):
                    found[rank] = Unanswered(row, wait, offer)
    return found


def _is_offered_elsewhere(case: Case, offer: Wait, rank: int, row: int, peer: int) -> bool:
    """Whether another one than the peer offers what this rank asks the peer for, which will never make this call.

    It never will where it is inside something else that waits for this rank in turn. An idle peer has not gone on; it
    is late, and blocks others by itself.
    """
    elsewhere = offer.point_to_point and offer.inside[0].rank != peer
    peer_waits = bool(case.waits.of.get(peer))
    return elsewhere and peer_waits and _offers(case, offer, rank, row) and bool(case.waits.chain(peer, {rank}))


def _offers(case: Case, offer: Wait, rank: int, row: int) -> bool:
    """Whether somebody offers what this rank asks another for: a send to it while it receives, or the reverse."""
    kinds = case.job.ops.column("kind")
    opposite = Kind.SEND if int(kinds[row]) == Kind.RECV else Kind.RECV
    unmet = [(r, c) for r, c in offer.counterparts if c.place in (Place.NOT_LAUNCHED, Place.QUEUED)]
    return any(c.peer == rank and int(kinds[r]) == opposite for r, c in unmet)


def words(case: Case, accusation: Accusation[WrongPeers]) -> Words:
    calls = accusation.facts.by_rank
    first = accusation.accused[0]
    each = {a.rank: f"called {a.operation}, but rank {calls[a.rank].giver} waits for it" for a in accusation.accused}
    return who_did_what(
        case,
        accusation,
        f"{each[first.rank]} in {case.names.wait(calls[first.rank].offer)}",
        ": the send and recv do not match, and the job hangs.",
        why=[_finding(case, rank, call) for rank, call in calls.items()],
        steps=[f"code: check the peer that rank {first.rank} passes to {first.operation}"],
        each=each,
    )


def _finding(case: Case, rank: int, call: Unanswered) -> Finding:
    operation = case.job.ops[call.row]
    text = f"rank {rank} is inside {operation.title}, which its peer never answers, while rank {call.giver} is inside "
    text += f"{case.names.wait(call.offer)} and waits for rank {rank}"
    sources = (*case.source(rank, operation), *case.source(call.giver))
    return Finding(text, sources, shown(operation.frames))


CAUSE = Cause(propose, words, (PEER_ELSEWHERE,))
