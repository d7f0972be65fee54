"""network: a send and its receive were both launched, and the data does not arrive. The pair itself is the link."""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.everybody_joined import find_joined, is_anything_timed, surest_pair
from hangscope.diagnosis.causes.shared.port_steps import link_steps
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.hardware.nccl_rings import Way
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Operation

STUCK_PAIR = Grounds(
    "stuck_pair", Layer.STUCK_BYTES, MEDIUM, "a point-to-point call that both ends launched never completes"
)


@dataclass(frozen=True, slots=True)
class StuckPair:
    """The surest of the calls; None where none names both its ends."""

    call: Operation | None


def propose(case: Case) -> Iterator[Accusation[StuckPair]]:
    """Both ends of a transfer that both have launched and that does not finish."""
    pairs = case.once(find_joined).pairs
    if not pairs or not is_anything_timed(case, pairs):
        return
    wait, call = surest_pair(case, pairs)
    way = _way(call)
    yield Accusation(
        STUCK_PAIR,
        CauseKind.NETWORK,
        StuckPair(call),
        [Accused(rank, CauseKind.NETWORK) for rank in way[:2]] if way is not None else (),
        wait,
        way=way,
        explains=pairs,
    )


def _way(call: Operation | None) -> Way | None:
    if call is None or call.source is None or call.destination is None:
        return None
    return Way(call.source, call.destination)


def words(case: Case, accusation: Accusation[StuckPair]) -> Words:
    wait = accusation.its_wait
    way = accusation.way
    call = accusation.facts.call
    title = case.names.wait(wait)
    text = f"data in {title} never arrives"
    each = {}
    if way is not None and call is not None:
        text = f"data from rank {way.sender} never reaches rank {way.receiver}"
        each[way.sender] = f"sends {call.title}, which never arrives"
        each[way.receiver] = "receives it, but it never arrives"
    waiting = ranks_text({rank for pair in accusation.explains for rank in pair.waiters})
    found = f"{waiting} wait in point-to-point calls whose other side has joined"
    return Words(
        headline=text,
        summary=f"Sender and receiver both launched {title}, and {text}.",
        why=[Finding(found, case.source(wait.waiters[0]))],
        each=each,
        steps=link_steps(case, way) or [port_commands.LOGS],
        link=f"{call.title}: both sides launched it and it never completes" if call is not None else "",
    )


CAUSE = Cause(propose, words, (STUCK_PAIR,))
