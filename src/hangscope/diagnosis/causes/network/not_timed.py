"""unknown: everyone is inside, and the recording does not say whose GPU got there.

Without timing, a kernel that never started looks like a network that does not deliver.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hangscope.diagnosis.accusation import LOW, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.everybody_joined import (
    Joined,
    all_inside,
    find_joined,
    find_sign,
    is_anything_timed,
    is_cut_off_seen,
    is_running,
    surest_pair,
)
from hangscope.diagnosis.evidence.code_lines import function_line, user_frame
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.stuck_link import network_events
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.text import sentence, verb

EVERYBODY_LAUNCHED = Grounds(
    "everybody_launched",
    Layer.SIGNS,
    LOW,
    "without timing, a kernel that never started looks like a network failure",
)


@dataclass(frozen=True, slots=True)
class NotTimed:
    """Which of the three it is."""

    joined: Joined


def propose(case: Case) -> Iterator[Accusation[NotTimed]]:
    """An operation that everybody who is seen has launched, and nothing says whether a GPU or the network is stuck."""
    joined = case.once(find_joined)
    wait = _not_timed(case, joined)
    if wait is not None:
        yield Accusation(EVERYBODY_LAUNCHED, CauseKind.UNKNOWN, NotTimed(joined), wait=wait)


def _not_timed(case: Case, joined: Joined) -> Wait | None:
    if joined.cut_off is not None:
        return None if is_cut_off_seen(case, joined.cut_off) else joined.cut_off.wait
    if joined.everybody is not None:
        shown = is_running(case, joined.everybody) or network_events(case.job) or case.once(find_sign) is not None
        return None if shown else joined.everybody
    if joined.pairs and not is_anything_timed(case, joined.pairs):
        return surest_pair(case, joined.pairs)[0]
    return None


def words(case: Case, accusation: Accusation[NotTimed]) -> Words:
    launched, inside = _who_is_inside(case, accusation)
    finding = _finding(case, accusation)
    if case.stacks.on_gpu:
        return Words(
            headline=f"{inside}; GPU or network, not determined",
            summary=f"{launched}; whether a kernel never started or data never arrives is not recorded (timing was "
            "off).",
            why=[finding],
            steps=[
                "set TORCH_NCCL_ENABLE_TIMING=1, so that dumps distinguish started from scheduled",
                port_commands.LOGS,
            ],
        )
    return Words(
        headline=f"{inside}; a different root or peer, or the network; not determined",
        summary=f"{launched}; the root of a call is not recorded, and one rank may have passed a different one.",
        why=[finding],
        steps=["code: print src or dst of this call on every rank: they must agree; then check the network"],
    )


def _who_is_inside(case: Case, accusation: Accusation[NotTimed]) -> tuple[str, str]:
    """For the summary, and for the headline."""
    wait = accusation.its_wait
    if accusation.facts.joined.cut_off is not None:
        stuck = f"{ranks_text(wait.waiters)} {verb(wait.waiters, 'does', 'do')} not finish"
        frame = user_frame(case.operation_of(wait).frames)
        called = f" in {function_line(frame)}" if frame is not None else ""
        by_others = f"which {ranks_text(wait.finished)} finished"
        return (
            f"{sentence(stuck)} {case.names.wait_in_group(wait)}, {by_others}",
            f"{stuck} {case.names.wait(wait)}{called}, {by_others}",
        )
    launched = f"All members launched {case.names.wait_in_group(wait)}, and it never completes"
    return launched, f"all members are inside {case.names.wait(wait)}"


def _finding(case: Case, accusation: Accusation[NotTimed]) -> Finding:
    wait = accusation.its_wait
    title = case.names.wait(wait)
    if accusation.facts.joined.everybody is not None:
        pair = len(wait.waiters) == 2
        return all_inside(
            case, wait, f"; they have one connection, {case.ports.between(*wait.waiters)}" if pair else ""
        )
    text = f"both sides of {title} launched it, and it never completes"
    if accusation.facts.joined.cut_off is not None:
        text = f"{ranks_text(wait.finished)} finished {title}, {ranks_text(wait.waiters)} did not"
    return Finding(text, case.source(wait.waiters[0]))


CAUSE = Cause(propose, words, (EVERYBODY_LAUNCHED,))
