"""Sentences of the shape that most verdicts have, with the code lines in them: where ranks are, where calls were made.

Numbers and lists of ranks are said as `hangscope.text` and `phrases.py` say them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.causes.shared.storage_words import blocked_on, mount_text
from hangscope.diagnosis.evidence.code_lines import function_line, function_through, through, user_frame
from hangscope.diagnosis.evidence.training_thread import Where
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import FileWait, Operation
from hangscope.text import sentence

_LISTED = 2


def who_did_what(
    case: Case,
    accusation: Accusation[Any],
    what: str,
    rest: str,
    *,
    why: Sequence[Finding],
    steps: Iterable[str],
    each: str | Mapping[int, str] = "",
    place: bool = True,
) -> Words:
    """The accused did this, and that came of it: the shape of most verdicts.

    `each`: what each rank did, where that is said otherwise. `place`: whether the headline leads with the lines in
    which the accused are; not where `what` has a line already.
    """
    ranks = accusation.ranks
    leads_with_place = place and accusation.hang and accusation.kind is not CauseKind.DEAD
    headline = with_place(case, ranks, what) if leads_with_place else what
    return Words(
        headline=f"{ranks_text(ranks)} {headline}",
        summary=f"{sentence(case.names.ranks(ranks))} {what}{rest}",
        why=why,
        each=dict.fromkeys(ranks, each or what) if isinstance(each, str) else each,
        steps=steps,
    )


def place_of(case: Case, rank: int, many: bool = False) -> str:
    """``is in save_checkpoint (train.py:8)``; empty where no stack shows a line of the user's."""
    where = case.stacks.where(rank)
    blocked = case.storage.of(rank)
    if blocked is not None:
        return _blocked_place(where, blocked, many)
    if where is None:
        return ""
    process = case.job.processes.get(rank)
    if case.job.reason == "rank-exit" and process is not None and process.exit_status is not None:
        does = "were in" if many else "was in"
    elif where.stack.child:
        does = "wait for their worker processes in" if many else "waits for its worker process in"
    elif where.moves:
        does = "run" if many else "runs"
    else:
        does = "are in" if many else "is in"
    return f"{does} {where.text}"


def _blocked_place(where: Where | None, blocked: FileWait, many: bool) -> str:
    """``is blocked reading /data/x.bin on nfs4 server:/export mounted at /data in load (train.py:8)``."""
    does = "are" if many else "is"
    if where is not None and where.stack.child:
        does = "wait for their worker processes, which are" if many else "waits for its worker process, which is"
    at_line = f" in {where.text}" if where is not None else ""
    return f"{does} {blocked_on(blocked)}{at_line}"


def on_one_mount(case: Case, ranks: Collection[int]) -> str:
    """Several ranks that are blocked on files of one mount; empty where they are not."""
    if len(ranks) < 2 or not case.storage.same_mount(ranks):
        return ""
    wait = case.storage.of(next(iter(ranks)))
    lines = {where.text if (where := case.stacks.where(rank)) is not None else "" for rank in ranks}
    line = lines.pop() if len(lines) == 1 else ""
    return f"are blocked on {mount_text(wait)}{f' in {line}' if line else ''}" if wait is not None else ""


def with_place(case: Case, ranks: Collection[int], what: str) -> str:
    """``is in save_checkpoint (train.py:8), and never launched all_reduce #61``: what ranks did, and where they are."""
    shared = on_one_mount(case, ranks)
    if shared:
        return f"{shared}, and {what}"
    places = {rank: place for rank in ranks if (place := place_of(case, rank))}
    if not places:
        return what
    if len(places) == len(ranks) and len(set(places.values())) == 1:
        return f"{place_of(case, next(iter(ranks)), many=len(ranks) > 1)}, and {what}"
    listed = ", ".join(f"rank {rank} {place}" for rank, place in list(places.items())[:_LISTED])
    more = f", {len(places) - _LISTED} more elsewhere" if len(places) > _LISTED else ""
    return f"{what}; {listed}{more}"


def called_in(case: Case, call: Operation) -> str:
    """`` in average (train.py:88)``, for the end of a phrase; empty where nothing tells from where a call was made."""
    frames = case.frames_of(call)
    frame = user_frame(frames)
    if frame is not None:
        return f" in {function_through(frame, through(frames))}"
    learnt = user_frame(case.sites.frames(call))
    return f" in {function_line(learnt, ', as in earlier steps')}" if learnt is not None else ""


def called_in_by(case: Case, wait: Wait, rank: int) -> str:
    """From where a rank called what it waits in."""
    calls = [call for u in wait.inside if u.rank == rank and (call := case.progress.operation(u)) is not None]
    if calls:
        return called_in(case, calls[0])
    where = case.stacks.where(rank) if rank in wait.waiters else None
    return f" in {where.text}" if where is not None else ""
