"""network: everybody is inside one operation, and error counters rose only on the ports of one connection."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.everybody_joined import all_inside, doubts_of_everybody, find_joined, find_sign
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.hardware.port_paths import Trouble
from hangscope.diagnosis.verdict import CauseKind

PORT_ERRORS = Grounds(
    "port_errors",
    Layer.STUCK_BYTES,
    MEDIUM,
    "everyone is inside, and error counters rose only on the ports of one connection",
)


def propose(case: Case) -> Iterator[Accusation[Trouble]]:
    """Of all connections, those over the ports whose counters differ from all others'."""
    wait = case.once(find_joined).everybody
    trouble = case.once(find_sign)
    if wait is None or not isinstance(trouble, Trouble):
        return
    title = case.names.wait(wait)
    doubts = doubts_of_everybody(case, wait)
    yield Accusation(
        PORT_ERRORS,
        CauseKind.NETWORK,
        trouble,
        [Accused(rank, CauseKind.NETWORK, title) for rank in trouble.ranks],
        wait,
        way=trouble.path.way if trouble.only else None,
        doubts=doubts if trouble.only else [*doubts, Doubt.NO_EDGE],
    )


def words(case: Case, accusation: Accusation[Trouble]) -> Words:
    trouble = accusation.facts
    wait = accusation.its_wait
    title = case.names.wait(wait)
    inside = f"all {len(wait.inside)} members are inside {case.names.wait_in_group(wait)} and none finished"
    return Words(
        headline=f"errors on {trouble.where}, while all members are inside {title}",
        summary=f"Network: {inside}; error counters rose on {trouble.where} and hardly anywhere else.",
        why=[all_inside(case, wait)],
        each=dict.fromkeys(accusation.ranks, f"what it sends and receives in {title} goes over {trouble.where}"),
        steps=port_commands.steps(trouble.path, trouble.ports),
        link="the only connection over these ports",
    )


CAUSE = Cause(propose, words, (PORT_ERRORS,))
