"""absent, dead, frozen, gpu: the ranks that others wait for, that wait for no one, and why they are where they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hangscope.diagnosis.accusation import HIGH, LOW, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.advice import UNDER_RUN, ended_step, out_of_memory_step, raised_step
from hangscope.diagnosis.causes.shared.blocker_words import SEVERAL_DID, what_it_did, what_they_did
from hangscope.diagnosis.causes.shared.blockers import (
    Blocker,
    Shown,
    find_blockers,
    not_started,
    waits_for_own_kernel,
)
from hangscope.diagnosis.causes.shared.sentences import called_in, called_in_by, on_one_mount, place_of, with_place
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.evidence.code_lines import at, line, shown
from hangscope.diagnosis.evidence.liveness import How
from hangscope.diagnosis.evidence.training_thread import in_collective, inside_child, thread_name
from hangscope.diagnosis.findings import entry, kernel_lines, printed, who_waits
from hangscope.diagnosis.hardware import xids
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Because, Wait
from hangscope.model import State
from hangscope.text import first_line, plural, sentence, verb

BLOCKS_OTHERS = Grounds(
    "blocks_others",
    Layer.MISSED_RANKS,
    HIGH,
    "its own evidence shows where it is, and its peers are waiting for it",
    needs_members=True,
    before={
        "call_order": "test_edges.py::test_who_waits_for_no_one_goes_before_a_call_in_a_cycle",
    },
)
BLOCKS_UNSEEN = Grounds(
    "blocks_unseen",
    Layer.SIGNS,
    LOW,
    "it is the only one without evidence: no sign of life while all others wait",
    before={
        "everybody_launched": "test_edges.py::test_a_rank_that_is_not_seen_goes_before_what_nobody_can_tell_apart",
        "no_timeout": "test_edges.py::test_a_rank_that_an_operation_waits_for_goes_before_one_without_a_timeout",
    },
)

_DEEPEST_FIRST = (CauseKind.DEAD, CauseKind.FROZEN, CauseKind.ABSENT, CauseKind.GPU)
_EACH = 3
_UNEXPLAINED_SHOWN = 2
_FRAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Blocking:
    """The accused, by rank; `unknown` are ranks of which nothing is known and that some wait for who wait for none of
    the accused; `unexplained` what hangs for another reason."""

    blockers: tuple[Blocker, ...]
    unknown: tuple[int, ...]
    unexplained: tuple[Wait, ...]


# ---- what it looks for -----------------------------------------------------------------------------------------------


def propose(case: Case) -> Iterator[Accusation[Blocking]]:
    """Ranks that others wait for, and that wait for no one. One of which nothing is known only if no other explains."""
    found = case.once(find_blockers)
    if found.causes:
        yield _accusation(case, found.causes, found.unknown)
    elif found.all and not found.not_collected:
        yield _accusation(case, found.all, ())


def _accusation(case: Case, found: Sequence[Blocker], unknown: tuple[int, ...]) -> Accusation[Blocking]:
    by_rank = sorted(found, key=lambda blocker: blocker.rank)
    wait = _first_missed(case, by_rank)
    blockers = tuple(_named_as_in(case, blocker, wait) for blocker in by_rank)
    facts = Blocking(blockers, unknown, tuple(_unexplained(case, {blocker.rank for blocker in blockers})))
    # An end that was seen brings the whole job down, whoever is caught waiting for it.
    end_seen = any(b.kind is CauseKind.DEAD and b.shown is Shown.SEEN for b in blockers)
    return Accusation(
        BLOCKS_UNSEEN if all(b.shown is Shown.NOT_SHOWN for b in blockers) else BLOCKS_OTHERS,
        min((b.kind for b in blockers), key=_DEEPEST_FIRST.index),
        facts,
        [Accused(b.rank, b.kind, b.operation) for b in blockers],
        wait,
        doubts=_doubts(case, facts, wait),
        explains=case.waits.all if end_seen else (),
    )


def _first_missed(case: Case, found: Sequence[Blocker]) -> Wait:
    """Of all that wait for the accused, the operation that the verdict is about."""
    first = min(found, key=lambda blocker: _DEEPEST_FIRST.index(blocker.kind))
    # A GPU is stuck in what it launched, whatever it never came to behind that.
    gpu = first.kind is CauseKind.GPU
    reasons = (Because.NOT_STARTED,) if gpu else (Because.NOT_LAUNCHED, Because.NOT_STARTED)
    waiting = [wait for blocker in found for wait in case.waits.waits_on(blocker.rank)]
    direct = [wait for wait in waiting if any(wait.blockers.get(b.rank) in reasons for b in found)]
    for_first = [wait for wait in direct or waiting if first.rank in wait.blockers]
    return case.first_missed(first.rank, for_first or waiting)


def _named_as_in(case: Case, blocker: Blocker, wait: Wait) -> Blocker:
    """A rank named with the operation that the whole verdict is about, where that one waits for it too."""
    because = wait.blockers.get(blocker.rank)
    if not blocker.operation:
        return blocker
    if blocker.kind is CauseKind.ABSENT and because is Because.NOT_LAUNCHED:
        return replace(blocker, operation=case.names.missing(wait, blocker.rank))
    if blocker.kind is CauseKind.GPU and because is Because.NOT_STARTED:
        return replace(blocker, operation=case.names.own_side(wait, blocker.rank))
    return blocker


def _unexplained(case: Case, accused: set[int]) -> list[Wait]:
    """Operations that all members are inside of and that wait for none of the accused hang for another reason."""
    explained = {*case.waits.reaches(accused), *accused}
    others = [w for w in case.waits.all if not w.point_to_point and explained.isdisjoint(w.waiters)]
    return [w for w in others if w.seq is not None and case.all_joined(w).says is Says.YES]


def _doubts(case: Case, facts: Blocking, wait: Wait) -> list[Doubt]:
    blockers = facts.blockers
    how_shown = {blocker.shown for blocker in blockers}
    lives = {blocker.life.how for blocker in blockers if blocker.life is not None}
    absent = all(blocker.kind is CauseKind.ABSENT for blocker in blockers)
    return doubts_where(
        {
            Doubt.NOTHING_SHOWN: Shown.NOT_SHOWN in how_shown,
            Doubt.SHOWN_BY_OTHERS: Shown.BY_OTHERS in how_shown,
            Doubt.MEMBERS_NOT_RECORDED: members_not_recorded(case.groups[wait.group]),
            Doubt.NO_COMMON_START: not wait.common_start,
            Doubt.BY_ARGUMENTS: any(unit.arguments is not None for unit in wait.inside),
            Doubt.INIT_NOT_RECORDED: absent and _may_make_a_communicator(case, blockers, wait),
            Doubt.AGE_NOT_KNOWN: absent and not case.hang.age_known,
            Doubt.SECOND_CAUSE: facts.unknown,
            Doubt.UNEXPLAINED: facts.unexplained,
            Doubt.GIL_HELD: How.GIL_HELD in lives,
            Doubt.KERNEL_SEEN_ONCE: any(waits_for_own_kernel(case, blocker.rank) for blocker in blockers),
            Doubt.NOT_ENDED_BY_SIGTERM: How.OUTLIVED_SIGTERM in lives,
        }
    )


def _may_make_a_communicator(case: Case, absent: Sequence[Blocker], wait: Wait) -> bool:
    """A first send or receive makes a communicator, and neither is recorded before that is done."""
    pair = bool(case.alignment.point_to_point.any()) and Because.NOT_KNOWN in wait.blockers.values()
    return (len(absent) > 1 or pair) and not all(case.stacks.main(blocker.rank) for blocker in absent)


# ---- its words -------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[Blocking]) -> Words:
    wait = accusation.its_wait
    blockers = accusation.facts.blockers
    did = _what_each_kind_did(case, blockers, wait)
    headline = "; ".join(_with_name(ranks_text(ranks), text) for ranks, text in did)
    at_length = "; ".join(_with_name(case.names.ranks(ranks), text) for ranks, text in did)
    return Words(
        headline=headline,
        summary=f"{sentence(at_length)}; {_who_waits_for_them(case, accusation)}.",
        why=_findings(case, accusation),
        each={blocker.rank: _did_and_is(case, blocker) for blocker in blockers},
        steps=[step for blocker in blockers[:_EACH] for step in _steps(case, blocker)],
    )


def _what_each_kind_did(case: Case, blockers: Sequence[Blocker], wait: Wait) -> list[tuple[list[int], str]]:
    """Ranks of one kind, and what they did.

    Of ranks that are blocked on one mount some sleep uninterruptibly and some do not: that is no difference.
    """
    alike = [part for kind in SEVERAL_DID if (part := [b for b in blockers if b.kind is kind])]
    everyone = [blocker.rank for blocker in blockers]
    shared = on_one_mount(case, everyone) if len(alike) > 1 else ""
    if shared:
        return [(everyone, f"{shared}, and hold up {case.names.wait(wait)}")]
    return [([blocker.rank for blocker in part], _did_and_where(case, part, wait)) for part in alike]


def _with_name(name: str, did: str) -> str:
    """``rank 3 never launched …``, ``rank 3's GPU does not …``."""
    return f"{name}'s {did.removeprefix('its ')}" if did.startswith("its ") else f"{name} {did}"


def _did_and_is(case: Case, blocker: Blocker) -> str:
    place = place_of(case, blocker.rank) if blocker.kind is not CauseKind.DEAD else ""
    did = what_it_did(case, blocker)
    return f"{did}; {place}" if place else did


def _did_and_where(case: Case, alike: Sequence[Blocker], wait: Wait) -> str:
    """What ranks did, and the line in which they are; without a stack, that of the call it is about."""
    ranks = [blocker.rank for blocker in alike]
    did = what_they_did(case, alike)
    if alike[0].kind is CauseKind.DEAD:
        return did
    if len(ranks) > 1:
        return with_place(case, ranks, did)
    where = case.stacks.where(ranks[0])
    if where is None and case.storage.of(ranks[0]) is None:
        return did + _behind_which_call(case, alike[0], wait)
    life = alike[0].life
    in_cuda = life is not None and life.how is How.IN_CUDA
    return f"{did}, in {where.text}" if in_cuda and where is not None else with_place(case, ranks, did)


def _behind_which_call(case: Case, blocker: Blocker, wait: Wait) -> str:
    if blocker.kind is CauseKind.GPU:
        line_of_call = called_in_by(case, wait, blocker.rank)
        return f", called{line_of_call}" if line_of_call else ""
    last = case.last_operation(blocker.rank)
    line_of_last = called_in(case, last) if last is not None else ""
    return f" after its call{line_of_last}" if line_of_last else ""


def _who_waits_for_them(case: Case, accusation: Accusation[Blocking]) -> str:
    """``7 ranks wait for it in all_reduce #16 of dp, 8 more in other operations``."""
    wait = accusation.its_wait
    ranks = accusation.ranks
    blocked = {r for rank in ranks for w in case.waits.waits_on(rank) for r in w.waiters}.difference(ranks)
    here = blocked.intersection(wait.waiters) or blocked
    awaited = [rank for rank in ranks if rank in wait.blockers]
    them = ranks_text(awaited) if awaited else "them"
    behind = f", {len(blocked - here)} more in other operations" if blocked - here else ""
    waits = f"{plural(len(here), 'rank')} {verb(here, 'waits', 'wait')} for {'it' if len(ranks) == 1 else them}"
    return f"{waits} in {case.names.wait_in_group(wait)}{behind}"


# ---- what to do next -------------------------------------------------------------------------------------------------


def _steps(case: Case, blocker: Blocker) -> list[str]:
    who = case.names.ranks([blocker.rank])
    if blocker.kind is CauseKind.ABSENT:
        return [_absent_step(case, blocker, who)]
    if blocker.kind is CauseKind.DEAD:
        return [_dead_step(case, blocker, who)]
    where = case.stacks.where(blocker.rank)
    if where is not None and blocker.life is not None and blocker.life.how is How.HOLDS_GIL:
        return [f"code: rank {blocker.rank} is at {line(where.frame)} ({where.frame.name}), where it holds the GIL"]
    if blocker.kind is CauseKind.FROZEN:
        process = case.job.processes.get(blocker.rank)
        proc = f"/proc/{process.pid}" if process is not None and process.pid is not None else "/proc/PID"
        return [f"node: inspect the process of {who}: cat {proc}/status {proc}/wchan {proc}/stack"]
    code = f"code: look at the kernels that rank {blocker.rank} launched before {blocker.operation}"
    if not blocker.operation:
        code = f"code: run rank {blocker.rank} with CUDA_LAUNCH_BLOCKING=1 to see which call fails"
    return [
        f"node: check the GPU of {who}: nvidia-smi -q, dmesg | grep -i xid; drain the node if it happens again",
        code,
    ]


def _absent_step(case: Case, blocker: Blocker, who: str) -> str:
    where = case.stacks.where(blocker.rank)
    if where is not None:
        child = f"'s worker process {where.stack.pid}" if where.stack.child else ""
        at_line = f"{line(where.frame)} ({where.frame.name})"
        return f"code: rank {blocker.rank}{child} is at {at_line}; find out why it is stuck there"
    stack = case.stacks.main(blocker.rank)
    frame = next(iter(stack.frames), None) if stack is not None else None
    if frame is not None:
        return f"code: rank {blocker.rank} is at {line(frame)} ({frame.name}); find out why it is stuck there"
    last = case.last_operation(blocker.rank)
    after = at(last.frames, "after") if last else ""
    does = f"does{after} instead of {blocker.operation or 'its next call'}"
    why = f"code: find out what {who} {does} (data loading, checkpoint, compilation, a branch)"
    return why if case.job.under_run else f"{why}; {UNDER_RUN} to get its stack next time"


def _dead_step(case: Case, blocker: Blocker, who: str) -> str:
    life = blocker.life
    if life is None or blocker.shown is Shown.NOT_SHOWN:
        look = f"find out how {who} ended: its log, its exit status, dmesg"
        return look if case.job.under_run else f"{look}; {UNDER_RUN} next time"
    if life.error is not None and life.error.frames:
        return raised_step(who, life.error)
    if life.how is How.OUT_OF_MEMORY:
        return out_of_memory_step(who)
    status = life.process.exit_status if life.process is not None else None
    return ended_step(who, 0 if life.clean or blocker.left_cleanly else status)


# ---- the findings that carry it --------------------------------------------------------------------------------------


def _findings(case: Case, accusation: Accusation[Blocking]) -> list[Finding]:
    facts = accusation.facts
    wait = accusation.its_wait
    findings = [who_waits(case, wait, accusation.ranks), *_other_waits(case, accusation)]
    for blocker in facts.blockers:
        findings += _findings_of(case, blocker, wait)
    if accusation.kind is CauseKind.ABSENT and len(facts.blockers) == 1:
        findings += _where_it_should_be(case, facts.blockers[0].rank, wait)
    findings += [_unexplained_finding(case, accusation, w) for w in facts.unexplained[:_UNEXPLAINED_SHOWN]]
    if facts.unknown:
        findings.append(Finding(f"other ranks wait for {ranks_text(facts.unknown)}, which left no evidence"))
    return findings


def _other_waits(case: Case, accusation: Accusation[Blocking]) -> Iterator[Finding]:
    """Of several accused, who waits for one that the operation of the verdict does not wait for."""
    if len(accusation.accused) == 1:
        return
    for accused in accusation.accused[:_EACH]:
        waits = case.waits.waits_on(accused.rank)
        if waits and accused.rank not in accusation.its_wait.blockers:
            yield who_waits(case, case.first_missed(accused.rank, waits), accusation.ranks)


def _unexplained_finding(case: Case, accusation: Accusation[Blocking], wait: Wait) -> Finding:
    ranks = accusation.ranks
    text = f"{ranks_text(wait.waiters)} are all inside {case.names.wait_in_group(wait)}, which {ranks_text(ranks)} "
    text += f"{verb(ranks, 'does', 'do')} not explain: a GPU or the network"
    return Finding(text, case.source(wait.waiters[0]))


def _findings_of(case: Case, blocker: Blocker, wait: Wait) -> list[Finding]:
    rank = blocker.rank
    life = blocker.life.findings if blocker.life is not None else ()
    if blocker.kind is CauseKind.GPU:
        return _gpu_findings(case, blocker)
    if blocker.kind is not CauseKind.ABSENT:
        return list(life)
    if blocker.shown is Shown.NOT_SHOWN:
        return [*_stack_findings(case, rank), *life]
    error = case.liveness.error(rank)
    # A stall was captured before anybody pressed Ctrl-C: that it raised there is no news of the hang.
    ordered = case.job.reason == "stall" and error is not None and error.type in ("KeyboardInterrupt", "SystemExit")
    raised = [printed(error)] if error is not None and not ordered else []
    return [*_last_operation(case, rank, wait), *_stack_findings(case, rank), *raised, *life]


def _gpu_findings(case: Case, blocker: Blocker) -> list[Finding]:
    rank = blocker.rank
    life = blocker.life.findings if blocker.life is not None else ()
    report = case.cuda_error(rank)
    if report is not None:
        return [Finding(f"rank {rank}: {first_line(report.error or 'a CUDA error')}", (report.source,))]
    by_kernel = kernel_lines(xids.about(case.job, rank))
    return [_never_started(case, rank), *by_kernel, *life] if blocker.operation else [*life, *by_kernel]


def _never_started(case: Case, rank: int) -> Finding:
    wait = not_started(case, rank)
    unit = next(u for u in (*wait.inside, *case.progress.of[rank].inside) if u.rank == rank)
    started = ranks_text(wait.finished | {u.rank for u in wait.inside if u.state is State.STARTED})
    launched = f"rank {rank} launched {case.names.own_side(wait, rank)}"
    operation = case.progress.operation(unit)
    return Finding(
        f"{launched}, but its kernel never started; it started on {started}",
        case.source(rank, operation),
        shown(operation.frames) if operation else (),
    )


def _last_operation(case: Case, rank: int, wait: Wait) -> list[Finding]:
    last = case.last_operation(rank)
    if last is not None:
        where = case.names.group(last.group.index)
        text = f"rank {rank}'s last operation is {case.names.call(last)} in {where}, {last.state.name.lower()}"
        return [entry(case, text, last, frames=True)]
    mine = case.progress.of[rank]
    if mine.source == "counters" and wait.group in mine.launched:
        report = next((r for r in case.job.facts.watchdog if r.rank == rank and r.last_enqueued is not None), None)
        says = "log says" if report is not None else "counters say"
        last_in_group = f"the last operation it launched in {case.names.group(wait.group)}"
        text = f"rank {rank}'s {says} that {last_in_group} is #{mine.launched[wait.group]}"
        return [Finding(text, (report.source,) if report else case.source(rank))]
    return []


def _stack_findings(case: Case, rank: int) -> list[Finding]:
    stack = case.stacks.main(rank)
    if stack is None:
        return []
    where = "is here" if in_collective(stack) else "is not in a collective"
    text = f"rank {rank}'s {thread_name(stack)} {where}"
    found = [Finding(text, (stack.source,), shown(stack.frames, _FRAMES_SHOWN))]
    awaited = case.stacks.where(rank)
    if awaited is not None and awaited.stack.child:
        child = awaited.stack
        text = f"rank {rank} is waiting for its child process, pid {child.pid}, which is here"
        found.append(Finding(text, (child.source,), shown(inside_child(child), _FRAMES_SHOWN)))
    return found


def _where_it_should_be(case: Case, rank: int, wait: Wait) -> list[Finding]:
    """The line from which the others made the call."""
    units = [unit for unit in wait.inside if unit.row is not None and unit.rank != rank]
    call = case.progress.operation(units[0]) if units else None
    if call is None or not at(call.frames):
        return []
    who = "the others" if len({unit.rank for unit in units}) > 1 else f"rank {call.rank}"
    text = f"{who} called {case.names.wait(wait)}{at(call.frames)}; rank {rank} did not get there"
    return [entry(case, text, call)]


CAUSE = Cause(propose, words, (BLOCKS_OTHERS, BLOCKS_UNSEEN))
