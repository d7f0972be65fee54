"""dead, frozen: a rank whose end or freeze was seen, where no recording shows an operation that waits for it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.advice import ended_step, out_of_memory_step, raised_step
from hangscope.diagnosis.causes.shared.blocker_words import what_it_did, what_they_did
from hangscope.diagnosis.causes.shared.blockers import Blocker, silent_agents
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.evidence.liveness import How, Is, Life
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import FailureKind

END_SEEN = Grounds(
    "end_seen",
    Layer.MISSED_RANKS,
    MEDIUM,
    "its exit was seen; no dump shows who was waiting for it",
    before={
        "link_stuck": "test_edges.py::test_an_end_goes_before_a_link_that_does_not_move",
        "last_waited_for": "test_edges.py::test_an_end_goes_before_what_transfers_say_of_the_same_rank",
    },
)


@dataclass(frozen=True, slots=True)
class Ended:
    """The ranks that ended, or else those that froze."""

    blockers: tuple[Blocker, ...]


def propose(case: Case) -> Iterator[Accusation[Ended]]:
    """Ranks whose end was seen; where there is none, those whose freeze was."""
    hangs = case.hang.says is Says.YES
    seen = _ends_and_freezes(case, hangs)
    ended = {rank: life for rank, life in seen.items() if life.state is Is.ENDED}
    if not seen:
        return
    kind = CauseKind.DEAD if ended else CauseKind.FROZEN
    blockers = tuple(Blocker(rank, kind, life=life) for rank, life in (ended or seen).items())
    yield Accusation(
        END_SEEN,
        kind,
        Ended(blockers),
        [Accused(blocker.rank, kind) for blocker in blockers],
        doubts=[Doubt.AGENT_GONE] if _may_have_followed(case, blockers) else (),
        explains=case.waits.all,
        hang=hangs or bool(case.waits.all),
    )


def _may_have_followed(case: Case, ended: Iterable[Blocker]) -> bool:
    """Whether nobody says why they ended, while nobody knows what became of the ranks of another node."""
    away = {rank for failure in silent_agents(case) for rank in failure.ranks}
    return bool(away.difference(each.rank for each in ended)) and any(_says_not_why(each.life) for each in ended)


def _says_not_why(life: Life | None) -> bool:
    """Whether it exited with a status of its own, as ranks also do that lost a peer, and left no other word."""
    if life is None or life.how is not How.STATUS or life.process is None:
        return False
    return life.error is None and (life.process.exit_status or 0) > 0


def _lost_with_a_node(case: Case) -> bool:
    return any(
        failure.kind in (FailureKind.NODE_SILENT, FailureKind.NODE_FAILED) for failure in case.job.facts.failures
    )


def _ends_and_freezes(case: Case, hangs: bool) -> dict[int, Life]:
    """What was seen of the ranks that did harm.

    One that exited with status 0 did none, unless the others hang and it left nothing behind.
    """
    found: dict[int, Life] = {}
    node_lost = _lost_with_a_node(case)
    for rank in sorted(set(case.job.ranks) - case.liveness.finished_cleanly):
        life = case.liveness.of(rank)
        if node_lost and _says_not_why(life):
            continue  # the node that was lost explains it
        harmful = not life.clean or (hangs and rank not in case.job.dumps)
        if life.seen and harmful and life.state in (Is.ENDED, Is.FROZEN):
            found[rank] = life
    return found


def words(case: Case, accusation: Accusation[Ended]) -> Words:
    blockers = accusation.facts.blockers
    lives = [(blocker.rank, blocker.life) for blocker in blockers if blocker.life is not None]
    findings = [finding for _, life in lives for finding in life.findings]
    return who_did_what(
        case,
        accusation,
        what_they_did(case, blockers),
        ", and the job could not continue.",
        why=findings or [Finding("its exit was seen")],
        steps=_steps(accusation, lives),
        each={blocker.rank: what_it_did(case, blocker) for blocker in blockers},
    )


def _steps(accusation: Accusation[Ended], lives: Sequence[tuple[int, Life]]) -> list[str]:
    errors = [(rank, life.error) for rank, life in lives if life.error is not None]
    raised = [raised_step(f"rank {rank}", error) for rank, error in errors if error.frames]
    starved = [rank for rank, life in lives if life.how is How.OUT_OF_MEMORY]
    if raised or starved:
        return raised or [out_of_memory_step(ranks_text(starved))]
    if accusation.kind is not CauseKind.DEAD:
        return [f"node: look at the processes of {ranks_text(accusation.ranks)}: dmesg, /proc, the scheduler's log"]
    statuses = {life.process.exit_status if life.process is not None else None for _, life in lives}
    return [ended_step(ranks_text(accusation.ranks), statuses.pop() if len(statuses) == 1 else None)]


CAUSE = Cause(propose, words, (END_SEEN,))
