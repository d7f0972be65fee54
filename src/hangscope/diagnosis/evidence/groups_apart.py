"""Groups that ranks did not make alike: one name, and other members.

PyTorch numbers a process's groups as it makes them. Where one rank makes a group in a branch, or two in another order,
the same number is another group from there on, and whoever is in both waits for ranks that never come to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hangscope.model import ClaimedGroup, Job

_MOST = 2


@dataclass(frozen=True, slots=True)
class Apart:
    """Two ranks' words on one group, that cannot both be true of one job."""

    one: ClaimedGroup
    other: ClaimedGroup


def groups_apart(job: Job, not_asked: Iterable[int] = ()) -> list[Apart]:
    """The first of them by name; `not_asked` are ranks whose dumps may be of another time.

    Groups of one name that have no rank in common are none: torch numbers what it splits off in each of the parts.
    """
    left_out = set(not_asked)
    by_name: dict[str, list[ClaimedGroup]] = {}
    for claim in _claims(job):
        if not left_out.issuperset(claim.ranks):
            by_name.setdefault(claim.name, []).append(claim)
    found = (_of_one_name(claims) for claims in by_name.values() if len(claims) > 1)
    return [apart for apart in found if apart is not None][:_MOST]


def _claims(job: Job) -> Iterator[ClaimedGroup]:
    """What recorders list, and what ranks are making now."""
    yield from job.facts.claimed_groups
    newest = {call.rank: call for call in sorted(job.facts.calls, key=lambda call: call.sample) if call.ranks}
    for rank, call in sorted(newest.items()):
        if call.group is not None and call.ranks:
            yield ClaimedGroup(call.group, tuple(sorted(call.ranks)), (rank,), call.source)


def _of_one_name(claims: list[ClaimedGroup]) -> Apart | None:
    first: dict[int, ClaimedGroup] = {}
    for claim in claims:
        for member in claim.members:
            known = first.setdefault(member, claim)
            if set(known.members) != set(claim.members):
                return Apart(known, claim)
    return None
