"""What a rank that others wait for did, in words: ``never launched all_reduce #7``, ``is stopped (state T)``."""

from collections.abc import Sequence

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes.shared.blockers import Blocker, Shown, not_started
from hangscope.diagnosis.evidence.code_lines import function_line, user_frame
from hangscope.diagnosis.evidence.liveness import How, Life
from hangscope.diagnosis.evidence.process_ends import ending
from hangscope.diagnosis.verdict import CauseKind
from hangscope.text import first_line

# How a life that did not go on is said of one rank, and of several.
_LIFE = {
    How.OUT_OF_MEMORY: ("was killed by the kernel (out of memory)", "were killed by the kernel (out of memory)"),
    How.STOPPED: ("is stopped (state T)", "are stopped (state T)"),
    How.SLEEPS: ("is in uninterruptible sleep", "are in uninterruptible sleep"),
    How.OUTLIVED_SIGTERM: ("did not exit when its launcher sent SIGTERM", "did not exit when sent SIGTERM"),
    How.HOLDS_GIL: ("holds the GIL", "hold their GIL"),
    How.GIL_HELD: ("holds the GIL and does not respond", "hold their GIL and do not respond"),
    How.ANSWERS_NOTHING: ("is alive but does not respond", "are alive but do not respond"),
    How.LOST_BY_PEERS: ("left no dump, and its peers lost their connection to it before anyone timed out",) * 2,
    How.REACTED_TO_NOTHING: ("did not react to anything, and no peer lost its connection to it",) * 2,
}
SEVERAL_DID = {
    CauseKind.DEAD: "ended",
    CauseKind.FROZEN: "do not respond",
    CauseKind.ABSENT: "never launched what their peers are waiting in",
    CauseKind.GPU: "launched what their peers are waiting in, but its kernels never started",
}
"""What several ranks of one kind did, where no one sentence about one of them holds for all; the kinds in the order in
which they are said."""


def what_they_did(case: Case, alike: Sequence[Blocker]) -> str:
    """What ranks of one kind did."""
    same = len({what_it_did(case, blocker) for blocker in alike}) == 1
    return what_it_did(case, alike[0], many=len(alike) > 1) if same else SEVERAL_DID[alike[0].kind]


def what_it_did(case: Case, blocker: Blocker, many: bool = False) -> str:
    """What one rank did, or several that did the same."""
    if blocker.kind is CauseKind.GPU:
        return _what_its_gpu_did(case, blocker)
    if blocker.kind is CauseKind.ABSENT:
        nothing = f"left no sign that {'they' if many else 'it'} joined"
        return f"never launched {blocker.operation}" if blocker.operation else nothing
    if blocker.shown is Shown.NOT_SHOWN or blocker.life is None:
        return "left no dump and no other sign of life"
    return _how_it_ended(blocker.life, many)


def _what_its_gpu_did(case: Case, blocker: Blocker) -> str:
    rank = blocker.rank
    if case.cuda_error(rank) is not None:
        return "hit a CUDA error"
    if blocker.life is not None and blocker.life.call:
        before = f" before {case.names.own_side(not_started(case, rank), rank)}" if blocker.operation else ""
        return f"its GPU never finishes a kernel{before}; its CPU waits in {blocker.life.call}"
    kernel = case.kernels.other(rank)
    if not blocker.operation and kernel is not None:
        return f"its GPU runs {kernel.title} and does not finish it"
    return f"launched {blocker.operation}, but its kernel never started"


def _how_it_ended(life: Life, many: bool) -> str:
    if life.how is How.RAISED and life.error is not None:
        frame = user_frame(life.error.frames[::-1])
        where = f" in {function_line(frame)}" if frame else ""
        return f"ended{where} with {life.error.type}: {first_line(life.error.message)}"
    if life.how is How.STATUS and life.process is not None:
        return ending(life.process).replace("was ", "were ", 1) if many else ending(life.process)
    text = _LIFE.get(life.how, ("is gone", "are gone"))[many]
    channel = life.process.wait_channel if life.how is How.SLEEPS and life.process is not None else None
    return f"{text} in {channel}" if channel else text
