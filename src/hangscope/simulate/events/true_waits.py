"""Which rank waits for which at the end, as the simulation itself knows it: the measure of every plan and truth."""

from __future__ import annotations

from hangscope.simulate.events.event_engine import NEVER
from hangscope.simulate.events.job_run import JobRun
from hangscope.simulate.program.step_operations import Op


def waits_for(run: JobRun) -> dict[int, set[int]]:
    """rank → the ranks that have not come to what it is stuck in.

    A rank that is stuck in an operation that everybody reached (a mismatch, a dead link) waits for nobody in this sense
    and is in the result with an empty set. Ranks that are not stuck are not in it.
    """
    groups = run.job.groups
    reached = [_collectives_started(run, rank) for rank in range(len(run.timelines))]
    result: dict[int, set[int]] = {}
    for rank, line in enumerate(run.timelines):
        ordinals: dict[int, int] = {}
        for number, end in enumerate(line.finished):
            op = run.flat[rank][number]
            index = groups.of[rank][op.role]
            members = groups.all[index].members
            if op.p2p:
                if end == NEVER:
                    result.setdefault(rank, set()).update(_missing_peers(run, rank, op))
                continue
            ordinal = ordinals.get(index, 0)
            ordinals[index] = ordinal + 1
            if end == NEVER:
                late = {other for other in members if reached[other].get(index, 0) <= ordinal}
                result.setdefault(rank, set()).update(late)
    return result


def _collectives_started(run: JobRun, rank: int) -> dict[int, int]:
    """group → how many of its collectives a rank has started."""
    counts: dict[int, int] = {}
    of = run.job.groups.of[rank]
    for number in range(len(run.timelines[rank].started)):
        op = run.flat[rank][number]
        if not op.p2p:
            counts[of[op.role]] = counts.get(of[op.role], 0) + 1
    return counts


def _missing_peers(run: JobRun, rank: int, op: Op) -> set[int]:
    """The ranks that have not come to the transfers of an operation."""
    members = run.job.members(rank, op.role)
    peers = {members[part.peer] for part in op.parts}
    return {peer for peer in peers if not _in_transfer_with(run, peer, rank, run.job.groups.of[rank][op.role])}


def _in_transfer_with(run: JobRun, peer: int, rank: int, index: int) -> bool:
    """Whether the peer is stuck in a transfer with this rank too, so that neither waits for the other to come."""
    groups = run.job.groups
    place = groups.all[index].members.index(rank)
    for number in run.stuck(peer):
        op = run.flat[peer][number]
        if op.p2p and groups.of[peer][op.role] == index:
            return any(part.peer == place for part in op.parts)
    return False
