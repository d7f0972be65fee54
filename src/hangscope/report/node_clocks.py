"""How far each node's clock is ahead, by collectives that end on all members at once. For looking at, not for judging.

The watchdog notices ends in sweeps 100 ms apart (torch 2.2-2.15), so that many collectives are needed, and less than
that may be chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, Floats, Ints, ids
from hangscope.diagnosis.align.lanes import Lane
from hangscope.model import Job, Kind, State

_COMPARED = 24
"""The last so many collectives of every group tell its members' clocks apart."""
_ROUNDS = 30
_STEADY_NS = 1_000_000
_TOLERANCE_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class NodeClocks:
    """How far each node's clock is ahead, and by how many collectives that is known."""

    ahead_ns: Mapping[str | int, int]
    """By node, or by rank where its node is not known. Those that agree within what can be known are 0."""
    compared: int

    @property
    def spread_ns(self) -> int:
        return max(self.ahead_ns.values()) - min(self.ahead_ns.values()) if self.ahead_ns else 0

    def ahead_of(self, job: Job, rank: int) -> int:
        return self.ahead_ns.get(_home(job, rank), 0)


def _home(job: Job, rank: int) -> str | int:
    """What has a clock of its own: the rank's node, or the rank itself where that is not known."""
    return job.nodes.get(rank, rank)


def node_clocks(alignment: Alignment, completed_ns: Ints) -> NodeClocks:
    """Each node's median distance from the middle of the collectives that it finished together with other nodes."""
    job = alignment.job
    rows = _ends_across_nodes(alignment, completed_ns)
    ranks, of_rank = np.unique(job.ops.column("rank")[rows], return_inverse=True)
    homes = [_home(job, rank) for rank in ranks.tolist()]
    number = {home: place for place, home in enumerate(dict.fromkeys(homes))}
    node = np.asarray([number[home] for home in homes], dtype=np.int64)[of_rank.reshape(-1)]
    collective = ids(job.ops.column("group")[rows], job.ops.column("seq")[rows])
    across = _spans_nodes(collective, node)
    if not across.any():
        return NodeClocks({}, 0)
    node = node[across]
    collective = ids(collective[across])
    times = completed_ns[rows][across]
    ahead, noise = _solve((times - int(times.min())).astype(np.float64), node, collective, len(number))
    ahead -= np.median(ahead)
    ahead[np.abs(ahead) <= noise + _TOLERANCE_NS] = 0
    return NodeClocks({home: int(ahead[place]) for home, place in number.items()}, int(collective.max()) + 1)


def _ends_across_nodes(alignment: Alignment, completed_ns: Ints) -> Ints:
    """The rows by which clocks are compared: the last ends that the watchdog saw, of what everybody leaves at once."""
    ops = alignment.job.ops
    seen = (ops.column("state") == State.COMPLETED) & (ops.column("retired") != 0) & (completed_ns > 0)
    seen &= (ops.column("kind") == Kind.COLLECTIVE) & alignment.symmetric
    found: list[Ints] = [np.empty(0, dtype=np.int64)]
    for lane in alignment.lanes.values():
        if _has_several_clocks(alignment.job, lane):
            rows = lane.rows[seen[lane.rows]]
            seq = ops.column("seq")[rows]
            found.append(rows[seq > seq[-1:] - _COMPARED])
    return np.concatenate(found)


def _has_several_clocks(job: Job, lane: Lane) -> bool:
    members = lane.group.members
    if members is None:
        members = tuple(np.unique(job.ops.column("rank")[lane.rows]).tolist())
    return len({_home(job, rank) for rank in members}) > 1


def _spans_nodes(collective: Ints, node: Ints) -> Bools:
    """Per row whether its collective was seen to end on several nodes: only such a one says anything."""
    count = int(collective.max(initial=-1)) + 1
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, -1, dtype=np.int64)
    np.minimum.at(low, collective, node)
    np.maximum.at(high, collective, node)
    found: Bools = (high > low)[collective]
    return found


def _solve(times: Floats, node: Ints, collective: Ints, nodes: int) -> tuple[Floats, Floats]:
    """Offsets that bring every collective's ends together, and how far chance alone could have moved each."""
    count = np.bincount(collective).astype(np.float64)
    ahead = np.zeros(nodes)
    spread = np.zeros(nodes)
    for _ in range(_ROUNDS):
        middle = np.bincount(collective, times - ahead[node]) / count
        step, spread = _medians(times - ahead[node] - middle[collective], node, nodes)
        ahead += step
        if np.abs(step).max(initial=0) < _STEADY_NS:
            break
    seen = np.maximum(np.bincount(node, minlength=nodes), 1)
    return ahead, 3 * 1.4826 * spread / np.sqrt(seen)


def _medians(values: Floats, node: Ints, nodes: int) -> tuple[Floats, Floats]:
    """For every node the median, and the median distance from it; 0 where there is nothing."""

    def median(what: Floats) -> Floats:
        order = np.lexsort((what, node))
        starts = np.searchsorted(node[order], np.arange(nodes))
        counts = np.bincount(node, minlength=nodes)
        at = np.minimum(starts + counts // 2, len(order) - 1)
        return np.where(counts > 0, what[order][at], 0.0)

    middle = median(values)
    return middle, median(np.abs(values - middle[node]))
