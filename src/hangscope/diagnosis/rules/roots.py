"""absent, dead, frozen, gpu: the ranks that others wait for, that wait for no one, and why they are where they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hangscope.diagnosis.align import is_guessed
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.fate import Fate
from hangscope.diagnosis.rules.died import died
from hangscope.diagnosis.rules.network import is_whole, nobody_missing
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits import Because, Wait
from hangscope.diagnosis.words import first_line, plural, ranks_text, sentence
from hangscope.model import State

_ORDER = ("dead", "frozen", "absent", "gpu", "network", "unknown")
_MANY = {
    "dead": "ended",
    "frozen": "answer nothing",
    "absent": "never launched what their peers wait in",
    "gpu": "launched what their peers wait in, but their GPUs do not get there",
    "network": "are inside operations that their peers have finished",
    "unknown": "left no evidence of what they were doing",
}
"""What several ranks of one kind did, where no one sentence about one of them holds for all."""
_PLURALS = (
    ("was ", "were "),
    ("is ", "are "),
    ("never ", "never "),
    ("ended ", "ended "),
    ("exited with", "exited with"),
    ("left ", "left "),
)
_EACH = 3


@dataclass(frozen=True, slots=True)
class _Root:
    rank: int
    kind: str
    why: str
    sure: str
    """"seen": its own evidence shows it; "inferred": others' evidence does; "unknown": only that it is missing."""
    findings: tuple[Finding, ...] = ()


def roots(case: Case) -> Draft | None:
    """Ranks that others wait for, and that wait for no one."""
    found = [_judge(case, rank) for rank in case.waits.roots()]
    if not found:
        return None
    silent = [r for r in found if r.sure == "inferred" and not case.standings.of[r.rank].known]
    if len(silent) > 1:
        # Several ranks without a sign of life: one node that was not collected looks the same.
        found = [replace(r, sure="unknown") if r in silent else r for r in found]
    shown = [r for r in found if r.sure != "unknown"]
    unexplained: list[int] = []
    if shown:
        known = {r.rank for r in shown}
        unexplained = [r.rank for r in found if r not in shown and _independent(case, r.rank, known)]
        # A rank of which nothing is known is not accused while a known cause explains the hang.
        found = shown
    elif len(found) > 1 and len(found) * 4 > len(case.job.ranks):
        return _not_collected(case, [r.rank for r in found])
    waits = [w for r in found for w in case.waits.waits_on(r.rank)]
    if (
        len(found) > 1
        and all(is_guessed(case.groups[w.group]) for w in waits)
        and not any(r.kind == "dead" for r in found)
    ):
        return None  # different groups hide behind one number: most of these are not missing at all
    inside = [r for r in found if r.kind == "network"]
    if inside and len(inside) == len(found) and (seen := died(case)) is not None:
        return seen  # a rank that is gone or frozen explains more than a network that fails around it
    if inside and len(inside) == len(found):
        stuck = [w for r in inside for w in case.waits.of[r.rank] if not w.blockers and is_whole(case, w)]
        return nobody_missing(case, stuck) if stuck else None
    found = [r for r in found if r.kind != "network"] or found
    dead = [r for r in found if r.kind == "dead" and r.sure != "unknown"]
    if dead:
        # A rank that never came because the job was already falling apart is no second cause; one that lives on is.
        found = [r for r in found if r.kind == "dead" or _independent(case, r.rank, {d.rank for d in dead})]
    draft = _draft(case, sorted(found, key=lambda r: r.rank))
    _tell_of_others(case, draft)
    if unexplained:
        # Its peers wait for it and for none of the accused: there may be a second cause, or its recording is missing.
        draft.why.append(Finding(f"other ranks wait for {ranks_text(unexplained)}, of which nothing is known"))
        if draft.confidence == "high":
            draft.confidence = "medium"
            draft.rule += f"; {ranks_text(unexplained)}, of which nothing is known, may be a second cause"
    return draft


def _tell_of_others(case: Case, draft: Draft) -> None:
    """Operations that all members are inside of and that wait for none of the accused hang for another reason."""
    explained = {*case.waits.reaches(set(draft.culprits)), *draft.culprits}
    others = [
        w
        for w in case.waits.all
        if not w.point_to_point and not w.blockers and w.seq is not None
        if is_whole(case, w) and not explained & set(w.waiters)
    ]
    for wait in others[:2]:
        draft.why.append(
            Finding(
                f"{ranks_text(wait.waiters)} are all inside {case.title(wait)} of {case.group_label(wait.group)}, "
                f"which {ranks_text(draft.culprits)} {'does' if len(draft.culprits) == 1 else 'do'} not explain: a GPU "
                "or the network",
                case.source(wait.waiters[0]),
            )
        )
    if others and draft.confidence == "high":
        draft.confidence = "medium"
        draft.rule += "; other ranks hang for a reason of their own"


def _not_collected(case: Case, missing: list[int]) -> Draft:
    """The evidence of so many ranks is missing that it was rather not collected: nobody can be named."""
    waiting = [w for rank in missing for w in case.waits.waits_on(rank)]
    wait = _first_missed(case, missing[0], waiting)
    title = case.title(wait)
    return Draft(
        kind="unknown",
        headline=f"{ranks_text(wait.waiters)} {'waits' if len(wait.waiters) == 1 else 'wait'} in {title}; "
        f"of {ranks_text(missing)} there is no evidence",
        summary=f"{sentence(ranks_text(wait.waiters))} {'waits' if len(wait.waiters) == 1 else 'wait'} "
        f"in {title} of "
        f"{case.group_label(wait.group)}; one of {ranks_text(missing)} holds it up, and there is no evidence of them.",
        confidence="low",
        rule="unknown: the evidence of too many ranks is missing to name one of them",
        wait=wait,
        why=[_who_waits(case, wait, {})],
        next_steps=[f"collect the dumps and logs of {ranks_text(missing)}; `hangscope collect` brings nodes together"],
    )


def _independent(case: Case, rank: int, dead: set[int]) -> bool:
    """Whether somebody waits for this rank who does not also wait for a dead one."""
    reach = case.waits.reaches(dead)
    return any(set(w.waiters) - {rank} - set(reach) for w in case.waits.waits_on(rank))


def _judge(case: Case, rank: int) -> _Root:
    fate = case.fates.of(rank)
    standing = case.standings.of[rank]
    reasons = {because for wait in case.waits.waits_on(rank) for r, because in wait.blockers.items() if r == rank}
    if fate.kind == "dead" and (fate.strength == "strong" or not standing.known):
        return _Root(rank, "dead", fate.why, "seen" if fate.strength == "strong" else "inferred", fate.findings)
    if fate.kind == "frozen" and (fate.strength == "strong" or not standing.known):
        return _Root(rank, "frozen", fate.why, "seen" if fate.strength == "strong" else "inferred", fate.findings)
    if Because.NOT_STARTED in reasons:
        return _gpu(case, rank)
    if fate.kind == "alive" and not standing.known and Because.NOT_LAUNCHED in reasons:
        return _absent(case, rank)
    if not standing.known or reasons == {Because.UNKNOWN}:
        return _unknown(case, rank, fate)
    if standing.inside:
        return _Root(rank, "network", "is inside an operation that its peers have finished", "seen")
    return _absent(case, rank)


def _unknown(case: Case, rank: int, fate: Fate) -> _Root:
    """Nothing shows what this rank did. PyTorch 2.3-2.14 asks every live rank for a dump: silence leans to "dead"."""
    if fate.kind == "alive":
        findings = (*_stack_finding(case, rank), *fate.findings)
        return _Root(rank, "absent", "lived, and nothing shows that it joined", "unknown", findings)
    return _Root(rank, "dead", "left no dump and no other sign of life", "unknown", fate.findings)


def _gpu(case: Case, rank: int) -> _Root:
    wait = next(w for w in case.waits.waits_on(rank) if w.blockers.get(rank) is Because.NOT_STARTED)
    unit = next(u for u in (*wait.inside, *case.standings.of[rank].inside) if u.rank == rank)
    started = wait.finished | {u.rank for u in wait.inside if u.state is State.STARTED}
    operation = case.standings.operation(unit)
    findings = [
        Finding(
            f"rank {rank} launched {case.own_title(wait, rank)}, but its GPU has not started it; it started on "
            f"{ranks_text(started)}",
            case.source(rank, operation),
            case.user_frames(operation.frames) if operation else (),
        ),
        *(Finding(f"kernel: {m.text[:160]}", (m.source,)) for m in case.gpu_messages(rank)[:2]),
    ]
    why = f"launched {case.own_title(wait, rank)}, but its GPU does not get there"
    return _Root(rank, "gpu", why, "seen", tuple(findings))


def _absent(case: Case, rank: int) -> _Root:
    waits = [w for w in case.waits.waits_on(rank) if w.blockers.get(rank) is Because.NOT_LAUNCHED]
    wait = _first_missed(case, rank, waits or case.waits.waits_on(rank))
    findings: list[Finding] = []
    standing = case.standings.of[rank]
    last = case.last_operation(rank)
    if last is not None:
        done = "completed" if last.state is State.COMPLETED else last.state.name.lower()
        findings.append(
            Finding(
                f"rank {rank}'s last operation is {case.call_title(last)} in "
                f"{case.group_label(last.group.index)}, {done}",
                case.source(rank, last),
                case.user_frames(last.frames),
            )
        )
    elif standing.source == "log" and wait.group in standing.launched:
        report = next((r for r in case.job.facts.watchdog if r.rank == rank and r.last_enqueued is not None), None)
        text = (
            f"rank {rank}'s log says that the last operation it launched in {case.group_label(wait.group)} "
            f"is #{standing.launched[wait.group]}"
        )
        findings.append(Finding(text, (report.source,) if report else ()))
    findings += _stack_finding(case, rank)
    error = case.fates.error(rank)
    if error is not None:
        findings.append(Finding(f"rank {rank} printed {error.type}: {first_line(error.message)}", (error.source,)))
    fate = case.fates.of(rank)
    findings += fate.findings
    sure = "seen" if standing.source in ("dump", "poll") else "inferred"
    return _Root(rank, "absent", f"never launched {case.missing_title(wait, rank)}", sure, tuple(findings))


def _stack_finding(case: Case, rank: int) -> list[Finding]:
    stack = case.main_stack(rank)
    if stack is None:
        return []
    thread = "main" if stack.main else "backward"
    text = f"rank {rank}'s {thread} thread is outside any collective"
    return [Finding(text, (stack.source,), case.user_frames(stack.frames, 4))]


def _first_missed(case: Case, rank: int, waits: list[Wait]) -> Wait:
    """Of the operations that wait for a rank, the one it should have launched first.

    Its own custom says which: what it used to do after its last call. Otherwise the order in which another rank ran
    the same two; otherwise the one that a peer launched first.
    """
    # Who waits in one and is missing in the other comes to that one later, and so would this rank.
    waits = [w for w in waits if not any(o is not w and set(o.waiters) <= set(w.blockers) for o in waits)] or waits
    usual = case.usual_next_group(rank)
    fitting = [w for w in waits if w.group == usual] or waits
    order = sorted(fitting, key=lambda w: (case.waits.launched_at_ns(w) or 1 << 62, -len(w.inside), w.seq or 0))
    first = order[0]
    for other in order[1:8]:
        if case.runs_before(other, first):
            first = other
    return first


def _draft(case: Case, found: list[_Root]) -> Draft:
    kind = min((r.kind for r in found), key=_ORDER.index)
    waiting = [w for r in found for w in case.waits.waits_on(r.rank)]
    # A GPU is stuck in what it launched, whatever it never came to behind that.
    reasons = (Because.NOT_STARTED,) if kind == "gpu" else (Because.NOT_LAUNCHED, Because.NOT_STARTED)
    direct = [w for w in waiting if any(w.blockers.get(r.rank) in reasons for r in found)]
    first = min(found, key=lambda r: _ORDER.index(r.kind)).rank
    wait = _first_missed(case, first, [w for w in direct or waiting if first in w.blockers] or waiting)
    title = case.title(wait)
    found = [_as_in(case, r, wait) for r in found]
    culprits = {r.rank: r.why for r in found}
    confidence, rule = _confidence(case, found, wait)
    alike = [[r for r in found if r.kind == k] for k in _ORDER if any(r.kind == k for r in found)]
    headline = "; ".join(f"{ranks_text(r.rank for r in part)} {_what(part)}" for part in alike)
    told = "; ".join(f"{case.whom([r.rank for r in part])} {_what(part)}" for part in alike)
    blocked = {rank for w in waiting for rank in w.waiters} - set(culprits)
    here = blocked.intersection(wait.waiters) or blocked
    behind = len(blocked - here)
    awaited = [r.rank for r in found if r.rank in wait.blockers]
    summary = (
        f"{sentence(told)}; {plural(len(here), 'rank')} {'waits' if len(here) == 1 else 'wait'} for "
        f"{'it' if len(found) == 1 else ranks_text(awaited) if awaited else 'them'} in {title} of "
        f"{case.group_label(wait.group)}{f', {behind} more in other operations' if behind else ''}."
    )
    why = [_who_waits(case, wait, culprits)]
    for root in found[:_EACH]:
        mine = case.waits.waits_on(root.rank)
        if len(found) > 1 and mine and root.rank not in wait.blockers:
            why.append(_who_waits(case, _first_missed(case, root.rank, mine), culprits))
    why += [finding for r in found for finding in r.findings]
    if kind == "absent" and len(found) == 1 and (frame := _code_line(case, found[0].rank, wait)) is not None:
        why.append(frame)
    return Draft(
        kind=kind,
        headline=headline,
        summary=summary,
        confidence=confidence,
        rule=rule,
        culprits=culprits,
        wait=wait,
        why=why,
        next_steps=_steps(case, found, wait),
    )


def _as_in(case: Case, root: _Root, wait: Wait) -> _Root:
    """A root told by the operation that the whole verdict speaks of, where that one waits for it too."""
    because = wait.blockers.get(root.rank)
    if root.kind == "absent" and because is Because.NOT_LAUNCHED:
        return replace(root, why=f"never launched {case.missing_title(wait, root.rank)}")
    if root.kind == "gpu" and because is Because.NOT_STARTED:
        return replace(root, why=f"launched {case.own_title(wait, root.rank)}, but its GPU does not get there")
    return root


def _what(alike: list[_Root]) -> str:
    """What one rank did, or what several of one kind did."""
    why = alike[0].why
    if len(alike) == 1:
        return why
    if any(r.why != why for r in alike):
        return _MANY[alike[0].kind]
    for one, several in _PLURALS:
        if why.startswith(one):
            return several + why.removeprefix(one)
    return _MANY[alike[0].kind]


def _who_waits(case: Case, wait: Wait, culprits: dict[int, str]) -> Finding:
    waiters = [r for r in wait.waiters if r not in culprits]
    unit = next((u for u in wait.inside if u.rank in waiters), wait.inside[0])
    operation = case.standings.operation(unit)
    source = case.source(unit.rank, operation) or ((unit.report.source,) if unit.report else ())
    joining = case.standings.joining.get(wait.group)
    if joining is not None:
        return Finding(
            f"{ranks_text(waiters)} began to make {case.group_label(wait.group)}, and nobody completed it",
            (joining.source,) if joining.source else (),
        )
    return Finding(
        f"{ranks_text(waiters)} {'is' if len(waiters) == 1 else 'are'} inside {case.title(wait)} of "
        f"{case.group_label(wait.group)}",
        source,
        case.user_frames(operation.frames) if operation else (),
    )


def _code_line(case: Case, rank: int, wait: Wait) -> Finding | None:
    """Where the rank should be: the line from which the others made the call."""
    rows = [u.row for u in wait.inside if u.row is not None and u.rank != rank]
    if not rows:
        return None
    operation = case.job.ops[rows[0]]
    frame = case.user_frame(operation.frames)
    if frame is None:
        return None
    callers = {case.job.ops[row].rank for row in rows}
    who = "the others" if len(callers) > 1 else f"rank {operation.rank}"
    return Finding(
        f"{who} called {case.title(wait)} at {frame.filename}:{frame.line}; rank {rank} did not get there",
        case.source(operation.rank, operation),
    )


def _confidence(case: Case, found: list[_Root], wait: Wait) -> tuple[str, str]:
    kinds = {r.kind for r in found}
    if all(r.sure == "unknown" for r in found):
        return "low", "only its evidence is missing: a rank without any sign of life, while all others wait"
    if any(r.sure == "unknown" for r in found) or any(r.sure == "inferred" for r in found):
        return "medium", f"{'/'.join(sorted(kinds))}: inferred from what the other ranks and the logs show"
    if is_guessed(case.groups[wait.group]):
        return "medium", "the format (torch 2.2) does not say who belongs to the group"
    if not wait.certain:
        return "medium", "point-to-point calls could not be counted from a common start"
    if kinds == {"absent"} and len(found) > 1 and not all(case.main_stack(r.rank) for r in found):
        return (
            "medium",
            "absent: several ranks; that some of them make a communicator with another would not be recorded",
        )
    if kinds == {"absent"}:
        if case.stuck.timeless:
            return "medium", "absent: its own dump ends before what its peers are inside of; nothing says for how long"
        return "high", "absent: its own recording ends before what its peers are inside of"
    if kinds == {"gpu"}:
        return "high", "gpu: launched but not started, while its peers started"
    return "high", f"{'/'.join(sorted(kinds))}: its end or its freeze was seen, and its peers wait for it"


def _steps(case: Case, found: list[_Root], wait: Wait) -> list[str]:
    steps: list[str] = []
    for root in found[:3]:
        node = case.job.nodes.get(root.rank)
        at = f" on {node}" if node else ""
        if root.kind == "absent":
            stack = case.main_stack(root.rank)
            frame = case.user_frame(stack.frames) or next(iter(stack.frames), None) if stack else None
            if frame is not None:
                steps.append(
                    f"code: rank {root.rank} is at {frame.filename}:{frame.line} ({frame.name}); see why it stays there"
                )
            else:
                last = case.last_operation(root.rank)
                line = case.user_frame(last.frames) if last else None
                after = f" after {line.filename}:{line.line}" if line else ""
                steps.append(
                    f"code: see what rank {root.rank}{at} does{after} instead of {case.own_title(wait, root.rank)} "
                    "(data loading, checkpoint, compilation, a branch); run under `hangscope run` to "
                    "get its stack next time"
                )
        elif root.kind == "dead":
            steps.append(_dead_step(case, root, at))
        elif root.kind == "frozen":
            pid = case.job.processes[root.rank].pid if root.rank in case.job.processes else None
            process = f"/proc/{pid}" if pid is not None else "/proc/PID"
            steps.append(
                f"node: look at the process of rank {root.rank}{at}: cat {process}/status {process}/wchan "
                f"{process}/stack"
            )
        elif root.kind == "gpu":
            steps.append(
                f"node: check the GPU of rank {root.rank}{at}: nvidia-smi -q, dmesg | grep -i xid; drain "
                f"the node if it repeats"
            )
            stuck = case.own_title(wait, root.rank)
            steps.append(f"code: look at the kernels that rank {root.rank} launched before {stuck}")
        else:
            steps.append(f"collect what is missing of rank {root.rank}{at}: its dump, its log, its exit status")
    return steps


def _dead_step(case: Case, root: _Root, at: str) -> str:
    error = case.fates.error(root.rank)
    if error is not None and error.frames:
        frame = error.frames[-1]
        return f"code: {error.type} at {frame.filename}:{frame.line} on rank {root.rank}{at}"
    if "status 0" in root.why:
        return (
            f"code: see why rank {root.rank}{at} came to its end before the others: fewer batches, an early return, "
            f"sys.exit()"
        )
    if "memory" in root.why:
        return (
            f"node: rank {root.rank}{at} ran out of host memory: dmesg | grep -i oom; lower its memory "
            f"or its loaders' workers"
        )
    if root.sure == "unknown":
        return (
            f"find out how rank {root.rank}{at} ended: its log, its exit status, dmesg on its node; "
            f"run under `hangscope run` next time"
        )
    return f"node: find out what ended rank {root.rank}{at}: dmesg | grep -i -E 'oom|xid|segfault', the scheduler's log"
