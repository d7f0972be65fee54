"""The kinds of cause that the evidence excludes, and by what."""

from collections.abc import Iterator
from typing import Any

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.align.agreement import ROOTED
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.stuck_link import NETWORK_EVENTS
from hangscope.diagnosis.verdict import CauseKind, RuledOut
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import State

_HELD_UP_BY_A_RANK = (CauseKind.ABSENT, CauseKind.DEAD, CauseKind.FROZEN, CauseKind.DEADLOCK)


def ruled_out(case: Case, chosen: Accusation[Any]) -> tuple[RuledOut, ...]:
    """The other kinds, where the evidence excludes them."""
    found = list(_by_recordings(case, chosen))
    if chosen.hang:
        found += [*_by_processes(case), *_by_nccl_logs(case)]
    if chosen.wait is not None:
        found += _by_the_operation(case, chosen, chosen.wait)
    return tuple(one for one in found if one.kind is not chosen.kind)


def _by_recordings(case: Case, chosen: Accusation[Any]) -> Iterator[RuledOut]:
    ranks = case.job.ranks
    # Every rank's own recording is there, whole and of this hang, and there is more than one.
    if len(ranks) < 2 or not all(case.progress.of[rank].own_record for rank in ranks):
        return
    # Who the root of a call is no recorder says: where nobody knows what is stuck, it may be that.
    root_unknown = chosen.kind is CauseKind.UNKNOWN and chosen.wait is not None and chosen.wait.name in ROOTED
    if len(case.dumped) >= len(ranks) and not case.divergences and not root_unknown:
        agree = f"operations, sizes and types agree on all {len(case.dumped)} ranks"
        yield RuledOut(CauseKind.MISMATCH, agree)
    if chosen.hang and not case.cycle:
        yield RuledOut(CauseKind.DEADLOCK, "no wait cycle across the groups")


def _by_processes(case: Case) -> Iterator[RuledOut]:
    ranks = case.job.ranks
    # Ranks that only logs mention are some of them, nobody knows how many there are.
    counted = len(ranks) > 1 and {*case.job.dumps, *case.job.processes}.issuperset(ranks)
    if counted and all(case.liveness.alive(rank).says is Says.YES for rank in ranks):
        yield RuledOut(CauseKind.DEAD, f"all {len(ranks)} processes were alive")


def _by_nccl_logs(case: Case) -> Iterator[RuledOut]:
    logs = {part.rank for part in case.job.facts.communicators if part.rank is not None}
    errors = any(event.kind in NETWORK_EVENTS for event in case.job.facts.transport)
    if logs and logs.issuperset(case.job.ranks) and not errors:
        text = f"no transport error in NCCL's log of {len(logs)} ranks"
        if any(event.kind == "size_desync" for event in case.job.facts.transport):
            text = f"NCCL's log of {len(logs)} ranks has no transport error but truncated messages, whose sizes differ"
        yield RuledOut(CauseKind.NETWORK, text)


def _by_the_operation(case: Case, chosen: Accusation[Any], wait: Wait) -> Iterator[RuledOut]:
    if chosen.kind in _HELD_UP_BY_A_RANK and _is_timed(case) and all(u.state is State.STARTED for u in wait.inside):
        yield RuledOut(CauseKind.GPU, f"the kernel of every waiting rank started {case.names.wait(wait)}")
    if chosen.kind is CauseKind.GPU and chosen.accused[0].operation:
        yield RuledOut(CauseKind.ABSENT, "the rank launched the operation")


def _is_timed(case: Case) -> bool:
    """Whether every dump tells started from scheduled."""
    dumps = case.job.dumps
    return bool(dumps) and all(case.progress.of[rank].timing for rank in dumps if rank in case.progress.of)
