"""mismatch, point-to-point, by NCCL's log: ranks that are stuck making a two-rank communicator with the wrong peer.

For an unbatched send or receive torch makes a communicator of two, and records the call only after that.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.advice import COLLECT
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.findings import cited
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Communicator
from hangscope.text import verb

OPEN_CONNECTION = Grounds(
    "open_connection", Layer.OTHER_CALLS, MEDIUM, "unfinished two-rank communicators in NCCL's log that do not pair up"
)


@dataclass(frozen=True, slots=True)
class OpenPairs:
    """The communicators of two that nobody completes, by the rank that began them. `peers_went_on`: whether all ranks
    that an accused one can have named have gone on."""

    by_rank: Mapping[int, Communicator]
    peers_went_on: bool


def propose(case: Case) -> Iterator[Accusation[OpenPairs]]:
    """Ranks that are stuck making a two-rank communicator with a peer that is elsewhere.

    A rank whose possible peers have all gone on has named the wrong one; a rank that could still be waiting for such a
    rank is its victim.
    """
    open_pairs = _open_pairs(case)
    if set(open_pairs).isdisjoint(case.waits.blocking()):
        return
    # Of those that are open, the highest has nobody above it, the lowest nobody below.
    outermost = {"above": max(open_pairs), "below": min(open_pairs)}
    wrong = [rank for rank, part in open_pairs.items() if rank == outermost[_side_of_peer(part)]]
    waiting = [wait for wait in case.waits.all if not set(open_pairs).isdisjoint(wait.blockers)]
    yield Accusation(
        OPEN_CONNECTION,
        CauseKind.MISMATCH,
        OpenPairs(open_pairs, peers_went_on=bool(wrong)),
        [Accused(rank, CauseKind.MISMATCH) for rank in wrong or open_pairs],
        next(iter(waiting), None),
        doubts=() if wrong else [Doubt.TWO_SIDES],
        explains=waiting,
    )


def _open_pairs(case: Case) -> dict[int, Communicator]:
    """Idle ranks that started a two-rank communicator, never completed it, and whose partner never came."""
    parts = case.job.facts.communicators
    sizes = Counter(comm for comm, _ in {(p.comm_id, p.rank) for p in parts})
    alone = [p for p in parts if p.size == 2 and sizes[p.comm_id] == 1 and p.started and not p.completed]
    idle = {rank for rank, mine in case.progress.of.items() if all(not unit.rows for unit in mine.inside)}
    found = {p.rank: p for p in alone if p.rank is not None and p.rank in idle}
    return {rank: found[rank] for rank in sorted(found)}


def _side_of_peer(part: Communicator) -> str:
    """In a pair's communicator the lower global rank is number 0."""
    return "above" if part.rank_in_comm == 0 else "below"


def words(case: Case, accusation: Accusation[OpenPairs]) -> Words:
    ranks = accusation.ranks
    pairs = accusation.facts.by_rank
    victims = set(pairs) - set(ranks)
    findings = [_finding(rank, part) for rank, part in pairs.items()]
    if victims:
        only = f"{ranks_text(victims)} can only be waiting for {ranks_text(ranks)}: everyone else moved on"
        findings.append(Finding(only))
    each = dict.fromkeys(ranks, "connects to a peer that connects to a different rank")
    if accusation.facts.peers_went_on:
        each = {
            rank: f"connects to a peer {_side_of_peer(pairs[rank])} it, and all of those moved on" for rank in ranks
        }
    others = ranks_text(victims) if victims else "the others"
    check = f"code: check the peer that {ranks_text(ranks)} {verb(ranks, 'passes', 'pass')} to send or recv"
    return who_did_what(
        case,
        accusation,
        f"{verb(ranks, 'connects', 'connect')} to a point-to-point peer that does not connect back",
        f", while {others} wait: the send and recv do not match.",
        why=findings,
        steps=[check, COLLECT],
        each=each,
    )


def _finding(rank: int, part: Communicator) -> Finding:
    peer = f"it is its rank {part.rank_in_comm}, so its peer is {_side_of_peer(part)} rank {rank}"
    return cited(f"rank {rank} is creating a two-rank communicator that never completes ({peer})", part.source)


CAUSE = Cause(propose, words, (OPEN_CONNECTION,))
