"""absent and gpu, where nothing says who waits for which rank: the few that differ from everybody else.

Whoever is kept waiting is inside something. That needs no members: where all others are inside an operation, a rank
that has finished all that it launched is what they wait for; where all other GPUs have started what they wait in, a GPU
that has not started its oldest operation is stuck before it. In logs, it is the live rank that reported no timeout; in
stacks, the one that stands at another line, which says where to look, no more.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence import ras_ranks
from hangscope.diagnosis.evidence.code_lines import place, shown
from hangscope.diagnosis.findings import cited
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.model import State, ThreadStack
from hangscope.text import plural, verb

# One rank, or at most one in so many: more would rather mean that their dumps were taken at another time.
_FEW = 8
_LEAST_STACKS = 3
# At most one rank in so many may stand elsewhere: more than that are roles, not culprits.
_FEW_ELSEWHERE = 4


def alone(case: Case) -> Iterator[Accusation]:
    """The few ranks that wait in nothing, or whose GPU waits in nothing, while everybody else does.

    Asked where nothing says who is in which group (torch 2.2), at which place of it an operation is, or its peer.
    """
    nowhere = [w for w in case.waits.all if (not w.counterparts if w.point_to_point else w.seq is None)]
    unplaced = nowhere or any(members_not_recorded(case.groups[w.group]) for w in case.waits.all)
    looked = {rank for rank, process in case.job.processes.items() if process.waits_in is not None or process.moved}
    looked |= {rank for rank, mine in case.progress.of.items() if any(unit.report for unit in mine.inside)}
    seen = {rank: mine for rank, mine in case.progress.of.items() if mine.own_record or rank in looked}
    if not unplaced or len(seen) < len(case.job.ranks):
        return  # whose recording is missing may as well be the one
    # Who still looks for the store holds up those that have found it.
    early = [rank for rank, mine in seen.items() if {unit.name for unit in mine.inside} == {"rendezvous"}]
    idle = [rank for rank, mine in seen.items() if not mine.inside] or early
    not_started = [rank for rank, mine in seen.items() if mine.inside and mine.inside[0].state is State.SCHEDULED]
    # Where nothing says that it hangs at all, in a job that runs some GPU is always on its way.
    running = len(not_started) > 1 and not case.hang.age_known
    ranks, kind = idle or not_started, "absent" if idle else "gpu"
    few = len(ranks) * (2 if looked >= seen.keys() - ranks else _FEW) <= len(seen) or (
        len(ranks) == 1 and len(seen) > 2
    )
    if ranks and few and (idle or (not running and all(mine.timing for mine in seen.values()))):
        yield _accusation(case, ranks, kind)


def _accusation(case: Case, ranks: list[int], kind: str) -> Accusation:
    last = case.last_operation(ranks[0])
    others = len(case.job.ranks) - len(ranks)
    done = f"{verb(ranks, 'has', 'have')} finished every operation launched there"
    text = done if kind == "absent" else "launched an operation whose kernel never started"
    title, frames = (last.title, shown(last.frames)) if last is not None else ("nothing", ())
    found = [Finding(f"{ranks_text(ranks)} {text}; the last is {title}", case.source(ranks[0], last), frames)]
    stacks = case.stacks.of_all(ranks if kind == "absent" else ())
    found += [Finding(f"rank {r} stands here", (s.source,), shown(s.frames, 4)) for r, s in stacks.items()]
    found.append(Finding(f"inside unfinished operations: the other {plural(others, 'rank')}"))
    accused, waits = [Accused(rank, kind, title) for rank in ranks], case.waits.all
    wait = max(waits, key=lambda w: len(w.inside))
    doubts = [Doubt.OTHER_GROUPS_POSSIBLE] if len(ranks) > 1 else ()
    return Accusation(Basis.IDLE, kind, accused, wait, findings=found, doubts=doubts, explains=waits)


def only_one_without_timeout(case: Case) -> Iterator[Accusation]:
    """Every other rank reported a timeout of its own; this one lives and did not: probably they wait for it."""
    reports = case.job.facts.watchdog
    complained = {r.rank for r in reports if r.kind in ("timeout", "async_error") or r.seq is not None}
    answered, rest = {r.rank for r in reports} - complained, set(case.job.ranks) - complained
    unfinished = np.any(case.job.ops.column("state") != State.COMPLETED)
    if unfinished or not answered or rest != answered or len(rest) * 4 > len(case.job.ranks):
        return
    text = f"{ranks_text(complained)} reported a timeout of their own; {ranks_text(rest)} only answered the signal"
    found = [cited(text, next(r.source for r in reports if r.rank in rest))]
    accused, waits = [Accused(rank, "absent") for rank in sorted(rest)], case.waits.all
    wait = max(waits, key=lambda w: len(w.inside), default=None)
    yield Accusation(Basis.NO_TIMEOUT, "absent", accused, wait, findings=found, explains=waits)


def odd_in_ras(case: Case) -> Iterator[Accusation]:
    """Ranks that NCCL's RAS did not reach, or that launched other collectives than most, where nothing was recorded."""
    if case.job.dumps or (found := ras_ranks.odd_in_ras(case.job)) is None:
        return
    odd, source = found
    accused = [Accused(rank, "unknown", text=text) for rank, text in sorted(odd.items())]
    findings = [Finding(f"rank {x.rank} {x.text}", (source,)) for x in accused[:3]]
    yield Accusation(Basis.ODD_IN_RAS, "unknown", accused, findings=findings, explains=case.waits.all)


def stands_apart(case: Case) -> Iterator[Accusation]:
    """Ranks whose main thread stands elsewhere than most others', where nothing else was recorded."""
    stacks = case.stacks.of_all(case.job.ranks)
    if len(stacks) < _LEAST_STACKS or len(stacks) < len(case.job.ranks):
        return
    # Ranks of different roles come to the same wait by different lines: then the innermost one is compared alone.
    odd = _odd(stacks, 8) or _odd(stacks, 1)
    if not odd:
        return
    first, count = next(rank for rank in stacks if rank not in odd), plural(len(stacks) - len(odd), "rank")
    texts = {**{r: f"rank {r} stands here" for r in odd[:3]}, first: f"{count} like rank {first} stand here"}
    found = [Finding(text, (stacks[r].source,), shown(stacks[r].frames, 4)) for r, text in texts.items()]
    accused = [Accused(rank, "absent", text=place(stacks[rank].frames) or "an unknown place") for rank in odd]
    usual, waits = f"the other {count} at {place(stacks[first].frames)}", case.waits.all
    yield Accusation(Basis.STANDS_APART, "absent", accused, findings=found, detail=usual, explains=waits)


def _odd(stacks: dict[int, ThreadStack], depth: int) -> list[int]:
    """The few that stand elsewhere than most, by so many frames of the user's code."""
    places = {rank: shown(stack.frames, depth) for rank, stack in stacks.items()}
    usual = Counter(places.values()).most_common(1)[0][0]
    odd = sorted(rank for rank, mine in places.items() if mine != usual)
    return odd if usual and len(odd) * _FEW_ELSEWHERE <= len(stacks) else []
