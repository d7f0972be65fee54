"""From what a rule concluded to the full verdict: victims, the last good operation, what was ruled out, gaps."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.align import completed_on_all
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.clocks import clock_skew_ms
from hangscope.diagnosis.p2p import transfers
from hangscope.diagnosis.verdict import (
    Completeness,
    Culprit,
    Diagnosis,
    Finding,
    FirstReported,
    LastCompleted,
    RuledOut,
    Victim,
)
from hangscope.diagnosis.waits import Wait
from hangscope.diagnosis.words import ranks_text
from hangscope.model import Gap, State


def conclude(case: Case, draft: Draft) -> Diagnosis:
    """Everything that every verdict has, whatever its kind."""
    job = case.job
    operation = draft.operation or (case.operation_of(draft.wait) if draft.wait is not None else None)
    first = _first_reported(case)
    steps = list(dict.fromkeys(draft.next_steps))
    if job.facts.recorder_off and not job.dumps:
        steps.append(
            "switch the flight recorder on: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_FR_BUFFER_SIZE=2000 "
            "(entries, not bytes), TORCH_NCCL_DUMP_ON_TIMEOUT=1; `hangscope env` prints the full set"
        )
    evidence: list[Finding] = []
    if first is not None and draft.culprits and first.rank not in draft.culprits:
        evidence.append(
            Finding(
                f"the timeout was first reported by rank {first.rank}, a victim: it noticed first, it did not cause it"
            )
        )
    result = case.tardiness if not draft.hang else None
    return Diagnosis(
        hang=draft.hang,
        kind=draft.kind,
        culprits=tuple(_culprit(case, rank, why) for rank, why in sorted(draft.culprits.items())),
        victims=_victims(case, draft) if draft.hang else (),
        operation=operation,
        last_completed=_last_completed(case, draft),
        link=draft.link,
        first_reported=first,
        confidence=draft.confidence,
        confidence_rule=draft.rule,
        summary=draft.summary,
        why=tuple(draft.why),
        ruled_out=_ruled_out(case, draft),
        next_steps=tuple(dict.fromkeys(steps)),
        evidence=tuple(evidence) + _sources(case),
        gaps=job.gaps + _gaps(case, draft),
        headline=draft.headline,
        waiting_s=max((age for w in case.waits.all if (age := case.age_s(w)) is not None), default=None)
        if draft.hang
        else None,
        lateness=result.ranks[:8] if result is not None else (),
        nodes=dict(job.nodes),
        completeness=_completeness(case),
        versions=dict(job.facts.versions),
        inputs=job.inputs,
    )


def _culprit(case: Case, rank: int, why: str) -> Culprit:
    process = case.job.processes.get(rank)
    return Culprit(
        rank=rank,
        node=case.job.nodes.get(rank),
        local_rank=process.local_rank if process else None,
        gpu=process.gpu if process else None,
        pid=process.pid if process else None,
        why=why,
    )


def _victims(case: Case, draft: Draft) -> tuple[Victim, ...]:
    goals = set(draft.culprits) if draft.victims_of is None else set(draft.victims_of)
    ways = case.waits.reaches(goals) if goals else {}
    victims: list[Victim] = []
    for rank, waits in sorted(case.waits.of.items()):
        if rank in draft.culprits or not waits:
            continue
        wait = _told(draft, goals, waits)
        way = ways.get(rank, ())
        victims.append(
            Victim(
                rank=rank,
                waits_for=tuple(sorted(case.waits.blockers(rank))) or tuple(sorted(goals - {rank})),
                group=case.group_label(wait.group),
                operation=case.title(wait),
                chain=way,
            )
        )
    return tuple(victims)


def _told(draft: Draft, goals: set[int], waits: list[Wait]) -> Wait:
    """Of all that a rank is inside of, the operation that the verdict speaks of, else one that a culprit holds up."""
    if any(w is draft.wait for w in waits) and draft.wait is not None:
        return draft.wait
    return next((w for w in waits if goals.intersection(w.blockers)), waits[0])


def _last_transfer(case: Case, wait: Wait) -> LastCompleted | None:
    """The last transfer of the same pair that its receiver finished, where that came after its last collective."""
    ops, state = case.job.ops, case.job.ops.column("state")
    found: list[int] = []
    for row, other in wait.counterparts:
        operation = ops[row]
        sender, receiver = operation.source, operation.destination
        if (wait.blockers and other.peer not in wait.blockers) or sender is None or receiver is None:
            continue
        sent, received = (transfers(case.alignment, rank, row) for rank in (sender, receiver))
        done = received[state[received] == State.COMPLETED]
        if len(done) and np.any(state[sent] == State.COMPLETED):
            found.append(int(done[-1]))
    if not found:
        return None
    last = ops[max(found)]
    later = completed_on_all(case.alignment, wait.group)
    if later is not None and np.any((ops.column("rank")[later[1]] == last.rank) & (later[1] > last.row)):
        return None
    return LastCompleted(case.group_label(wait.group), last.p2p_seq, last.title, last.frames, last.completed_ns)


def _last_completed(case: Case, draft: Draft) -> LastCompleted | None:
    if draft.wait is not None and draft.wait.point_to_point:
        transfer = _last_transfer(case, draft.wait)
        if transfer is not None:
            return transfer
    group = draft.wait.group if draft.wait is not None else None
    if group is None or group in case.standings.joining:
        lanes = case.alignment.lanes
        if case.divergences and draft.kind == "mismatch":
            group = case.divergences[0].group
        else:
            group = max(lanes, key=lambda g: len(lanes[g].rows), default=None)
    if group is None or group not in case.alignment.lanes:
        return _last_completed_from_logs(case, group)
    found = completed_on_all(case.alignment, group)
    if found is None:
        return None
    seq, rows = found
    sample = case.job.ops[int(rows[0])]
    times = case.job.ops.column("completed_ns")[rows]
    return LastCompleted(
        group=case.group_label(group),
        seq=seq,
        name=sample.name,
        frames=sample.frames,
        at_ns=int(times.max()) if np.any(times > 0) else None,
    )


def _last_completed_from_logs(case: Case, group: int | None) -> LastCompleted | None:
    if group is None:
        return None
    done = [s.completed[group] for s in case.standings.of.values() if group in s.completed]
    if not done or min(done) < 0:
        return None
    return LastCompleted(case.group_label(group), min(done), "collective", (), None)


def _first_reported(case: Case) -> FirstReported | None:
    reports = [r for r in case.job.facts.watchdog if r.kind in ("timeout", "async_error")]
    if not reports:
        # The others' logs name the rank that signalled it, even where its own log is missing.
        told = [r for r in case.job.facts.watchdog if r.signalled_by is not None]
        if not told:
            return None
        early = min(told, key=lambda r: (r.at_ns is None, r.at_ns or 0, r.rank))
        rank = early.signalled_by if early.signalled_by is not None else early.rank
        return FirstReported(rank, case.job.nodes.get(rank), early.at_ns, None)
    first = min(reports, key=lambda r: (r.at_ns is None, r.at_ns or 0, r.rank))
    what = f"{first.operation} #{first.seq}" if first.operation and first.seq is not None else first.operation
    return FirstReported(first.rank, case.job.nodes.get(first.rank), first.at_ns, what)


def _ruled_out(case: Case, draft: Draft) -> tuple[RuledOut, ...]:
    """The other kinds, where the evidence excludes them."""
    job = case.job
    out: dict[str, str] = {}
    dumps = len(job.dumps)
    complete = all(r in job.dumps for r in job.ranks)
    if draft.kind != "mismatch" and not case.divergences and complete and dumps > 1:
        out.setdefault("mismatch", f"operations, sizes and types agree on all {dumps} ranks")
    if draft.kind != "deadlock" and draft.hang and complete and not case.waits.knots():
        out.setdefault("deadlock", "no cycle of waits over the groups")
    alive = [r for r in job.ranks if case.fates.of(r).kind == "alive"]
    if draft.kind != "dead" and draft.hang and len(alive) == len(job.ranks) and alive:
        out.setdefault("dead", f"all {len(alive)} processes were alive")
    events = [e for e in job.facts.transport if e.kind in ("completion_error", "async_event", "connect_failed")]
    logs = {c.rank for c in job.facts.communicators if c.rank is not None}
    if draft.kind != "network" and draft.hang and logs >= set(job.ranks) and not events:
        out.setdefault("network", f"no transport error in NCCL's log of {len(logs)} ranks")
    timing = [r for r, s in case.standings.of.items() if s.timing]
    if (
        draft.kind in ("absent", "dead", "frozen", "deadlock")
        and draft.wait is not None
        and len(timing) == len(job.dumps)
        and timing
    ):
        started = [u for u in draft.wait.inside if u.state is State.STARTED]
        if started and len(started) == len(draft.wait.inside):
            out.setdefault("gpu", f"the GPU of every waiting rank started {case.title(draft.wait)}")
    if draft.kind == "gpu" and case.fates.of(next(iter(draft.culprits), -1)).kind == "alive":
        out.setdefault("absent", "the rank launched the operation")
    return tuple(RuledOut(kind, why) for kind, why in out.items() if kind != draft.kind)


def _sources(case: Case) -> tuple[Finding, ...]:
    """What was read, one line a kind of source."""
    job = case.job
    found: list[Finding] = []
    if job.dumps:
        versions = sorted({d.version for dumps in job.dumps.values() for d in dumps if d.version})
        text = f"flight recorder dumps of {ranks_text(job.dumps)}" + (
            f", format {', '.join(versions)}" if versions else ""
        )
        found.append(Finding(text, tuple(case.source(min(job.dumps)))))
    if job.facts.watchdog:
        found.append(
            Finding(
                f"watchdog lines of {ranks_text({r.rank for r in job.facts.watchdog})}", (job.facts.watchdog[0].source,)
            )
        )
    if job.facts.communicators:
        ranks = {c.rank for c in job.facts.communicators if c.rank is not None}
        source = job.facts.communicators[0].source
        found.append(Finding(f"NCCL logs of {ranks_text(ranks)}", (source,) if source else ()))
    if job.facts.ras:
        found.append(Finding("NCCL RAS answers", (job.facts.ras[0].source,)))
    if job.facts.stacks:
        found.append(
            Finding(
                f"stacks of {ranks_text({s.rank for s in job.facts.stacks if s.rank is not None})}",
                (job.facts.stacks[0].source,),
            )
        )
    return tuple(found)


def _gaps(case: Case, draft: Draft) -> tuple[Gap, ...]:
    gaps: list[Gap] = []
    outdated = [r for r, s in case.standings.of.items() if s.outdated]
    gaps += [Gap(f"what rank {r} did last", "its dump was taken before its peers'", rank=r) for r in outdated]
    silent = [r for r, s in case.standings.of.items() if not s.known and case.main_stack(r) is None]
    if draft.hang and silent and not job_has_gap(case, silent):
        gaps += [Gap(f"what rank {r} was doing", "neither a dump nor a watchdog line", rank=r) for r in silent[:64]]
    return tuple(gaps)


def job_has_gap(case: Case, ranks: list[int]) -> bool:
    """Whether the reader has already said that these ranks' evidence is missing."""
    said = {g.rank for g in case.job.gaps}
    return set(ranks) <= said


def _completeness(case: Case) -> Completeness:
    job = case.job
    logs = {r for r, _ in job.facts.log_ranks}
    nccl = {c.rank for c in job.facts.communicators if c.rank is not None}
    stacks = {s.rank for s in job.facts.stacks if s.rank is not None}
    has_dump = {r for r in job.dumps if any(d.role == "dump" for d in job.dumps[r])}
    return Completeness(
        ranks=len(job.ranks),
        dumps=len(has_dump),
        stacks=len(stacks),
        logs=len(logs),
        nccl_logs=len(nccl),
        missing_dumps=tuple(r for r in job.ranks if r not in has_dump),
        missing_nccl_logs=tuple(r for r in job.ranks if r not in nccl) if nccl else (),
        clock_skew_ms=clock_skew_ms(case.alignment) if len(job.ops) else None,
    )
