"""Gloo up to torch 2.14: the operation that raised is taken for finished. Its log says that it was not.

Gloo retires an entry when its work ends, however it ends, so a dump that was written after the exception shows the
rank inside of nothing. The traceback tells which call raised: the newest entry that was made from the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hangscope.model import UNKNOWN, Dump, Frame, Operations, State, WatchdogReport

_UNRECORDED = frozenset(("send", "recv", "isend", "irecv", "batch_isend_irecv", "monitored_barrier"))
"""Calls that Gloo does not record: nothing in the dump is the operation that raised."""


def reopen(ops: Operations, dumps: Mapping[int, tuple[Dump, ...]], reports: Iterable[WatchdogReport]) -> list[int]:
    """Set what ranks gave up on back to unfinished, in place. Returns the rows."""
    last = {report.rank: report for report in reports if report.kind in ("timeout", "async_error") and report.frames}
    rows: list[int] = []
    for rank, report in sorted(last.items()):
        of_rank = dumps.get(rank, ())
        if not of_rank or any(dump.backend != "gloo" or not dump.complete for dump in of_rank):
            continue
        row = _raised(ops, rank, report.frames)
        if row is not None:
            rows.append(row)
    for row in rows:
        ops.column("state")[row] = State.SCHEDULED
        ops.column("retired")[row] = 0
    return rows


def _raised(ops: Operations, rank: int, frames: tuple[Frame, ...]) -> int | None:
    """The entry whose work raised; None where the dump shows something unfinished anyway, or does not have it."""
    part = ops.span(rank)
    state = ops.column("state")
    if part.stop == part.start or (state[part] != State.COMPLETED).any():
        return None
    if frames[0].name in _UNRECORDED:
        return None
    rows = range(part.stop - 1, part.start - 1, -1)
    same = next((row for row in rows if _same_call(ops.tables.stack(int(ops.column("stack")[row])), frames)), None)
    if same is not None:
        return None if _passed(ops, same) else same
    # A wait of its own, for work that was launched elsewhere: the newest, if somebody is not known to have joined it.
    row = part.stop - 1
    return None if _passed(ops, row) or _all_joined(ops, row) else row


def _same_call(made: tuple[Frame, ...], raised: tuple[Frame, ...]) -> bool:
    """Whether an entry was made by the call that raised: one function, which waits a few lines below its launch."""
    if not made or (made[0].name, made[0].filename) != (raised[0].name, raised[0].filename):
        return False
    length = min(len(made), len(raised))
    return length > 1 and made[1:length] == raised[1:length]


def _passed(ops: Operations, row: int) -> bool:
    """Whether a peer has launched a later one in that group: it finished this one, and the exception came later."""
    group, seq = ops.column("group"), ops.column("seq")
    return bool(((group == group[row]) & (seq > seq[row])).any())


def _all_joined(ops: Operations, row: int) -> bool:
    group = ops[row].group
    if group.members is None or ops.column("seq")[row] == UNKNOWN:
        return True
    here = (ops.column("group") == ops.column("group")[row]) & (ops.column("seq") == ops.column("seq")[row])
    return {*group.members, *group.open} <= set(ops.column("rank")[here].tolist())
