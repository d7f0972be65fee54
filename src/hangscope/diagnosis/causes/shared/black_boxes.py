"""What the black boxes' findings rest on: the boxes themselves, and the operation that waits for their ranks."""

from collections.abc import Collection

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Source


def oldest_wait_of(case: Case, ranks: Collection[int]) -> Wait | None:
    """Of the operations that these ranks are inside of, or that wait for them, the one that has hung longest."""
    waits = [wait for wait in case.waits.all if not {*wait.waiters, *wait.blockers}.isdisjoint(ranks)]
    return max(waits, key=lambda wait: (wait.age_s or 0.0, len(wait.inside)), default=None)


def boxes_of(case: Case, ranks: Collection[int]) -> tuple[Source, ...]:
    return tuple(box.source for box in case.job.facts.blackboxes if box.rank in ranks)
