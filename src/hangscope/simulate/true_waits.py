"""Who waits for whom at the end, as the simulation itself knows it: the measure of every plan and every truth."""

from __future__ import annotations

from hangscope.simulate.event_engine import NEVER
from hangscope.simulate.whole_job import Run


def waits_for(run: Run) -> dict[int, set[int]]:
    """rank → the ranks that have not come to what it is stuck in.

    A rank that is stuck in an operation that everybody reached (a mismatch, a dead link) waits for nobody in this sense
    and is in the result with an empty set. Ranks that are not stuck are not in it.
    """
    groups = run.job.groups
    reached: list[dict[int, int]] = []
    for rank, line in enumerate(run.timelines):
        counts: dict[int, int] = {}
        for number in range(len(line.started)):
            op = run.flat[rank][number]
            if not op.p2p:
                index = groups.of[rank][op.role]
                counts[index] = counts.get(index, 0) + 1
        reached.append(counts)
    result: dict[int, set[int]] = {}
    for rank, line in enumerate(run.timelines):
        ordinals: dict[int, int] = {}
        for number, end in enumerate(line.finished):
            op = run.flat[rank][number]
            index = groups.of[rank][op.role]
            members = groups.all[index].members
            if op.p2p:
                if end == NEVER:
                    missing = {members[part.peer] for part in op.parts if not _there(run, rank, number, part.peer)}
                    result.setdefault(rank, set()).update(missing)
                continue
            ordinal = ordinals.get(index, 0)
            ordinals[index] = ordinal + 1
            if end == NEVER:
                late = {other for other in members if reached[other].get(index, 0) <= ordinal}
                result.setdefault(rank, set()).update(late)
    return result


def _there(run: Run, rank: int, number: int, peer: int) -> bool:
    """Whether the peer is stuck in a transfer with this rank too, so that neither waits for the other to come."""
    op = run.flat[rank][number]
    index = run.job.groups.of[rank][op.role]
    members = run.job.groups.all[index].members
    other = members[peer]
    mine = members.index(rank)
    for its_number in run.stuck(other):
        its_op = run.flat[other][its_number]
        if its_op.p2p and run.job.groups.of[other][its_op.role] == index:
            return any(part.peer == mine for part in its_op.parts)
    return False
