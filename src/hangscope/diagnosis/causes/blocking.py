"""absent, dead, frozen, gpu: the ranks that others wait for, that wait for no one, and why they are where they are."""

from collections.abc import Iterator
from dataclasses import replace

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt, Shown, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.evidence.code_lines import at, shown
from hangscope.diagnosis.evidence.liveness import How, Is
from hangscope.diagnosis.evidence.training_thread import in_collective, inside_child, thread_name
from hangscope.diagnosis.findings import entry, kernel_lines, printed, who_waits
from hangscope.diagnosis.hardware import xids
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits.progress import Scope
from hangscope.diagnosis.waits.wait_graph import MADE_BY_ALL, Because, Wait
from hangscope.model import State
from hangscope.text import first_line, verb

_ORDER = ("dead", "frozen", "absent", "gpu")
_EACH = 3
_UNFINISHED = "its GPU does not finish a kernel"


def blocking(case: Case) -> Iterator[Accusation]:
    """Ranks that others wait for, and that wait for no one."""
    found = [accused for rank in case.waits.blocking() if (accused := _judge(case, rank)) is not None]
    # Beside a failure that was seen, an operation in flight accuses nobody who lives.
    if any(life.state is Is.ENDED and not life.clean for life in map(case.liveness.of, case.liveness.lost)):
        found = [
            a
            for a in found
            if a.kind in ("dead", "frozen") or not all(w.in_flight for w in case.waits.waits_on(a.rank))
        ]
    silent = [a for a in found if a.shown is Shown.BY_OTHERS and not case.progress.of[a.rank].known]
    if len(silent) > 1:
        # Several ranks without a sign of life: one node that was not collected looks the same.
        found = [replace(a, shown=Shown.NOT_SHOWN) if a in silent else a for a in found]
    waits = [w for a in found for w in case.waits.waits_on(a.rank)]
    hidden = bool(waits) and all(members_not_recorded(case.groups[w.group]) for w in waits)
    if len(found) > 1 and hidden and not any(a.kind == "dead" for a in found):
        return  # different groups hide behind one number: most of these are not missing at all
    seen = _causes(case, [a for a in found if a.shown is not Shown.NOT_SHOWN])
    known = {a.rank for a in seen}
    # A rank of which nothing is known is not accused while a known cause explains the hang.
    others = _independent(case, [a.rank for a in found if a.shown is Shown.NOT_SHOWN], known)
    # Who is not in an excerpt was merely not pasted.
    excerpt = not (case.job.dumps or case.job.processes or any(log.to_end for log in case.job.facts.logs))
    if seen:
        yield _accusation(case, seen, others)
    elif found and (excerpt or (len(found) > 1 and len(found) * 4 > len(case.job.ranks))):
        yield _not_collected(case, [a.rank for a in found])
    elif found:
        yield _accusation(case, found, [])


def _causes(case: Case, seen: list[Accused]) -> list[Accused]:
    """Those whose being missing no other one of them explains."""
    own = {a.rank for a in seen if a.shown is Shown.SEEN}
    # That a rank exited with status 0 explains nothing that another one's own record explains.
    left = _independent(case, [a.rank for a in seen if a.rank not in own and _left_cleanly(a)], own)
    seen = [a for a in seen if a.rank in own or not _left_cleanly(a) or a.rank in left]
    # A rank that never came because the job was already falling apart is no second cause; one that lives on is.
    dead, lost = ({a.rank for a in seen if a.kind in kinds} for kinds in (("dead",), ("dead", "frozen")))
    # Nor is a kernel that waits behind what such a rank holds up.
    gpu, others = ([a.rank for a in seen if (a.kind == "gpu") is of_gpu] for of_gpu in (True, False))
    causes = {*lost, *_independent(case, gpu, lost), *_independent(case, others, dead)}
    return [a for a in seen if a.rank in causes or not (lost if a.kind == "gpu" else dead)]


def _independent(case: Case, ranks: list[int], known: set[int]) -> list[int]:
    """Those ranks for which somebody waits who does not also wait for a known cause."""
    reach = case.waits.reaches(known) if ranks else {}
    beside = {id(w): set(w.waiters).difference(reach) for w in case.waits.all} if ranks else {}
    apart = {rank: [beside[id(w)] for w in case.waits.waits_on(rank)] for rank in ranks}
    return [rank for rank, found in apart.items() if any(len(f) > 1 or (f and rank not in f) for f in found)]


def _left_cleanly(accused: Accused) -> bool:
    process = accused.life.process if accused.life is not None else None
    return accused.kind == "dead" and process is not None and process.exit_status == 0


# ---- one rank --------------------------------------------------------------------------------------------------------


def _judge(case: Case, rank: int) -> Accused | None:
    life, mine, waits = case.liveness.of(rank), case.progress.of[rank], case.waits.waits_on(rank)
    reasons = {wait.blockers[rank] for wait in waits if rank in wait.blockers}
    if rank in case.liveness.finished_cleanly:
        return None  # most ranks ended so: one_call_more.py asks who did not
    if life.state in (Is.ENDED, Is.FROZEN) and (life.seen or not mine.known):
        status = life.process.exit_status if life.process is not None else None
        left = status == 0 and not mine.own_record  # that it left while others waited is not in a record of its own
        seen = Shown.SEEN if life.seen and not left else Shown.BY_OTHERS
        return Accused(rank, life.state.value, shown=seen, life=life)
    if case.cuda_error(rank) is not None:
        return Accused(rank, "gpu", life=life, text="hit a CUDA error")
    if Because.NOT_STARTED in reasons:
        title = case.names.own_side(_not_started(case, rank), rank)
        text = f"{_UNFINISHED} before {title}; its CPU waits in {life.call}" if life.call else ""
        return Accused(rank, "gpu", title, life=life, text=text)
    if any(unit.name not in MADE_BY_ALL for unit in mine.inside) and mine.scope is not Scope.EARLIER:
        return None  # it waits itself
    process = case.job.processes.get(rank)
    outside = process is not None and process.waits_in == ""  # seen twice, in no call that waits
    expected = life.state is Is.ALIVE and (outside or Because.NOT_LAUNCHED in reasons)
    if not expected and (not mine.known or reasons == {Because.NOT_KNOWN}):
        kind = "absent" if life.state is Is.ALIVE else "dead"
        return Accused(rank, kind, shown=Shown.NOT_SHOWN, life=life)
    missing = [w for w in waits if w.blockers.get(rank) is Because.NOT_LAUNCHED] or waits
    seen = Shown.SEEN if mine.own_record else Shown.BY_OTHERS
    if life.call:
        return Accused(rank, "gpu", shown=seen, life=life, text=f"{_UNFINISHED}; its CPU waits in {life.call}")
    return Accused(rank, "absent", case.names.missing(case.first_missed(rank, missing), rank), seen, life)


def _not_started(case: Case, rank: int) -> Wait:
    return next(w for w in case.waits.waits_on(rank) if w.blockers.get(rank) is Because.NOT_STARTED)


# ---- all of them -----------------------------------------------------------------------------------------------------


def _accusation(case: Case, found: list[Accused], others: list[int]) -> Accusation:
    """`others` are ranks of which nothing is known and that some wait for who wait for none of the accused."""
    found = sorted(found, key=lambda a: a.rank)
    wait = _spoken_of(case, found)
    found = [_as_in(case, a, wait) for a in found]
    ranks, unexplained = {a.rank for a in found}, _unexplained(case, {a.rank for a in found})
    kind = min((a.kind for a in found), key=_ORDER.index)
    findings = [who_waits(case, wait, ranks)]
    for accused in found[:_EACH]:
        mine = case.waits.waits_on(accused.rank)
        if len(found) > 1 and mine and accused.rank not in wait.blockers:
            findings.append(who_waits(case, case.first_missed(accused.rank, mine), ranks))
    findings += [finding for a in found for finding in _findings(case, a, wait)]
    if kind == "absent" and len(found) == 1:
        findings += _code_line(case, found[0].rank, wait)
    for w in unexplained[:2]:
        text = f"{ranks_text(w.waiters)} are all inside {case.names.wait_in_group(w)}, which {ranks_text(ranks)} "
        text += f"{verb(ranks, 'does', 'do')} not explain: a GPU or the network"
        findings.append(Finding(text, case.source(w.waiters[0])))
    if others:
        findings.append(Finding(f"other ranks wait for {ranks_text(others)}, of which nothing is known"))
    absent = all(a.kind == "absent" for a in found)
    # A first send or receive makes a communicator, and neither is recorded before that is done.
    pair = case.alignment.point_to_point.any() and Because.NOT_KNOWN in wait.blockers.values()
    hidden = absent and (len(found) > 1 or pair) and not all(case.stacks.main(a.rank) for a in found)
    doubts = {
        Doubt.NOTHING_SHOWN: any(a.shown is Shown.NOT_SHOWN for a in found),
        Doubt.SHOWN_BY_OTHERS: any(a.shown is Shown.BY_OTHERS for a in found),
        Doubt.MEMBERS_NOT_RECORDED: members_not_recorded(case.groups[wait.group]),
        Doubt.NO_COMMON_START: not wait.common_start,
        Doubt.INIT_NOT_RECORDED: hidden,
        Doubt.AGE_NOT_KNOWN: absent and not case.hang.age_known,
        Doubt.SECOND_CAUSE: others,
        Doubt.UNEXPLAINED: unexplained,
        Doubt.GIL_HELD: any(a.life is not None and a.life.how is How.GIL_HELD for a in found),
    }
    unseen = all(a.shown is Shown.NOT_SHOWN for a in found)
    basis = Basis.BLOCKS_UNSEEN if unseen else Basis.BLOCKS_OTHERS
    # An end that was seen brings the whole job down, whoever is caught waiting for it.
    over = any(a.kind == "dead" and a.shown is Shown.SEEN for a in found)
    explains = case.waits.all if over else ()
    return Accusation(basis, kind, found, wait, findings=findings, doubts=doubts_where(doubts), explains=explains)


def _spoken_of(case: Case, found: list[Accused]) -> Wait:
    """Of all that wait for the accused, the operation that the verdict speaks of."""
    first = min(found, key=lambda a: _ORDER.index(a.kind))
    # A GPU is stuck in what it launched, whatever it never came to behind that.
    reasons = (Because.NOT_STARTED,) if first.kind == "gpu" else (Because.NOT_LAUNCHED, Because.NOT_STARTED)
    waiting = [w for a in found for w in case.waits.waits_on(a.rank)]
    direct = [w for w in waiting if any(w.blockers.get(a.rank) in reasons for a in found)]
    return case.first_missed(first.rank, [w for w in direct or waiting if first.rank in w.blockers] or waiting)


def _as_in(case: Case, accused: Accused, wait: Wait) -> Accused:
    """A rank named with the operation that the whole verdict speaks of, where that one waits for it too."""
    because = wait.blockers.get(accused.rank)
    if accused.kind == "absent" and because is Because.NOT_LAUNCHED and accused.operation:
        return replace(accused, operation=case.names.missing(wait, accused.rank))
    if accused.kind == "gpu" and accused.operation and because is Because.NOT_STARTED:
        return replace(accused, operation=case.names.own_side(wait, accused.rank))
    return accused


def _unexplained(case: Case, accused: set[int]) -> list[Wait]:
    """Operations that all members are inside of and that wait for none of the accused hang for another reason."""
    explained = {*case.waits.reaches(accused), *accused}
    others = [w for w in case.waits.all if not w.point_to_point and not explained & set(w.waiters)]
    return [w for w in others if w.seq is not None and case.all_joined(w).says is Says.YES]


def _not_collected(case: Case, missing: list[int]) -> Accusation:
    """The evidence of so many ranks is missing that it was rather not collected: nobody can be named."""
    waiting = [w for rank in missing for w in case.waits.waits_on(rank)]
    wait, text = case.first_missed(missing[0], waiting), ranks_text(missing)
    found = [who_waits(case, wait)]
    return Accusation(Basis.NOT_COLLECTED, "unknown", wait=wait, findings=found, detail=text, explains=waiting)


# ---- findings --------------------------------------------------------------------------------------------------------


def _findings(case: Case, accused: Accused, wait: Wait) -> list[Finding]:
    rank, life = accused.rank, accused.life.findings if accused.life is not None else ()
    report, error = case.cuda_error(rank), case.liveness.error(rank)
    if accused.kind == "gpu" and report is not None:
        return [Finding(f"rank {rank}: {first_line(report.error or 'a CUDA error')}", (report.source,))]
    if accused.kind == "gpu" and accused.operation:
        return [*_gpu_findings(case, rank), *life]
    if accused.kind != "absent":
        return [*life, *kernel_lines(xids.about(case.job, rank) if accused.kind == "gpu" else [])]
    if accused.shown is Shown.NOT_SHOWN:
        return [*_stack_finding(case, rank), *life]
    raised = [printed(error)] if error is not None else []
    return [*_last_finding(case, rank, wait), *_stack_finding(case, rank), *raised, *life]


def _gpu_findings(case: Case, rank: int) -> list[Finding]:
    wait = _not_started(case, rank)
    unit = next(u for u in (*wait.inside, *case.progress.of[rank].inside) if u.rank == rank)
    started = ranks_text(wait.finished | {u.rank for u in wait.inside if u.state is State.STARTED})
    operation = case.progress.operation(unit)
    text = (
        f"rank {rank} launched {case.names.own_side(wait, rank)}, but its kernel never started; it started on {started}"
    )
    found = Finding(text, case.source(rank, operation), shown(operation.frames) if operation else ())
    return [found, *kernel_lines(xids.about(case.job, rank))]


def _last_finding(case: Case, rank: int, wait: Wait) -> list[Finding]:
    last, mine = case.last_operation(rank), case.progress.of[rank]
    if last is not None:
        where = case.names.group(last.group.index)
        text = f"rank {rank}'s last operation is {case.names.call(last)} in {where}, {last.state.name.lower()}"
        return [entry(case, text, last, frames=True)]
    if mine.source == "counters" and wait.group in mine.launched:
        report = next((r for r in case.job.facts.watchdog if r.rank == rank and r.last_enqueued is not None), None)
        said = "log says" if report is not None else "counters say"
        where, number = case.names.group(wait.group), mine.launched[wait.group]
        text = f"rank {rank}'s {said} that the last operation it launched in {where} is #{number}"
        return [Finding(text, (report.source,) if report else case.source(rank))]
    return []


def _stack_finding(case: Case, rank: int) -> list[Finding]:
    stack = case.stacks.main(rank)
    if stack is None:
        return []
    where = "stands here" if in_collective(stack) else "is outside any collective"
    found = [Finding(f"rank {rank}'s {thread_name(stack)} {where}", (stack.source,), shown(stack.frames, 4))]
    awaited = case.stacks.where(rank)
    if awaited is not None and (child := awaited.stack).child:
        text = f"rank {rank} waits for a process that it started, pid {child.pid}, which stands here"
        found.append(Finding(text, (child.source,), shown(inside_child(child), 4)))
    return found


def _code_line(case: Case, rank: int, wait: Wait) -> list[Finding]:
    """Where the rank should be: the line from which the others made the call."""
    units = [u for u in wait.inside if u.row is not None and u.rank != rank]
    call = case.progress.operation(units[0]) if units else None
    if call is None or not at(call.frames):
        return []
    who = "the others" if len({unit.rank for unit in units}) > 1 else f"rank {call.rank}"
    text = f"{who} called {case.names.wait(wait)}{at(call.frames)}; rank {rank} did not get there"
    return [entry(case, text, call)]
