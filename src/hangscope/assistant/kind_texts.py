"""What the words of a verdict mean, for whoever has to explain it: kinds, outcomes and confidence."""

from __future__ import annotations

from typing import Any, NamedTuple

from hangscope.errors import SettingsError


class KindText(NamedTuple):
    """What a kind means, what shows it, and where people look first."""

    means: str
    shown_by: str
    look_at: str


KINDS = {
    "absent": KindText(
        "The process lives but never launched what its peers wait for: data loading, checkpoint, compile, a branch.",
        "Its recording ends before the operation that the others are in, and its main thread is outside a collective.",
        "The line of code that the rank is at, which the verdict names; not the ranks that timed out.",
    ),
    "dead": KindText(
        "The process ended: a signal, out of memory, an exception, or a clean exit while others continued.",
        "An exit status, a traceback, a launcher's or the kernel's line, that came before the others gave up.",
        "The traceback or the kernel's out-of-memory line of that rank; the node if several of its ranks ended.",
    ),
    "frozen": KindText(
        "The process exists and answers nothing: stopped, in uninterruptible sleep, or its GIL held for ever.",
        "Its companion and its dump do not answer, while the process is listed; its state in procfs.",
        "The process's state and its native stack; a hung file system where it is in uninterruptible sleep.",
    ),
    "gpu": KindText(
        "It launched, but its GPU does not get there or does not finish, and it is not the network.",
        "Its operation is scheduled and never started, while its peers' started; Xids and ECC errors of its GPU.",
        "The GPU on that node (nvidia-smi, Xids in the kernel's log); exclude it and try again.",
    ),
    "mismatch": KindText(
        "It runs another operation, order, size, type, split or peer than its group.",
        "The recordings of one group disagree at one position; the majority is the reference.",
        "The branch in the code that only some ranks take: the verdict names the line of both sides.",
    ),
    "deadlock": KindText(
        "Ranks wait for each other in a cycle over several groups.",
        "The graph of waits has a cycle with no way out.",
        "The order in which the code calls collectives of different groups, on the ranks of the cycle.",
    ),
    "network": KindText(
        "Everyone launched; bytes do not arrive.",
        "All members are inside the operation; NCCL's warnings, the black box or port counters point to a connection.",
        "The link that the verdict names, its two ports and their counters; else the fabric between the two nodes.",
    ),
    "resources": KindText(
        "A task or an actor waits for CPUs, GPUs or memory that no node of its Ray cluster can give.",
        "Ray lists it as waiting for a node, and nothing that runs works towards an end.",
        "What the task asks for, and who holds it: `ray status`. No rank and no actor is at fault.",
    ),
    "slow": KindText(
        "Nothing hangs; one rank makes all others wait again and again.",
        "For the same calls one rank comes last in most of them, by a large part of a step.",
        "The node of that rank: clocks, thermals, its data loader, its neighbours.",
    ),
    "shift": KindText(
        "Nothing hangs; a rank left calls out or added some, and its calls have met the wrong ones ever since.",
        "At the same number of a group it calls from another line or with another size, and its calls are the others'"
        " when moved by some numbers.",
        "The branch that only this rank took (a batch skipped, a NaN, an error caught); results since then are wrong.",
    ),
    "unknown": KindText(
        "It hangs, or may hang, and the evidence does not name the cause.",
        "What is missing is listed under gaps.",
        "What next_steps asks for: most often dumps of the missing ranks, or `hangscope run` for the next time.",
    ),
    "none": KindText(
        "Nothing hangs.",
        "Progress was seen on every rank that should be there, and no line of failure anywhere.",
        "Nothing.",
    ),
}
"""As the verdict's JSON says them (`kind`)."""

OUTCOMES = {
    "hang": "Ranks wait for something that does not come.",
    "crash": "A process ended by itself, and the others lost it; nothing stood still for long.",
    "pause": "The job stalled for a while and resumed by itself.",
    "slow": "Nothing hangs; one rank holds the others up.",
    "desync": "Nothing hangs; ranks lastingly run calls together that do not belong together: results are wrong.",
    "wrong": "Nothing hung; at least once ranks ran calls together that do not fit, so results are wrong since then.",
    "ok": "Progress was seen on every rank.",
    "unknown": "The evidence does not say whether it hangs.",
}

CONFIDENCE = {
    "high": "The rank's own evidence shows it, and nothing contradicts it: act on it.",
    "medium": "Others' evidence or a log shows it, or a doubt remains: check the one thing that confidence_rule names.",
    "low": "Only something missing points there: say so, name also_possible too, and accuse nobody on it.",
}


def explain(kind: str) -> dict[str, Any]:
    """What a kind means, beside what all outcomes and confidences mean."""
    known = KINDS.get(kind.strip().casefold())
    if known is None:
        raise SettingsError(f"unknown kind {kind!r}", hint=f"kinds are {', '.join(KINDS)}")
    return {"kind": kind.strip().casefold(), **known._asdict(), "outcomes": OUTCOMES, "confidence": CONFIDENCE}
