"""network: peers finished the operation that some ranks are inside of: the end of a chain of transfers is cut off."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.agreement import is_symmetric
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.everybody_joined import CutOff, find_joined, is_cut_off_seen, naming_warnings
from hangscope.diagnosis.causes.shared.port_steps import link_steps, ports_step
from hangscope.diagnosis.findings import quoted
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.hardware.port_paths import Bearing
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.text import verb

CUT_OFF = Grounds(
    "cut_off",
    Layer.STUCK_BYTES,
    HIGH,
    "some members finished, and the ring in NCCL's log names the edge to the first that did not",
)


def propose(case: Case) -> Iterator[Accusation[None]]:
    """The rank that receives from one that finished, by the rings of NCCL's log; else all that did not finish."""
    cut_off = case.once(find_joined).cut_off
    if cut_off is None or not is_cut_off_seen(case, cut_off):
        return
    wait = cut_off.wait
    title = case.names.wait(wait)
    way = cut_off.edge.way if cut_off.edge is not None else None
    stuck = [way.receiver] if way is not None else wait.waiters
    accused = [Accused(rank, CauseKind.NETWORK, title) for rank in stuck]
    yield Accusation(CUT_OFF, CauseKind.NETWORK, None, accused, wait, way=way, doubts=_doubts(case, cut_off))


def _doubts(case: Case, cut_off: CutOff) -> list[Doubt]:
    wait = cut_off.wait
    edge = cut_off.edge
    bearing = case.ports.bearing(edge) if edge is not None else None
    # Where the ports point at the one connection, neither clocks nor calls could say otherwise.
    pointed = cut_off.only and bearing is Bearing.HERE
    timed = all(case.progress.of[rank].timing for rank in wait.waiters)
    return doubts_where(
        {
            Doubt.FROM_LOGS: not case.job.dumps,
            Doubt.NOT_TIMED: not pointed and not timed,
            Doubt.EARLIER_DISAGREEMENT: not pointed and is_symmetric(wait.name),
            Doubt.NO_EDGE: edge is None,
            Doubt.OTHER_WAYS: edge is not None and not cut_off.only,
            Doubt.ERRORS_ELSEWHERE: bearing is Bearing.ELSEWHERE,
        }
    )


def words(case: Case, accusation: Accusation[None]) -> Words:
    wait = accusation.its_wait
    way = accusation.way
    title = case.names.wait(wait)
    finished = f"{ranks_text(wait.finished)} finished"
    stuck = ranks_text(wait.waiters)
    are = verb(wait.waiters, "is", "are")
    ends = f"towards {stuck}"
    each = f"is stuck in {title}, which its peers have finished"
    if way is not None:
        ends = f"from rank {way.sender} to rank {way.receiver}"
        each = f"receives {title} from rank {way.sender}, but it never arrives"
    return Words(
        headline=f"{title} never arrives at {ranks_text(accusation.ranks)}",
        summary=f"Bytes of {title} do not get through {ends}: {finished} it, {stuck} {are} stuck inside it.",
        why=_findings(case, accusation),
        each=dict.fromkeys(accusation.ranks, each),
        steps=link_steps(case, way) or [ports_step(case, wait.waiters), port_commands.LOGS],
        link=f"channel {way.channel} of NCCL's log: {way.sender} -> {way.receiver}" if way is not None else "",
    )


def _findings(case: Case, accusation: Accusation[None]) -> list[Finding]:
    wait = accusation.its_wait
    way = accusation.way
    finished = f"{ranks_text(wait.finished)} finished {case.names.wait_in_group(wait)}"
    still_inside = f"{ranks_text(wait.waiters)} {verb(wait.waiters, 'is', 'are')} still inside it"
    findings = [Finding(f"{finished}; {still_inside}", case.source(wait.waiters[0]))]
    if way is not None:
        receives = f"rank {way.receiver} receives from rank {way.sender}, which has finished"
        findings.append(Finding(f"in the ring of {case.names.group(wait.group)}, {receives}"))
    warnings = naming_warnings(case, {*wait.waiters, *wait.finished})
    return [*findings, *(quoted(event) for event in warnings[:1])]


CAUSE = Cause(propose, words, (CUT_OFF,))
