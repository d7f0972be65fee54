"""The code lines in a verdict's first line: where the accused stand, and from where calls were made."""

from collections.abc import Collection

from hangscope.diagnosis.accusation import Accusation, Basis
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import function_line, user_frame
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Operation

# Their words have a line already, or are not about where a rank stands.
_WITHOUT = (Basis.STANDS_APART, Basis.CALL_ORDER, Basis.OTHER_LINE, Basis.SLOW_WORK, Basis.SLOW_LAUNCHES)
_LISTED = 2


def stands_at(case: Case, rank: int, many: bool = False) -> str:
    """``is in save_checkpoint (train.py:8)``; empty where no stack shows a line of the user's."""
    where = case.stacks.where(rank)
    if where is None:
        return ""
    does = ("is in", "are in") if not where.moves else ("runs", "run")
    if where.stack.child:
        does = "waits for its worker process in", "wait for their worker processes in"
    return f"{does[many]} {function_line(where.frame)}"


def lead(case: Case, ranks: Collection[int], what: str) -> str:
    """``is in save_checkpoint (train.py:8), and never launched all_reduce #61``: what ranks did, and where they are."""
    texts = {rank: text for rank in ranks if (text := stands_at(case, rank))}
    if not texts:
        return what
    if len(texts) == len(ranks) and len(set(texts.values())) == 1:
        return f"{stands_at(case, next(iter(ranks)), many=len(ranks) > 1)}, and {what}"
    more = f", {len(texts) - _LISTED} more elsewhere" if len(texts) > _LISTED else ""
    return f"{what}; {', '.join(f'rank {rank} {text}' for rank, text in list(texts.items())[:_LISTED])}{more}"


def led(case: Case, a: Accusation, what: str) -> str:
    """The same for any accusation that says no line by itself."""
    return lead(case, a.ranks, what) if a.hang and a.kind != "dead" and a.basis not in _WITHOUT else what


def called(case: Case, call: Operation) -> str:
    """`` in average (train.py:88)``, for the end of a phrase; empty where nothing tells from where a call was made."""
    frame, learnt = user_frame(case.frames_of(call)), user_frame(case.sites.frames(call))
    if frame is None and learnt is not None:
        return f" in {function_line(learnt, ', as in the steps before')}"
    return f" in {function_line(frame)}" if frame is not None else ""


def called_by(case: Case, wait: Wait, rank: int) -> str:
    """From where a rank called what it waits in."""
    calls = [call for u in wait.inside if u.rank == rank and (call := case.progress.operation(u)) is not None]
    return called(case, calls[0]) if calls else ""
