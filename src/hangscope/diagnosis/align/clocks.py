"""How far the clocks of the nodes differ, by collectives that end on all members at once.

What is recorded of an end is when the rank's watchdog noticed it, and that sweeps every 100 ms: the median over many
collectives is better than that, one alone is not. Nothing is decided by it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Floats, Ints
from hangscope.diagnosis.align.lanes import Lane
from hangscope.model import Operations, State

# Collectives of one group by which clocks are compared.
_ENOUGH = 200


def clock_skew_ms(alignment: Alignment) -> float | None:
    """From the slowest node's clock to the fastest; None where no end was seen on several ranks."""
    job = alignment.job
    ops = alignment.job.ops
    gathered: dict[object, list[Floats]] = defaultdict(list)
    for lane in alignment.lanes.values():
        rows = met_by_all(alignment, lane, _ENOUGH)
        completed = ops.column("completed_ns")[rows]
        # Only what the watchdog swept has a completion time of its own; the rest carries the time of the dump.
        seen = np.all((completed > 0) & (ops.column("retired")[rows] == 1), axis=1)
        off = completed[seen] / 1e6
        off -= np.median(off, axis=1, keepdims=True)
        for column, rank in zip(off.T.copy(), ops.column("rank")[rows[0]].tolist() if len(off) else (), strict=False):
            gathered[job.nodes.get(rank, rank)].append(column)
    offsets = [_median(np.concatenate(values)) for values in gathered.values()]
    return max(offsets) - min(offsets) if offsets else None


def _median(values: Floats) -> float:
    """As numpy's, which takes longer to find out what it is given than to sort a few hundred values."""
    values.sort()
    return float((values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2)


def met_by_all(alignment: Alignment, lane: Lane, last: int | None = None) -> Ints:
    """Rows of the collectives that nobody leaves before all have come and that every member with a dump finished:
    one line a collective, one column a member. Of many, the `last` ones are enough."""
    ops = alignment.job.ops
    members = sum(1 for rank in lane.group.members or () if rank in alignment.job.dumps)
    if members < 2:
        return np.empty((0, 2), dtype=np.int64)
    full = lane.starts[:-1][np.diff(lane.starts) == members]
    full = full[alignment.symmetric[lane.rows[full]]]
    if last is not None and len(full) > 2 * last:  # mostly all of the last ones are finished
        found = _finished(ops, lane, full[-2 * last :], members)[-last:]
        if len(found) == last:
            return found
    return _finished(ops, lane, full, members)[-(last or 0) :]


def _finished(ops: Operations, lane: Lane, places: Ints, members: int) -> Ints:
    rows = lane.rows[places[:, None] + np.arange(members)[None, :]]
    met: Ints = rows[np.all(ops.column("state")[rows] == State.COMPLETED, axis=1)]
    return met
