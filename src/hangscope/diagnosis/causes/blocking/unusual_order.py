"""deadlock that cannot be proven: ranks make a call that nobody else makes there, and a rank that is not seen hides
whether the waits are a cycle."""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.cycle_sides import Side, Sides, accused_inside, cycle_words
from hangscope.diagnosis.findings import outlier_finding
from hangscope.diagnosis.verdict import CauseKind
from hangscope.diagnosis.waits.call_order import Outlier, Sort, outliers
from hangscope.diagnosis.waits.wait_graph import Because

ORDER_UNUSUAL = Grounds(
    "order_unusual",
    Layer.SIGNS,
    MEDIUM,
    "after the same calls, most others made a different one; ranks without evidence may hide a cycle",
)

_SHOWN = 3
# At most one rank in so many: more would rather be another role.
_FEW = 4


@dataclass(frozen=True, slots=True)
class UnusualOrder:
    """The unusual calls, and what each of their ranks is inside of."""

    outliers: tuple[Outlier, ...]
    inside: Sides


def propose(case: Case) -> Iterator[Accusation[UnusualOrder]]:
    """Ranks whose call nobody else makes there, where a rank that is not seen hides whether the waits are a cycle."""
    hidden = any(because is Because.NOT_KNOWN for wait in case.waits.all for because in wait.blockers.values())
    if case.cycle or not hidden:
        return
    waiting = sorted(rank for rank, waits in case.waits.of.items() if waits)
    found = [o for o in outliers(case.progress, waiting, len(case.job.ranks)).values() if o.sort is Sort.ORDER]
    if not found or len(found) * _FEW > len(case.job.ranks):
        return
    inside = {outlier.rank: case.waits.of[outlier.rank][0] for outlier in found}
    sides = tuple(Side(wait, (rank,)) for rank, wait in inside.items())
    yield Accusation(
        ORDER_UNUSUAL,
        CauseKind.DEADLOCK,
        UnusualOrder(tuple(found), Sides(sides, tied=False)),
        accused_inside(case, inside),
        inside[min(inside)],
        doubts=[Doubt.VOTES_MISSING],
        explains=case.waits.all,
    )


def words(case: Case, accusation: Accusation[UnusualOrder]) -> Words:
    unusual = [outlier_finding(case, outlier) for outlier in accusation.facts.outliers[:_SHOWN]]
    return cycle_words(case, accusation, accusation.facts.inside, why=unusual)


CAUSE = Cause(propose, words, (ORDER_UNUSUAL,))
