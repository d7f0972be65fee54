"""absent, gpu, where nothing says who waits for which rank: the few that wait in nothing while everybody else does.

Whoever is kept waiting is inside something. That needs no members: where all others are inside an operation, a rank
that has finished all that it launched is what they wait for; where all other GPUs have started what they wait in, a GPU
that has not started its oldest operation is stuck before it.
"""

from collections.abc import Iterator, Mapping

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.advice import BY_CALL
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import at, line, shown
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.progress import RankProgress
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import State
from hangscope.text import plural, verb

IDLE = Grounds(
    "idle",
    Layer.MISSED_RANKS,
    MEDIUM,
    "every waiting rank is inside an operation; group membership is not recorded",
)

# At most one rank in so many: more would rather mean that their dumps were taken at another time.
_FEW = 8
# Where the others were looked at while they waited, so many.
_FEW_OF_THOSE_LOOKED_AT = 2
_RENDEZVOUS = "rendezvous"
_FRAMES_SHOWN = 4

_Seen = Mapping[int, RankProgress]


# ---- what it looks for -----------------------------------------------------------------------------------------------


def propose(case: Case) -> Iterator[Accusation[None]]:
    """The few ranks that wait in nothing, or whose GPU waits in nothing, while everybody else does.

    Asked where nothing says who is in which group (torch 2.2), at which place of it an operation is, or its peer.
    """
    if not any(_is_not_placed(case, wait) for wait in case.waits.all):
        return
    looked_at = _looked_at(case)
    seen = {rank: mine for rank, mine in case.progress.of.items() if mine.own_record or rank in looked_at}
    if len(seen) < len(case.job.ranks):
        return  # whose recording is missing may as well be the one
    idle = _idle(seen)
    kind = CauseKind.ABSENT if idle else CauseKind.GPU
    ranks = idle or _not_started(case, seen)
    if ranks and _are_few(ranks, seen, looked_at):
        title = _last_title(case, ranks[0])
        yield Accusation(
            IDLE,
            kind,
            None,
            [Accused(rank, kind, title) for rank in ranks],
            max(case.waits.all, key=lambda wait: len(wait.inside)),
            doubts=doubts_where({Doubt.OTHER_GROUPS_POSSIBLE: len(ranks) > 1}),
            explains=case.waits.all,
        )


def _is_not_placed(case: Case, wait: Wait) -> bool:
    """Whether nothing says for which ranks an operation waits: no peer, no number, or no members."""
    nowhere = not wait.counterparts if wait.point_to_point else wait.seq is None
    return nowhere or members_not_recorded(case.groups[wait.group])


def _looked_at(case: Case) -> set[int]:
    """Ranks that were seen to wait, or to move, besides what their dumps say."""
    processes = case.job.processes.items()
    looked_at = {rank for rank, process in processes if process.waits_in is not None or process.moved}
    reported = {rank for rank, mine in case.progress.of.items() if any(unit.report for unit in mine.inside)}
    return looked_at | reported


def _idle(seen: _Seen) -> list[int]:
    """Ranks that wait in nothing. Who still looks for the store holds up those that have found it."""
    idle = [rank for rank, mine in seen.items() if not mine.inside]
    return idle or [rank for rank, mine in seen.items() if {unit.name for unit in mine.inside} == {_RENDEZVOUS}]


def _not_started(case: Case, seen: _Seen) -> list[int]:
    """Ranks whose GPU has not started its oldest operation, where every recording says whose has."""
    found = [rank for rank, mine in seen.items() if mine.inside and mine.inside[0].state is State.SCHEDULED]
    # Where nothing says that it hangs at all, in a job that runs some GPU is always on its way.
    may_run = len(found) > 1 and not case.hang.age_known
    return found if not may_run and all(mine.timing for mine in seen.values()) else []


def _are_few(ranks: list[int], seen: _Seen, looked_at: set[int]) -> bool:
    if len(ranks) == 1 and len(seen) > 2:
        return True
    all_others_looked_at = looked_at.issuperset(seen.keys() - ranks)
    return len(ranks) * (_FEW_OF_THOSE_LOOKED_AT if all_others_looked_at else _FEW) <= len(seen)


def _last_title(case: Case, rank: int) -> str:
    last = case.last_operation(rank)
    return last.title if last is not None else "nothing"


# ---- its words -------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[None]) -> Words:
    ranks = accusation.ranks
    names = ranks_text(ranks)
    last = case.last_operation(ranks[0])
    if accusation.kind is CauseKind.GPU:
        what = "launched an operation whose kernel never started, while all others started theirs"
        each = what
        step = f"node: check the GPU of {names}: nvidia-smi -q, dmesg | grep -i xid"
    elif case.progress.of[ranks[0]].inside:
        what = "has not reached the store that all others have found"
        each = _FINISHED
        step = BY_CALL[_RENDEZVOUS]
    else:
        what = f"{verb(ranks, 'is', 'are')}n't in a collective; all others are"
        each = _FINISHED if last is not None else "isn't in a collective; all others are"
        where = case.stacks.where(ranks[0])
        after = at(last.frames, "after") if last is not None else ""
        step = f"code: find out what {names} {verb(ranks, 'does', 'do')}{after} (data loading, checkpoint, a branch)"
        if where is not None:
            step = (
                f"code: rank {ranks[0]} is at {line(where.frame)} ({where.frame.name}); find out why it is stuck there"
            )
    others = len(case.job.ranks) - len(ranks)
    wait_too = f"{plural(others, 'rank')} {'waits' if others == 1 else 'wait'}"
    return who_did_what(
        case,
        accusation,
        what,
        f": {wait_too}, as in {case.names.wait(accusation.its_wait)}.",
        why=_findings(case, accusation),
        steps=[step],
        each=each,
    )


_FINISHED = "has finished everything it launched; all others are waiting in an operation"


def _findings(case: Case, accusation: Accusation[None]) -> list[Finding]:
    ranks = accusation.ranks
    absent = accusation.kind is CauseKind.ABSENT
    last = case.last_operation(ranks[0])
    did = "launched an operation whose kernel never started"
    if absent:
        did = f"{verb(ranks, 'has', 'have')} finished every operation launched"
    text = f"{ranks_text(ranks)} {did}; the last is {accusation.accused[0].operation}"
    if last is None:
        text = f"of {ranks_text(ranks)} no operation is recorded"
    findings = [Finding(text, case.source(ranks[0], last), shown(last.frames) if last is not None else ())]
    for rank, stack in case.stacks.of_all(ranks if absent else ()).items():
        findings.append(Finding(f"rank {rank} is here", (stack.source,), shown(stack.frames, _FRAMES_SHOWN)))
    others = len(case.job.ranks) - len(ranks)
    findings.append(
        Finding(f"the other {plural(others, 'rank')} {'is' if others == 1 else 'are'} inside unfinished operations")
    )
    return findings


CAUSE = Cause(propose, words, (IDLE,))
