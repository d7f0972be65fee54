"""Which accusation is right, and how sure that is: the one place where either is decided.

**Choice.** The operations that have hung longest are explained first: an accusation that explains them comes before one
that does not. Among those the grounds decide, in the order of `Basis`: what goes deeper comes first.

**Confidence** is the weakest link of the argument: what its grounds can carry at most, lowered by each doubt to what
that doubt allows. Both are written with `Basis` and `Doubt`; nothing else in hangscope says how sure a verdict is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hangscope.diagnosis.accusation import HIGH, LOW, MEDIUM, Accusation, Basis, Doubt, Level
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.waits.progress import Scope
from hangscope.diagnosis.waits.wait_graph import Wait

_WORDS = {LOW: "low", MEDIUM: "medium", HIGH: "high"}
_PLACE = {basis: place for place, basis in enumerate(Basis)}
_LAST_WORDS = _PLACE[Basis.FAILURE_OF_NOBODY]
# Operations that hang for this part of the longest time began to hang together with that one.
_AS_OLD = 0.7
_ALSO = 2


@dataclass(frozen=True, slots=True)
class Choice:
    """The verdict's accusation, how sure it is and why, and what fits nearly as well."""

    accusation: Accusation
    confidence: str
    rule: str
    also: list[Accusation]


def weigh(case: Case, accusations: Iterable[Accusation]) -> Choice | None:
    """The accusation that explains what has hung longest on the deepest grounds; None where there is none."""
    longest = max((w.age_s for w in case.waits.all if w.age_s is not None), default=0.0)
    oldest = [w for w in case.waits.all if w.age_s is not None and w.age_s >= _AS_OLD * longest]
    accusations = [_with_disputes(case, a) for a in accusations]
    ranked = sorted(
        accusations, key=lambda a: (_PLACE[a.basis] >= _LAST_WORDS, not _explains(case, a, oldest), _depth(a))
    )
    if not ranked:
        return None
    chosen, level = ranked[0], _level(ranked[0])
    others = [a for a in ranked[1:] if a.accused and a.ranks != chosen.ranks and _level(a) >= level]
    also = [a for a in others if level is not HIGH and _explains(case, a, oldest)]
    doubts = [doubt.why for doubt in Doubt if doubt in chosen.doubts]
    rule = f"{chosen.kind}: {'; '.join([chosen.basis.why, *doubts])}"
    return Choice(chosen, _WORDS[level], rule, also[:_ALSO])


def _with_disputes(case: Case, accusation: Accusation) -> Accusation:
    """Who is accused by a record that is cut, of another time, or as well another rank's, is not surely so; nor is one
    on a node whose clock is off, if it is the clock."""
    own = [x.rank for x in accusation.accused if x.kind not in ("dead", "frozen") and x.rank in case.progress.of]
    off = {rank for rank in own if case.job.nodes.get(rank) in case.vetted.clocks_off_s} | case.vetted.copied
    if any(case.progress.of[rank].scope is not Scope.WHOLE or rank in off for rank in own):
        return replace(accusation, doubts=[*accusation.doubts, Doubt.DISPUTED])
    return accusation


def _level(accusation: Accusation) -> Level:
    """The weakest link of the argument."""
    return min([accusation.basis.level, *(doubt.level for doubt in accusation.doubts)])


def _depth(accusation: Accusation) -> float:
    """The place of the grounds in their order. Where the format does not tell groups apart (torch 2.2), who disagrees
    or is missing may be an artefact of that: an end that was seen, or the one rank that waits in nothing, comes first.
    """
    hidden = {Doubt.MEMBERS_NOT_RECORDED, Doubt.OTHER_GROUPS_POSSIBLE}.intersection(accusation.doubts)
    place = _PLACE[accusation.basis]
    return _PLACE[Basis.IDLE] + place / 100 if hidden and place < _PLACE[Basis.END_SEEN] else place


def _explains(case: Case, accusation: Accusation, oldest: list[Wait]) -> bool:
    """Whether at least one of the oldest operations waits, directly or through others, for what is accused."""
    own = [*accusation.explains, *([accusation.wait] if accusation.wait is not None else [])]
    ranks = {*accusation.ranks, *(rank for w in own for rank in w.waiters)}
    ranks |= set(case.waits.reaches(ranks)) if oldest else set()
    ids = {id(w) for w in own}
    return not oldest or any(
        id(w) in ids or ranks.intersection(w.waiters) or ranks.intersection(w.blockers) for w in oldest
    )
