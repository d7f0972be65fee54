"""mismatch, point-to-point, by habit: a rank's last call names another peer than is usual there, which never answers.

A batch is recorded as a whole before it is launched: a rank that is stuck connecting to the wrong peer has it in its
dump, often as completed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.findings import outlier_finding, who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.call_order import Outlier, outliers
from hangscope.diagnosis.waits.counterparts import counterpart_of
from hangscope.diagnosis.waits.wait_graph import Because
from hangscope.model import Kind
from hangscope.text import verb

PEER_UNUSUAL = Grounds(
    "peer_unusual",
    Layer.OTHER_CALLS,
    HIGH,
    "a point-to-point call names a different peer than usual, and that peer never answers",
)


@dataclass(frozen=True, slots=True)
class UnusualPeer:
    """The unusual call, and the peer that it names."""

    outlier: Outlier
    peer: int


def propose(case: Case) -> Iterator[Accusation[UnusualPeer]]:
    """A rank that is missed, and whose last calls name another peer than is usual there; that one never answered."""
    for outlier in outliers(case.progress, _missed_and_idle(case), len(case.job.ranks)).values():
        peer = _unusual_peer(case, outlier)
        if peer is None or _answered(case, outlier.row, outlier.rank, peer):
            continue
        title = case.job.ops[outlier.row].title
        yield Accusation(
            PEER_UNUSUAL,
            CauseKind.MISMATCH,
            UnusualPeer(outlier, peer),
            [Accused(outlier.rank, CauseKind.MISMATCH, title)],
            next(w for w in case.waits.waits_on(outlier.rank) if w.point_to_point),
            doubts=doubts_where({Doubt.FEW_CONFIRM: outlier.few_votes}),
        )
        return


def _missed_and_idle(case: Case) -> list[int]:
    """Ranks that never launched what a peer waits for, and that are in no call of their own."""
    waits = [wait for wait in case.waits.all if wait.point_to_point]
    missed = {rank for w in waits for rank, because in w.blockers.items() if because is Because.NOT_LAUNCHED}
    return sorted(rank for rank in missed if all(not unit.rows for unit in case.progress.of[rank].inside))


def _unusual_peer(case: Case, outlier: Outlier) -> int | None:
    """The peer that a send or receive names which otherwise is the usual call there."""
    call = case.job.ops[outlier.row]
    usual = case.job.ops[outlier.usual_row]
    if call.kind not in (Kind.SEND, Kind.RECV) or (call.kind, call.frames) != (usual.kind, usual.frames):
        return None
    return call.destination if call.kind is Kind.SEND else call.source


def _answered(case: Case, row: int, rank: int, peer: int) -> bool:
    """Whether the peer made the other side of a call, as far as anybody can say."""
    other = case.progress.of.get(peer)
    if other is None or other.source != "dump" or not other.own_record:
        return True  # nobody can say that it did not
    return counterpart_of(row, rank, peer, case.progress).row is not None


def words(case: Case, accusation: Accusation[UnusualPeer]) -> Words:
    outlier = accusation.facts.outlier
    peer = accusation.facts.peer
    title = accusation.accused[0].operation
    waiting = [wait for wait in case.waits.waits_on(outlier.rank) if wait.point_to_point]
    who = ranks_text({rank for wait in waiting for rank in wait.waiters})
    unanswered = Finding(f"rank {peer} never made the other side of {title}", case.source(peer))
    return who_did_what(
        case,
        accusation,
        f"called {title}, which rank {peer} never answers, while {who} {verb(waiting, 'waits', 'wait')} for it",
        ": the send and recv do not match, and the job hangs.",
        why=[outlier_finding(case, outlier), unanswered, who_waits(case, waiting[0])],
        steps=[f"code: check the peer that rank {outlier.rank} passes to {title}"],
    )


CAUSE = Cause(propose, words, (PEER_UNUSUAL,))
