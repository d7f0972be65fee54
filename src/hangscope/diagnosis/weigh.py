"""Which accusation is right, and how sure that is: the one place where either is decided.

**Choice.** Step by step, and the next only where the one before does not tell two accusations apart:

1. What counts only where nothing else is found (`Layer.LAST_RESORT` and behind) comes last.
2. The operations that have hung longest are explained first: what explains one of them comes before what explains none.
3. The layer of the grounds: what goes deeper comes first. Grounds that need the members of a group, where those are not
   recorded, come behind all others of `Layer.MISSED_RANKS`: behind an end that was seen, and behind the one rank that
   waits in nothing.
4. The edges between grounds of one layer (`precedence.py`). Of one cause's own accusations on the same grounds, the
   first that it proposed.
5. The more sure one, then the name of the grounds: in no case the order in which causes are asked.

**Confidence** is the weakest link of the argument: what its grounds can carry at most, lowered by each doubt to what
that doubt allows. Both are written with `Grounds` and `Doubt`; nothing else in hangscope says how sure a verdict is.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from hangscope.diagnosis.accusation import HIGH, LOW, MEDIUM, Accusation, Doubt, Grounds, Layer, Level
from hangscope.diagnosis.at_work import is_at_work, may_be_at_work
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.precedence import Precedence
from hangscope.diagnosis.verdict import CauseKind
from hangscope.diagnosis.waits.progress import Scope
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.verdict_words import Outcome

_WORDS = {LOW: "low", MEDIUM: "medium", HIGH: "high"}
LEAST = _WORDS[LOW]
"""How sure it is where nothing could be judged."""
# Operations that hang for this part of the longest time began to hang together with that one.
_AS_OLD = 0.7
_ALSO = 2
_MEMBERS_DOUBTED = {Doubt.MEMBERS_NOT_RECORDED, Doubt.OTHER_GROUPS_POSSIBLE}


@dataclass(frozen=True, slots=True)
class Choice:
    """The verdict's accusation, how sure it is and why, and what fits nearly as well."""

    accusation: Accusation[Any]
    confidence: str
    rule: str
    also: list[Accusation[Any]]


class _Place(NamedTuple):
    """Steps 1 to 3 as a key to sort by."""

    is_last_resort: bool
    explains_nothing: bool
    layer: Layer
    lacks_members: bool
    own_layer: Layer


@dataclass(frozen=True, slots=True)
class _Weighed:
    """An accusation with what decides about it. `explains`: whether it explains an operation that has hung longest."""

    accusation: Accusation[Any]
    level: Level
    explains: bool

    @property
    def grounds(self) -> Grounds:
        return self.accusation.grounds

    @property
    def place(self) -> _Place:
        own = self.grounds.layer
        lacks_members = self.grounds.needs_members and not _MEMBERS_DOUBTED.isdisjoint(self.accusation.doubts)
        layer = Layer.MISSED_RANKS if lacks_members else own
        return _Place(own >= Layer.LAST_RESORT, not self.explains, layer, lacks_members, own)


def weigh(case: Case, accusations: Iterable[Accusation[Any]], precedence: Precedence) -> Choice | None:
    """The accusation that explains what has hung longest on the deepest grounds; None where there is none."""
    oldest = _longest_hung(case)
    ranked = _ranked([_weighed(case, accusation, oldest) for accusation in accusations], precedence)
    if not ranked:
        return None
    chosen, *others = ranked
    return Choice(chosen.accusation, _WORDS[chosen.level], _rule(chosen.accusation), _also(chosen, others))


def _weighed(case: Case, accusation: Accusation[Any], oldest: list[Wait]) -> _Weighed:
    doubted = _with_gpu_cores(case, _with_unrecorded_calls(case, _with_disputes(case, accusation)))
    level = min([doubted.grounds.level, *(doubt.level for doubt in doubted.doubts)])
    return _Weighed(doubted, level, _explains(case, doubted, oldest))


def _rule(chosen: Accusation[Any]) -> str:
    doubts = [doubt.why for doubt in Doubt if doubt in chosen.doubts]
    return f"{chosen.kind}: {'; '.join([chosen.grounds.why, *doubts])}"


def _also(chosen: _Weighed, others: Sequence[_Weighed]) -> list[Accusation[Any]]:
    """What accuses others as surely, where that is not quite sure."""
    if chosen.level is HIGH:
        return []
    as_sure = [one for one in others if one.level >= chosen.level and one.explains]
    accusations = [one.accusation for one in as_sure]
    return [a for a in accusations if a.accused and a.ranks != chosen.accusation.ranks][:_ALSO]


# ---- in which order --------------------------------------------------------------------------------------------------


def _ranked(weighed: Iterable[_Weighed], precedence: Precedence) -> list[_Weighed]:
    """All of them, the best first."""
    ranked: list[_Weighed] = []
    for _, same_place in groupby(sorted(weighed, key=lambda one: one.place), key=lambda one: one.place):
        ranked += _by_edges(list(same_place), precedence)
    return ranked


def _by_edges(weighed: list[_Weighed], precedence: Precedence) -> list[_Weighed]:
    """Again and again the best of those that nothing left goes before."""
    left: dict[str, deque[_Weighed]] = {}
    for one in weighed:
        left.setdefault(one.grounds.name, deque()).append(one)
    ranked: list[_Weighed] = []
    while left:
        first = [same_grounds[0] for same_grounds in left.values()]
        free = [one for one in first if not any(precedence.goes_before(other.grounds, one.grounds) for other in first)]
        best = min(free, key=lambda one: (-one.level, _by_name(one.grounds.name)))
        ranked.append(left[best.grounds.name].popleft())
        if not left[best.grounds.name]:
            del left[best.grounds.name]
    return ranked


def _by_name(name: str) -> str:
    """What decides where nothing else does. That no recorded evidence comes to it is a test."""
    return name


# ---- what decides about one ------------------------------------------------------------------------------------------


def _longest_hung(case: Case) -> list[Wait]:
    ages = {id(wait): wait.age_s for wait in case.waits.all if wait.age_s is not None}
    longest = max(ages.values(), default=0.0)
    return [wait for wait in case.waits.all if id(wait) in ages and ages[id(wait)] >= _AS_OLD * longest]


def _with_disputes(case: Case, accusation: Accusation[Any]) -> Accusation[Any]:
    """Who is accused by a record that is cut, of another time, or as well another rank's, is not surely so; nor is one
    on a node whose clock is off, if it is the clock; nor is it a hang while the accused work."""
    if is_at_work(case, accusation):
        accusation = replace(accusation, doubts=[*accusation.doubts, Doubt.AT_WORK])
    elif may_be_at_work(case, accusation):
        accusation = replace(accusation, doubts=[*accusation.doubts, Doubt.POLLS])
    if accusation.outcome is Outcome.DESYNC:
        return accusation  # what a recording lacks says nothing about the calls that it has
    by_record = [a.rank for a in accusation.accused if a.kind not in (CauseKind.DEAD, CauseKind.FROZEN)]
    if any(_is_disputed(case, rank) for rank in by_record if rank in case.progress.of):
        return replace(accusation, doubts=[*accusation.doubts, Doubt.DISPUTED])
    return accusation


def _with_unrecorded_calls(case: Case, accusation: Accusation[Any]) -> Accusation[Any]:
    """Who is accused of staying away may wait where no recorder looks: by its stack, or nobody can tell."""
    absent = [a.rank for a in accusation.accused if a.kind is CauseKind.ABSENT]
    doubts = {doubt for rank in absent if (doubt := _unrecorded_doubt(case, rank)) is not None}
    return replace(accusation, doubts=[*accusation.doubts, *doubts]) if doubts else accusation


def _with_gpu_cores(case: Case, accusation: Accusation[Any]) -> Accusation[Any]:
    """Who is accused of staying away, or of a GPU that does not get there, may wait itself, inside NCCL's kernel."""
    kinds = (CauseKind.ABSENT, CauseKind.GPU)
    inside = [a.rank for a in accusation.accused if a.kind in kinds and case.kernels.in_nccl(a.rank)]
    return replace(accusation, doubts=[*accusation.doubts, Doubt.IN_NCCL_KERNEL]) if inside else accusation


def _unrecorded_doubt(case: Case, rank: int) -> Doubt | None:
    call = case.unrecorded_calls.get(rank)
    if call is not None:
        return Doubt.WAITS_FOR_ITS_GPU if call.waits_for_gpu else Doubt.IN_UNRECORDED_CALL
    if case.stacks.main(rank) is None and case.communicates_unrecorded:
        return Doubt.UNRECORDED_POSSIBLE
    return None


def _is_disputed(case: Case, rank: int) -> bool:
    whole = case.progress.of[rank].scope is Scope.WHOLE
    clock_off = case.job.nodes.get(rank) in case.vetted.clocks_off_s
    return not whole or clock_off or rank in case.vetted.copied


def _explains(case: Case, accusation: Accusation[Any], oldest: list[Wait]) -> bool:
    """Whether at least one of the oldest operations waits, directly or through others, for what is accused."""
    if not oldest:
        return True
    own = list(accusation.explains)
    if accusation.wait is not None:
        own.append(accusation.wait)
    ranks = {*accusation.ranks, *(rank for wait in own for rank in wait.waiters)}
    ranks |= set(case.waits.reaches(ranks))
    ids = {id(wait) for wait in own}
    return any(id(wait) in ids or not ranks.isdisjoint((*wait.waiters, *wait.blockers)) for wait in oldest)
