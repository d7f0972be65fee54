"""What of a huge ring is kept: its end, and whatever before that a rule could ask for.

A ring that is set up by the vendors' guides holds two million entries a rank, of which a hang is in the last few
thousand. Keeping the end of a ring gives what a smaller ring would have left, which the rules know how to judge: the
dump counts as wrapped. Beyond that, of every group that would be gone altogether its last entries stay, and from an
unfinished entry on all of its group, however long ago it was.
"""

from __future__ import annotations

import numpy as np

from hangscope.model import Ints
from hangscope.reader.dumps.normalise import COMPLETED
from hangscope.reader.dumps.raw_dump import Columns

MOST_OF_A_RANK = 100_000
LEAST_OF_A_RANK = 512
"""Enough for the call order of the last steps, whatever the size of the job."""
MOST_OF_A_JOB = 1_000_000
"""Entries: some 120 MB of columns. At 1,024 ranks it is the last 976 of each."""
_OF_A_GROUP = 8


def share(ranks: int) -> int:
    """How many entries of each of so many ranks are kept."""
    return max(LEAST_OF_A_RANK, min(MOST_OF_A_RANK, MOST_OF_A_JOB // max(ranks, 1)))


def rows_to_keep(columns: Columns, most: int) -> Ints | None:
    """The rows to keep of a ring with more than `most` entries; None where that is all of them."""
    total = len(columns["seq"])
    start = total - most
    if start <= 0:
        return None
    group = columns["group"]
    before = group[:start]
    done = (columns["state"][:start] == COMPLETED) | (columns["retired"][:start] == 1)
    wanted = np.zeros(start, dtype=bool)
    counts = np.bincount(before)
    there = np.bincount(group[start:], minlength=len(counts))
    for lost in np.flatnonzero((counts > 0) & (there[: len(counts)] == 0)).tolist():
        wanted[np.flatnonzero(before == lost)[-_OF_A_GROUP:]] = True
    for waiting in np.unique(before[~done]).tolist():
        rows = np.flatnonzero(before == waiting)
        wanted[rows[np.flatnonzero(~done[rows])[0] :]] = True
    return np.concatenate((np.flatnonzero(wanted), np.arange(start, total)))
