"""network: all members are inside one operation, nobody finished it, and nothing names a GPU, a link or a port."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.everybody_joined import (
    all_inside,
    all_started,
    doubts_of_everybody,
    find_joined,
    find_sign,
    is_running,
)
from hangscope.diagnosis.causes.shared.port_steps import ports_step
from hangscope.diagnosis.findings import quoted
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.hardware.nccl_rings import Way
from hangscope.diagnosis.stuck_link import network_events
from hangscope.diagnosis.verdict import CauseKind
from hangscope.diagnosis.waits.wait_graph import Wait

EVERYBODY_INSIDE = Grounds(
    "everybody_inside",
    Layer.SIGNS,
    MEDIUM,
    "every member's kernel started, and no member finished the operation",
    before={
        "order_unusual": "test_edges.py::test_everybody_inside_goes_before_an_order_that_is_only_unusual",
        "blocks_unseen": "test_edges.py::test_everybody_inside_goes_before_a_rank_that_is_not_seen",
    },
)

_WARNINGS_SHOWN = 2


def propose(case: Case) -> Iterator[Accusation[None]]:
    """An operation that every member's GPU started, or that NCCL warns during, and that nobody finished."""
    wait = case.once(find_joined).everybody
    if wait is None or case.once(find_sign) is not None:
        return
    if is_running(case, wait) or network_events(case.job):
        yield Accusation(
            EVERYBODY_INSIDE,
            CauseKind.NETWORK,
            None,
            wait=wait,
            way=_only_connection(case, wait),
            doubts=doubts_of_everybody(case, wait),
        )


def _only_connection(case: Case, wait: Wait) -> Way | None:
    """Of two members: they have one."""
    if len(wait.waiters) != 2 or not all_started(wait):
        return None
    return case.ports.between(*wait.waiters).way


def words(case: Case, accusation: Accusation[None]) -> Words:
    wait = accusation.its_wait
    way = accusation.way
    how = "started" if is_running(case, wait) else "launched"
    edge = f"between rank {way.sender} and rank {way.receiver}" if way is not None else "link not determined"
    inside = f"Network or hardware problem inside {case.names.wait_in_group(wait)}, {edge}"
    warnings = network_events(case.job)[:_WARNINGS_SHOWN]
    return Words(
        headline=f"network or hardware problem inside {case.names.wait(wait)}, {edge}",
        summary=f"{inside}: all {len(wait.inside)} members {how} it and none finished.",
        why=[all_inside(case, wait), *(quoted(event) for event in warnings)],
        steps=[ports_step(case, wait.waiters), port_commands.LOGS],
        link=f"{case.names.group(wait.group)} has two members, and so one connection",
    )


CAUSE = Cause(propose, words, (EVERYBODY_INSIDE,))
