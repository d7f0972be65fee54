"""When every operation began and ended, all nodes on one clock: what the timeline and the Perfetto trace draw.

The recorder knows when a call was made and when the watchdog noticed its end, by the clock of the rank's own node. Here
the clocks are brought together by collectives that end on all members at once, and a call that was queued begins
when the one before it in its group has ended. Nothing is decided by these times; they are for looking at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.model import UNKNOWN, Job, Kind, State

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_MEETING = ("all_reduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall", "barrier")
"""In these (and their variants) nobody is done before everybody has come."""
_COMPARED = 24
"""The last so many collectives of every group tell its members' clocks apart."""
_ROUNDS = 30
_COUNTED = 1 << 20
_STEADY_NS = 1_000_000
_TOLERANCE_NS = 100_000_000
"""The watchdog notices ends in sweeps 100 ms apart (torch 2.2-2.15): less may be chance."""
_FAR_NS = 30 * 86_400 * 1_000_000_000
"""Further than a month from the rest is no time but damage."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """How far each node's clock is ahead, and by how many collectives that is known."""

    ahead_ns: Mapping[str | int, int]
    """By node, or by rank where its node is not known. Those that agree within what can be known are 0."""
    compared: int

    @property
    def spread_ns(self) -> int:
        return max(self.ahead_ns.values()) - min(self.ahead_ns.values()) if self.ahead_ns else 0


@dataclass(frozen=True, slots=True)
class Spans:
    """One entry a row of `job.ops`. Times are nanoseconds since the epoch on the common clock."""

    begin_ns: Ints
    end_ns: Ints
    """Of an operation that has not ended: the end of the evidence."""
    known: Bools
    """Whether the row has a time at all."""
    unfinished: Bools
    lane: Ints
    """Operations of one lane follow each other: one rank's collectives of one group, or its calls with one peer."""
    clocks: Clocks
    last_ns: int | None
    """The latest moment that any dump speaks of."""


def spans(job: Job) -> Spans:
    """The begin and the end of every operation."""
    ops = job.ops
    created, completed = ops.column("created_ns").copy(), ops.column("completed_ns").copy()
    started = ops.column("started_ns").copy()
    for column in (created, completed, started):
        _forget_damage(column, created)
    state = ops.column("state")
    _inherit_from_batch(job, completed)

    clocks = _clocks(job, completed)
    ahead = _per_row(job, clocks)
    for column in (created, completed, started):
        column[column > 0] -= ahead[column > 0]

    known = (created > 0) | (completed > 0)
    # A state that the file does not say is not taken for waiting.
    unfinished = known & ((state == State.SCHEDULED) | (state == State.STARTED))
    latest = int(max(column.max(initial=UNKNOWN) for column in (created, completed, started)))
    begin = np.where(created > 0, created, completed)
    end = np.where(completed > 0, completed, begin)
    # Ended, but the watchdog had not swept it: its end is the time of the dump, and only the duration says more.
    unswept = (ops.column("retired") == 0) & (state == State.COMPLETED)
    duration = np.nan_to_num(ops.columns["duration_ms"].astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    end = np.where(unswept, begin + np.clip(duration, 0, 1e9) * 1e6, end).astype(np.int64)
    end = np.where(unfinished, begin, np.maximum(end, begin))

    lane = _lanes(job)
    begin = np.where(known, _after_the_one_before(begin, end, lane, known), UNKNOWN)
    end = np.where(known, np.maximum(begin, end), UNKNOWN)
    end[unfinished] = np.maximum(latest, begin[unfinished])
    return Spans(begin, end, known, unfinished, lane, clocks, latest if latest > 0 else None)


def lane_of_row(lane: Ints) -> tuple[Ints, Ints]:
    """The rows sorted by lane, recorded order kept, and where each lane begins in them."""
    order = np.argsort(lane, kind="stable")
    changed = np.ones(len(order), dtype=bool)
    changed[1:] = np.diff(lane[order]) != 0
    return order, np.flatnonzero(changed)


def _forget_damage(column: Ints, created: Ints) -> None:
    seen = created[created > 0]
    if len(seen):
        middle = int(np.median(seen))
        column[(column < middle - _FAR_NS) | (column > middle + _FAR_NS)] = UNKNOWN


def _inherit_from_batch(job: Job, completed: Ints) -> None:
    """Calls inside a batch end when the batch does: only its closing entry has a time."""
    ops = job.ops
    rank, batch, kind = (ops.column(name).astype(np.int64) for name in ("rank", "batch", "kind"))
    key = paired(rank, batch)
    closing = np.flatnonzero((kind == Kind.BATCH) & (batch != UNKNOWN))
    inner = np.flatnonzero((kind != Kind.BATCH) & (batch != UNKNOWN) & (completed <= 0))
    if not len(closing) or not len(inner):
        return
    closing = closing[np.argsort(key[closing], kind="stable")]
    at = np.minimum(np.searchsorted(key[closing], key[inner]), len(closing) - 1)
    found = key[closing[at]] == key[inner]
    completed[inner[found]] = completed[closing[at[found]]]


def _lanes(job: Job) -> Ints:
    ops = job.ops
    kind = ops.column("kind")
    peer = np.where(kind == Kind.SEND, ops.column("destination"), ops.column("source")).astype(np.int64)
    peer = np.where(kind == Kind.SEND, 2 * peer + 4, np.where(kind == Kind.RECV, 2 * peer + 5, 0))
    return paired(paired(ops.column("rank").astype(np.int64), ops.column("group").astype(np.int64)), peer)


def paired(a: Ints, b: Ints) -> Ints:
    """Per row a small id of the pair, in the order of the pairs."""
    a, b = _narrow(a), _narrow(b)
    return ranked(a * (int(b.max(initial=0)) + 1) + b)


def _narrow(keys: Ints) -> Ints:
    """The keys from 0 on, in their order, below 2³¹: two of them fit into one number, whatever a damaged dump holds."""
    if not len(keys):
        return keys.astype(np.int64)
    low, high = int(keys.min()), int(keys.max())
    return keys.astype(np.int64) - low if high - low < 1 << 31 else ranked(keys.astype(np.int64))


def ranked(keys: Ints) -> Ints:
    """Per row the place of its key among the distinct keys. By counting where they lie close together: no sort."""
    if not len(keys):
        return keys.astype(np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low <= max(_COUNTED, 8 * len(keys)):
        seen = np.zeros(high - low + 1, dtype=bool)
        seen[keys - low] = True
        places: Ints = (np.cumsum(seen) - 1)[keys - low]
        return places
    _, inverse = np.unique(keys, return_inverse=True)
    ids: Ints = inverse.reshape(-1).astype(np.int64)
    return ids


def _after_the_one_before(begin: Ints, end: Ints, lane: Ints, known: Bools) -> Ints:
    """The later of an operation's call and the end of everything before it in its lane."""
    rows = np.flatnonzero(known)
    if not len(rows):
        return begin
    order = rows[np.argsort(lane[rows], kind="stable")]
    base = int(begin[order].min())
    width = int(np.maximum(begin, end)[order].max()) - base + 2
    # In microseconds, so that a month times a million lanes still fits; the lanes lie one above the other.
    width_us = width // 1000 + 2
    place = np.cumsum(np.append(0, np.diff(lane[order]) != 0)) * width_us
    until = np.maximum.accumulate((np.maximum(begin, end)[order] - base) // 1000 + place)
    before = np.append(-1, until[:-1]) - place
    moved: Ints = begin.copy()
    free = base + (before + 1) * 1000  # rounded up: not a nanosecond before the end
    moved[order] = np.where((before >= 0) & (free > begin[order]), free, begin[order])
    return moved


# ---- clocks ----------------------------------------------------------------------------------------------------------


def _home(job: Job, rank: int) -> str | int:
    return job.nodes.get(rank, rank)


def _per_row(job: Job, clocks: Clocks) -> Ints:
    ranks, index = np.unique(job.ops.column("rank"), return_inverse=True)
    ahead = np.array([clocks.ahead_ns.get(_home(job, int(rank)), 0) for rank in ranks], dtype=np.int64)
    return ahead[index.reshape(-1)] if len(ranks) else np.zeros(0, dtype=np.int64)


def _clocks(job: Job, completed: Ints) -> Clocks:
    """Each node's median distance from the middle of the collectives that it finished together with other nodes."""
    rows = _meetings(job, completed)
    if not len(rows):
        return Clocks({}, 0)
    rank = job.ops.column("rank")[rows]
    ranks, index = np.unique(rank, return_inverse=True)
    homes = [_home(job, int(r)) for r in ranks]
    names = list(dict.fromkeys(homes))
    number = {name: i for i, name in enumerate(names)}
    node = np.array([number[home] for home in homes], dtype=np.int64)[index.reshape(-1)]
    seq = job.ops.column("seq")[rows]
    meeting = paired(job.ops.column("group")[rows].astype(np.int64), seq)

    # Only a collective that spans nodes says anything.
    low, high = np.full(int(meeting.max()) + 1, len(names)), np.full(int(meeting.max()) + 1, -1)
    np.minimum.at(low, meeting, node)
    np.maximum.at(high, meeting, node)
    across = (high > low)[meeting]
    if not across.any():
        return Clocks({}, 0)
    node, meeting = node[across], paired(meeting[across], np.zeros(int(across.sum()), dtype=np.int64))
    times = completed[rows][across]
    base = int(times.min())
    ahead, noise = _solve((times - base).astype(np.float64), node, meeting, len(names))
    ahead -= np.median(ahead)
    ahead[np.abs(ahead) <= noise + _TOLERANCE_NS] = 0
    return Clocks({name: int(ahead[i]) for i, name in enumerate(names)}, int(meeting.max()) + 1)


def _meetings(job: Job, completed: Ints) -> Ints:
    """The rows by which clocks are compared: the last ends that the watchdog saw, of what everybody leaves at once."""
    ops = job.ops
    names = [i for i, name in enumerate(ops.tables.names) if any(word in name for word in _MEETING)]
    good = (ops.column("state") == State.COMPLETED) & (ops.column("retired") != 0) & (completed > 0)
    good &= (ops.column("kind") == Kind.COLLECTIVE) & (ops.column("seq") >= 0) & np.isin(ops.column("name"), names)
    rows = np.flatnonzero(good)
    if not len(rows):
        return rows
    group, seq = ops.column("group")[rows], ops.column("seq")[rows]
    newest = np.full(int(group.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(newest, group, seq)
    return rows[seq > newest[group] - _COMPARED]


def _solve(times: Floats, node: Ints, meeting: Ints, nodes: int) -> tuple[Floats, Floats]:
    """Offsets that bring every meeting's ends together, and how far chance alone could have moved each."""
    count = np.bincount(meeting).astype(np.float64)
    ahead = np.zeros(nodes)
    spread = np.zeros(nodes)
    for _ in range(_ROUNDS):
        middle = np.bincount(meeting, times - ahead[node]) / count
        step, spread = _medians(times - ahead[node] - middle[meeting], node, nodes)
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
