"""Ranks that others wait for: absent, dead, frozen, a kernel that never started."""

from collections.abc import Sequence

from hangscope.diagnosis.accusation import Accusation, Accused, Shown
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes.advice import BY_CALL, COLLECT, SWITCH_ON, UNDER_RUN
from hangscope.diagnosis.evidence.code_lines import at, function_line, line, user_frame
from hangscope.diagnosis.evidence.liveness import How, Is, Life
from hangscope.diagnosis.evidence.process_ends import ending
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.diagnosis.wording.lines import called, called_by, lead, stands_at
from hangscope.diagnosis.wording.others import Words, did
from hangscope.text import SEVERAL_DID, first_line, plural, sentence, verb

_STEPS = 3
# How a life that did not go on is said of one rank, and of several.
_LIFE = {
    How.OUT_OF_MEMORY: ("was killed by the kernel: out of memory", "were killed by the kernel: out of memory"),
    How.STOPPED: ("is stopped (state T)", "are stopped (state T)"),
    How.SLEEPS: ("is in uninterruptible sleep", "are in uninterruptible sleep"),
    How.HOLDS_GIL: ("holds the GIL", "hold their GIL"),
    How.GIL_HELD: ("holds the GIL, and nothing in it answers", "hold their GIL, and nothing in them answers"),
    How.ANSWERS_NOTHING: ("exists, but answers nothing", "exist, but answer nothing"),
    How.LOST_BY_PEERS: ("left no dump, and its peers lost their connection to it before anyone timed out",) * 2,
    How.REACTED_TO_NOTHING: ("reacted to nothing, and no peer lost its connection to it",) * 2,
}


def _deed(accused: Accused, many: bool = False) -> str:
    """What one rank did, or several that did the same."""
    if accused.text:
        return accused.text
    if accused.kind == "gpu":
        return f"launched {accused.operation}, but its kernel never started"
    if accused.kind == "absent":
        nothing = f"left no sign that {'they' if many else 'it'} joined"
        return f"never launched {accused.operation}" if accused.operation else nothing
    if accused.shown is Shown.NOT_SHOWN or accused.life is None:
        return "left no dump and no other sign of life"
    return _life(accused.life, many)


def _life(life: Life, many: bool) -> str:
    if life.how is How.RAISED and life.error is not None:
        frame = user_frame(life.error.frames[::-1])
        where = f" in {function_line(frame)}" if frame else ""
        return f"ended{where} with {life.error.type}: {first_line(life.error.message)}"
    if life.how is How.STATUS and life.process is not None:
        return ending(life.process).replace("was ", "were ", 1) if many else ending(life.process)
    text = _LIFE.get(life.how, ("is gone", "are gone"))[many]
    channel = life.process.wait_channel if life.how is How.SLEEPS and life.process is not None else None
    return f"{text} in {channel}" if channel else text


def _together(alike: Sequence[Accused]) -> str:
    same = len({_deed(a) for a in alike}) == 1
    return _deed(alike[0], many=len(alike) > 1) if same else SEVERAL_DID[alike[0].kind]


def _did(case: Case, alike: Sequence[Accused], wait: Wait) -> str:
    """What ranks did, and the line in which they stand; without a stack, that of the call it is about."""
    ranks, what, kind, life = [x.rank for x in alike], _together(alike), alike[0].kind, alike[0].life
    if kind == "dead" or len(ranks) > 1:
        return lead(case, ranks, what) if kind != "dead" else what
    where, last = case.stacks.where(ranks[0]), case.last_operation(ranks[0])
    if where is None and kind == "gpu":
        return f"{what}, called{line}" if (line := called_by(case, wait, ranks[0])) else what
    if where is None:
        return f"{what} after its call{line}" if last is not None and (line := called(case, last)) else what
    in_cuda = life is not None and life.how is How.IN_CUDA
    return f"{what}, in {function_line(where.frame)}" if in_cuda else lead(case, ranks, what)


def _who_did(case: Case, alike: Sequence[Accused], names: str, wait: Wait) -> str:
    did = _did(case, alike, wait)
    return f"{names}'s {did.removeprefix('its ')}" if did.startswith("its ") else f"{names} {did}"


def blocks(case: Case, a: Accusation) -> Words:
    wait = a.its_wait
    alike = [part for kind in SEVERAL_DID if (part := [x for x in a.accused if x.kind == kind])]
    headline = "; ".join(_who_did(case, part, ranks_text(x.rank for x in part), wait) for part in alike)
    said = "; ".join(_who_did(case, part, case.names.ranks([x.rank for x in part]), wait) for part in alike)
    blocked = {r for rank in a.ranks for w in case.waits.waits_on(rank) for r in w.waiters} - set(a.ranks)
    here = blocked.intersection(wait.waiters) or blocked
    awaited = [rank for rank in a.ranks if rank in wait.blockers]
    awaited_text = "it" if len(a.ranks) == 1 else ranks_text(awaited) if awaited else "them"
    behind = f", {len(blocked - here)} more in other operations" if blocked - here else ""
    return Words(
        headline,
        f"{sentence(said)}; {plural(len(here), 'rank')} {verb(here, 'waits', 'wait')} for {awaited_text} in "
        f"{case.names.wait_in_group(wait)}{behind}.",
        {
            x.rank: "; ".join(filter(None, (_deed(x), stands_at(case, x.rank) if x.kind != "dead" else "")))
            for x in a.accused
        },
        [step for accused in a.accused[:_STEPS] for step in _steps(case, accused)],
    )


def _steps(case: Case, accused: Accused) -> list[str]:
    who, process = case.names.ranks([accused.rank]), case.job.processes.get(accused.rank)
    if accused.kind == "absent":
        return [_absent_step(case, accused, who)]
    if accused.kind == "dead":
        return [_dead_step(case, accused, who)]
    where = case.stacks.where(accused.rank)
    if where is not None and accused.life is not None and accused.life.how is How.HOLDS_GIL:
        return [f"code: rank {accused.rank} is at {line(where.frame)} ({where.frame.name}), where it keeps the GIL"]
    if accused.kind == "frozen":
        proc = f"/proc/{process.pid}" if process is not None and process.pid is not None else "/proc/PID"
        return [f"node: look at the process of {who}: cat {proc}/status {proc}/wchan {proc}/stack"]
    code = f"code: look at the kernels that rank {accused.rank} launched before {accused.operation}"
    if not accused.operation:
        code = f"code: run rank {accused.rank} with CUDA_LAUNCH_BLOCKING=1 to see which call fails"
    return [f"node: check the GPU of {who}: nvidia-smi -q, dmesg | grep -i xid; drain the node if it repeats", code]


def _absent_step(case: Case, accused: Accused, who: str) -> str:
    stack, last = case.stacks.main(accused.rank), case.last_operation(accused.rank)
    where = case.stacks.where(accused.rank)
    frame = where.frame if where is not None else next(iter(stack.frames), None) if stack is not None else None
    if frame is not None:
        child = f"'s worker process {where.stack.pid}" if where is not None and where.stack.child else ""
        return f"code: rank {accused.rank}{child} is at {line(frame)} ({frame.name}); see why it stays there"
    does = f"does{at(last.frames, 'after') if last else ''} instead of {accused.operation or 'its next call'}"
    why = f"code: see what {who} {does} (data loading, checkpoint, compilation, a branch)"
    return why if case.job.under_run else f"{why}; {UNDER_RUN} to get its stack next time"


def _dead_step(case: Case, accused: Accused, who: str) -> str:
    life = accused.life
    if life is None or accused.shown is Shown.NOT_SHOWN:
        look = f"find out how {who} ended: its log, its exit status, dmesg"
        return look if case.job.under_run else f"{look}; {UNDER_RUN} next time"
    if life.error is not None and life.error.frames:
        return f"code: {life.error.type} at {line(life.error.frames[-1])} on {who}"
    if life.clean:
        return f"code: see why {who} came to its end before the others: fewer batches, an early return, sys.exit()"
    if life.how is How.OUT_OF_MEMORY:
        return f"node: {who} ran out of host memory: dmesg | grep -i oom; lower its memory or its loaders' workers"
    return f"node: find out what ended {who}: dmesg | grep -i -E 'oom|xid|segfault', the scheduler's log"


def not_collected(case: Case, a: Accusation) -> Words:
    who = f"{ranks_text(a.its_wait.waiters)} {verb(a.its_wait.waiters, 'waits', 'wait')} in"
    collect = f"collect the dumps and logs of {a.detail}; `hangscope collect` brings nodes together"
    return Words(
        f"{who} {case.names.wait(a.its_wait)}; of {a.detail} there is no evidence",
        f"{sentence(who)} {case.names.wait_in_group(a.its_wait)}; one of {a.detail} holds it up, without any evidence.",
        steps=[collect] if case.job.dumps else [SWITCH_ON, collect],
    )


def ended(case: Case, a: Accusation) -> Words:
    raised = {x.rank: x.life.error for x in a.accused if x.life is not None and x.life.error is not None}
    steps = [f"code: {e.type} at {line(e.frames[-1])} on rank {rank}" for rank, e in raised.items() if e.frames]
    look = "find out what ended" if a.kind == Is.ENDED.value else "look at the processes of"
    steps = steps or [f"node: {look} {ranks_text(a.ranks)}: dmesg, /proc, the scheduler's log"]
    deeds = {x.rank: _deed(x) for x in a.accused}
    return did(case, a, _together(a.accused), ", and the job could not go on.", *steps, deeds=deeds)


def transfers(case: Case, a: Accusation) -> Words:
    rank = a.accused[0]
    look = {"gpu": "nvidia-smi -q, dmesg | grep -i xid", "frozen": "/proc/PID/status, dmesg"}.get(a.kind, "its stack")
    return did(case, a, rank.text, ": all transfers wait for it.", f"look at rank {rank.rank}: {look}")


def idle(case: Case, a: Accusation) -> Words:
    others, names = len(case.job.ranks) - len(a.ranks), ranks_text(a.ranks)
    last = case.last_operation(a.ranks[0])
    after = at(last.frames, "after") if last is not None else ""
    what = f"{verb(a.ranks, 'is', 'are')} inside nothing, while all others wait in something"
    deed = "has finished everything it launched, while all others wait in something"
    step = f"code: see what {names} {verb(a.ranks, 'does', 'do')}{after} (data loading, checkpoint, a branch)"
    if case.progress.of[a.ranks[0]].inside:
        what, step = "still looks for the store that all others have found", BY_CALL["rendezvous"]
    if a.kind == "gpu":
        what = deed = "launched an operation whose kernel never started, while all others started theirs"
        step = f"node: check the GPU of {names}: nvidia-smi -q, dmesg | grep -i xid"
    rest = f": {plural(others, 'rank')} {'waits' if others == 1 else 'wait'}, as in {case.names.wait(a.its_wait)}."
    return did(case, a, what, rest, step, deeds=deed)


def no_timeout(case: Case, a: Accusation) -> Words:
    its = verb(a.ranks, "its", "their")
    rest = f"; {verb(a.ranks, 'it', 'they')} answered their signal, with nothing of {its} own to wait for."
    deed = "was alive and waited in nothing, while all others timed out"
    return did(case, a, "reported no timeout, all others did", rest, SWITCH_ON, COLLECT, deeds=deed)
