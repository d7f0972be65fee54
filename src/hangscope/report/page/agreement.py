"""Which calls at one position are not what the rest of the group called."""

from __future__ import annotations

import numpy as np

from hangscope.model import Job
from hangscope.report.spans import Bools, Ints, paired

_EQUAL = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_allgather_base", "_reduce_scatter_base")
"""Calls whose sizes and types must be the same on every member."""


def differs(job: Job, rows: Ints, *, stacks: bool) -> Bools:
    """Rows whose call is not that of most members at their position; where none is in the majority, all of them.

    With `stacks` the same call from another line differs too. That is for verdicts that say so: ranks may take
    different ways to the same call by design.
    """
    ops = job.ops
    if not len(rows):
        return np.zeros(0, dtype=bool)
    call = ops.column("name")[rows].astype(np.int64)
    equal = np.isin(call, [i for i, name in enumerate(ops.tables.names) if name in _EQUAL])
    for name in ("size_bytes", "in_dtypes"):
        column = ops.column(name)[rows].astype(np.int64)
        call = paired(call, np.where(equal, column - column.min(initial=0), 0))
    if stacks:
        call = paired(call, ops.column("stack")[rows].astype(np.int64))
    position = paired(ops.column("group")[rows].astype(np.int64), ops.column("seq")[rows])
    both = paired(position, call)
    count = np.bincount(both)
    owner = np.zeros(len(count), dtype=np.int64)
    owner[both] = position
    most = np.zeros(int(position.max()) + 1, dtype=np.int64)
    np.maximum.at(most, owner, count)
    leaders = np.bincount(owner[count == most[owner]], minlength=len(most))
    return (count[both] < most[position]) | (leaders[position] > 1)
