"""Which rank is slow by itself, told without comparing clocks: by the time between two calls on one rank's own clock.

Ranks that make the same two calls one after the other should take the same time in between. A rank that takes longer
there, round after round, spends the time itself; ranks that merely wait for it take longer where everybody waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.align import Alignment

_LEAST_ROUNDS = 4
_LEAST_PEERS = 3


@dataclass(frozen=True, slots=True)
class OwnTime:
    """How much longer than its peers one rank took between two calls, over the whole recording."""

    rank: int
    extra_ms: float
    rounds: int
    row: int
    """A row of the call that follows the gap."""


def own_times(alignment: Alignment) -> list[OwnTime]:
    """For every rank the two calls between which it took the most extra time, largest first."""
    ops = alignment.job.ops
    rank, created = ops.column("rank").astype(np.int64), ops.column("created_ns")
    if len(ops) < 2:
        return []
    following = np.flatnonzero((rank[1:] == rank[:-1]) & (created[1:] >= 0) & (created[:-1] >= 0)) + 1
    if not len(following):
        return []
    gap_ms = (created[following] - created[following - 1]) / 1e6
    calls = alignment.call
    between = calls[following - 1] * (int(calls.max()) + 1) + calls[following]
    _, between = np.unique(between, return_inverse=True)
    key = between.reshape(-1) * (int(rank.max()) + 1) + rank[following]
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    total = np.add.reduceat(gap_ms[order], starts)
    rounds = np.diff(np.append(starts, len(order)))
    place = between.reshape(-1)[order][starts]
    owner = rank[following][order][starts]
    mean = total / rounds
    # Peers are ranks of one role: a pipeline's stages share calls, but not their rhythm.
    role = _roles(place, owner, rounds)
    by_role = np.lexsort((owner, role, place))
    rounds, place, owner, role, starts = (a[by_role] for a in (rounds, place, owner, role, starts))
    mean = mean[by_role]
    best: dict[int, OwnTime] = {}
    bounds = np.flatnonzero(np.append(True, (np.diff(place) != 0) | (np.diff(role) != 0)))
    for low, high in zip(bounds.tolist(), [*bounds[1:].tolist(), len(place)], strict=True):
        often = rounds[low:high] >= _LEAST_ROUNDS
        if int(often.sum()) < _LEAST_PEERS:
            continue
        usual = float(np.median(mean[low:high][often]))
        for index in (np.flatnonzero(often) + low).tolist():
            extra = float((mean[index] - usual) * rounds[index])
            who = int(owner[index])
            if extra > 0 and (who not in best or extra > best[who].extra_ms):
                row = int(following[order[starts[index]]])
                best[who] = OwnTime(who, extra, int(rounds[index]), row)
    return sorted(best.values(), key=lambda item: (-item.extra_ms, item.rank))


def _roles(
    place: npt.NDArray[np.int64], owner: npt.NDArray[np.int64], rounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Per entry the role of its rank: ranks that make the same pairs of calls, again and again, have one role."""
    made: dict[int, set[int]] = {}
    for who, where, often in zip(owner.tolist(), place.tolist(), (rounds >= _LEAST_ROUNDS).tolist(), strict=True):
        if often:
            made.setdefault(who, set()).add(where)
    ids: dict[frozenset[int], int] = {}
    role_of = {who: ids.setdefault(frozenset(places), len(ids)) for who, places in made.items()}
    return np.asarray([role_of.get(who, -1) for who in owner.tolist()], dtype=np.int64)
