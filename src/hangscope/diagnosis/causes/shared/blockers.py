"""Ranks that others wait for, and that wait for no one: which they are, and why they are where they are."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.liveness import Is, Life
from hangscope.diagnosis.verdict import CauseKind
from hangscope.diagnosis.waits.progress import RankProgress, Scope
from hangscope.diagnosis.waits.wait_graph import MADE_BY_ALL, Because, Wait
from hangscope.model import Failure, FailureKind

# Of so many ranks at most one may be without evidence: more were rather not collected.
_FEW_MISSING = 4
_SHOWN = 4


class Shown(Enum):
    """How it is known what a rank did: by its own evidence; by others' or its log; only by what is missing."""

    SEEN = auto()
    BY_OTHERS = auto()
    NOT_SHOWN = auto()


@dataclass(frozen=True, slots=True)
class Blocker:
    """One rank that others wait for. `operation` is its own side of what it never launched, or launched and its GPU
    never started."""

    rank: int
    kind: CauseKind
    operation: str = ""
    shown: Shown = Shown.SEEN
    life: Life | None = None

    @property
    def left_cleanly(self) -> bool:
        process = self.life.process if self.life is not None else None
        return self.kind is CauseKind.DEAD and process is not None and process.exit_status == 0


@dataclass(frozen=True, slots=True)
class Blockers:
    """All ranks that others wait for and that wait for no one, and those of them that are causes: no other one
    explains that they are missing. `unknown`: ranks of which nothing is known, and for which some wait who wait for
    none of the causes. `not_collected`: so much is missing that nobody can be named."""

    all: tuple[Blocker, ...]
    causes: tuple[Blocker, ...]
    unknown: tuple[int, ...]
    not_collected: bool


def find_blockers(case: Case) -> Blockers:
    found = _found(case)
    shown = [b for b in found if b.shown is not Shown.NOT_SHOWN]
    causes = _causes(case, shown)
    # A rank of which nothing is known is not accused while a known cause explains the hang.
    not_shown = [b.rank for b in found if b.shown is Shown.NOT_SHOWN]
    unknown = _independent(case, not_shown, {b.rank for b in causes})
    many = len(found) > 1 and len(found) * _FEW_MISSING > len(case.job.ranks)
    not_collected = bool(found) and not causes and (many or _is_excerpt(case) or _agents_are_gone(case, found))
    return Blockers(tuple(found), tuple(causes), tuple(unknown), not_collected)


def not_started(case: Case, rank: int) -> Wait:
    """The operation that a rank launched, and its GPU has not started."""
    return next(w for w in case.waits.waits_on(rank) if w.blockers.get(rank) is Because.NOT_STARTED)


def _found(case: Case) -> list[Blocker]:
    found = [blocker for rank in case.waits.blocking() if (blocker := _judged(case, rank)) is not None]
    if _was_a_failure_seen(case):
        found = [b for b in found if _is_down(b) or not _is_awaited_in_flight_alone(case, b.rank)]
    found = _without_several_silent(case, found)
    if len(found) > 1 and _members_not_recorded(case, found) and not any(b.kind is CauseKind.DEAD for b in found):
        return []  # different groups hide behind one number: most of these are not missing at all
    return found


def _without_several_silent(case: Case, found: list[Blocker]) -> list[Blocker]:
    """Of several ranks without a sign of life nothing is shown: one node that was not collected looks the same."""
    silent = {b.rank for b in found if b.shown is Shown.BY_OTHERS and not case.progress.of[b.rank].known}
    if len(silent) < 2:
        return found
    return [replace(b, shown=Shown.NOT_SHOWN) if b.rank in silent else b for b in found]


def _was_a_failure_seen(case: Case) -> bool:
    """Beside one, an operation in flight accuses nobody who lives."""
    lives = map(case.liveness.of, case.liveness.lost)
    return any(life.state is Is.ENDED and not life.clean for life in lives)


def _is_down(blocker: Blocker) -> bool:
    return blocker.kind in (CauseKind.DEAD, CauseKind.FROZEN)


def _is_awaited_in_flight_alone(case: Case, rank: int) -> bool:
    return all(wait.in_flight for wait in case.waits.waits_on(rank))


def _members_not_recorded(case: Case, found: Iterable[Blocker]) -> bool:
    waits = [wait for blocker in found for wait in case.waits.waits_on(blocker.rank)]
    return bool(waits) and all(members_not_recorded(case.groups[wait.group]) for wait in waits)


def _is_excerpt(case: Case) -> bool:
    """Who is not in an excerpt was merely not pasted."""
    return not (case.job.dumps or case.job.under_run or case.job.facts.is_a_log_whole)


def _agents_are_gone(case: Case, found: Iterable[Blocker]) -> bool:
    """Whether their evidence is missing because nobody was left on their nodes to save it."""
    return {blocker.rank for blocker in found} <= {rank for line in silent_agents(case) for rank in line.ranks}


def silent_agents(case: Case) -> list[Failure]:
    """What the other nodes' agents say of those that stopped reporting."""
    return [line for line in case.job.facts.failures if line.kind == FailureKind.AGENT_SILENT]


def gone_agents(case: Case, ranks: Iterable[int]) -> str:
    """Why there is no evidence from ranks, where their agents stopped reporting, as the end of a sentence."""
    lines = [line for line in silent_agents(case) if not set(line.ranks).isdisjoint(ranks)]
    nodes = sorted({line.node for line in lines if line.node is not None})
    if not nodes:
        return ""
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f": hangscope's agent on {', '.join(nodes[:_SHOWN])}{more} stopped reporting"


# ---- which are causes ------------------------------------------------------------------------------------------------


def _causes(case: Case, shown: list[Blocker]) -> list[Blocker]:
    """Those whose being missing no other one of them explains."""
    rest = _without_clean_ends(case, shown)
    # A rank that never came because the job was already falling apart is no second cause; one that lives on is.
    dead = {b.rank for b in rest if b.kind is CauseKind.DEAD}
    # Nor is a kernel that waits behind what such a rank holds up.
    down = {b.rank for b in rest if _is_down(b)}
    gpus = [b.rank for b in rest if b.kind is CauseKind.GPU]
    others = [b.rank for b in rest if b.kind is not CauseKind.GPU]
    causes = {*down, *_independent(case, gpus, down), *_independent(case, others, dead)}
    return [b for b in rest if b.rank in causes or not (down if b.kind is CauseKind.GPU else dead)]


def _without_clean_ends(case: Case, shown: list[Blocker]) -> list[Blocker]:
    """That a rank exited with status 0 explains nothing that another one's own record explains."""
    own = {b.rank for b in shown if b.shown is Shown.SEEN}
    left = [b.rank for b in shown if b.rank not in own and b.left_cleanly]
    explained = set(left).difference(_independent(case, left, own))
    return [b for b in shown if b.rank not in explained]


def _independent(case: Case, ranks: list[int], known: set[int]) -> list[int]:
    """Those ranks for which somebody waits who does not also wait for a known cause."""
    if not ranks:
        return []
    reach = case.waits.reaches(known)
    beside = {id(wait): set(wait.waiters).difference(reach) for wait in case.waits.all}
    return [rank for rank in ranks if any(_others_wait(beside[id(w)], rank) for w in case.waits.waits_on(rank))]


def _others_wait(waiters: set[int], rank: int) -> bool:
    return bool(waiters) and waiters != {rank}


# ---- one rank --------------------------------------------------------------------------------------------------------


def _judged(case: Case, rank: int) -> Blocker | None:
    life = case.liveness.of(rank)
    mine = case.progress.of[rank]
    if rank in case.liveness.finished_cleanly:
        return None  # most ranks ended so: one_call_more.py asks who did not
    if life.state in (Is.ENDED, Is.FROZEN) and (life.seen or not mine.known):
        return _ended_or_frozen(rank, life, mine)
    if case.cuda_error(rank) is not None:
        return Blocker(rank, CauseKind.GPU, life=life)
    reasons = {wait.blockers[rank] for wait in case.waits.waits_on(rank)}
    if Because.NOT_STARTED in reasons:
        return Blocker(rank, CauseKind.GPU, case.names.own_side(not_started(case, rank), rank), life=life)
    if mine.scope is not Scope.EARLIER and any(unit.name not in MADE_BY_ALL for unit in mine.inside):
        return None  # it waits itself
    if _is_nothing_shown(case, rank, life, reasons):
        kind = CauseKind.ABSENT if life.state is Is.ALIVE else CauseKind.DEAD
        return Blocker(rank, kind, shown=Shown.NOT_SHOWN, life=life)
    return _not_launched(case, rank, life)


def _not_launched(case: Case, rank: int, life: Life) -> Blocker:
    """It lives, and has not launched what the others wait in: its GPU keeps it from that, or it does something else."""
    shown = Shown.SEEN if case.progress.of[rank].own_record else Shown.BY_OTHERS
    if life.call or waits_for_own_kernel(case, rank):
        return Blocker(rank, CauseKind.GPU, shown=shown, life=life)
    return Blocker(rank, CauseKind.ABSENT, _never_launched(case, rank), shown, life)


def waits_for_own_kernel(case: Case, rank: int) -> bool:
    """Whether it waits for its GPU, and that runs a kernel which waits for nobody."""
    call = case.unrecorded_calls.get(rank)
    return call is not None and call.waits_for_gpu and case.kernels.other(rank) is not None


def _ended_or_frozen(rank: int, life: Life, mine: RankProgress) -> Blocker:
    status = life.process.exit_status if life.process is not None else None
    # That it left while others waited is not in a record of its own.
    left_unseen = status == 0 and not mine.own_record
    shown = Shown.SEEN if life.seen and not left_unseen else Shown.BY_OTHERS
    kind = CauseKind.DEAD if life.state is Is.ENDED else CauseKind.FROZEN
    return Blocker(rank, kind, shown=shown, life=life)


def _is_nothing_shown(case: Case, rank: int, life: Life, reasons: set[Because]) -> bool:
    """Whether only its evidence is missing: nothing says where it is, and nothing that it should have come."""
    process = case.job.processes.get(rank)
    outside = process is not None and process.waits_in == ""  # seen twice, in no call that waits
    if life.state is Is.ALIVE and (outside or Because.NOT_LAUNCHED in reasons):
        return False
    return not case.progress.of[rank].known or reasons == {Because.NOT_KNOWN}


def _never_launched(case: Case, rank: int) -> str:
    waits = case.waits.waits_on(rank)
    missing = [wait for wait in waits if wait.blockers.get(rank) is Because.NOT_LAUNCHED] or waits
    return case.names.missing(case.first_missed(rank, missing), rank)
