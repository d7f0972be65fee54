"""From the chosen accusation to the full verdict: victims, the last good operation, what was ruled out, gaps."""

from collections.abc import Iterable, Iterator

import numpy as np

from hangscope.diagnosis import verdict
from hangscope.diagnosis.accusation import Accusation, Basis, Sides
from hangscope.diagnosis.align.alignment import completed_on_all
from hangscope.diagnosis.align.clocks import clock_skew_ms
from hangscope.diagnosis.align.divergence import Divergence
from hangscope.diagnosis.align.p2p_matching import transfers
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.findings import cited
from hangscope.diagnosis.hardware.stuck_link import NETWORK_EVENTS, shown
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Completeness, Culprit, Diagnosis, Finding, FirstReported, LastCompleted, Victim
from hangscope.diagnosis.waits.progress import Scope
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.diagnosis.weigh import Choice
from hangscope.diagnosis.wording import say, steps
from hangscope.model import Communicator, Failure, Gap, State, ThreadStack, WatchdogReport
from hangscope.text import duration, numbered

_NOT_ITS_LAST = {
    Scope.EARLIER: "its dump was taken before its peers'",
    Scope.DISPUTED: "the times in its dump do not fit the other ranks': another attempt, or a clock that is off",
}
_SILENT_LISTED = 64
_LATE_LISTED = 8


def conclude(case: Case, choice: Choice) -> Diagnosis:
    """Everything that every verdict has, whatever its kind."""
    job, chosen = case.job, choice.accusation
    words = say(case, chosen)
    first, ages = _first_reported(case), list(_ages(case))
    return Diagnosis(
        hang=chosen.hang and job.recovered_s is None,
        outcome=_outcome(case, chosen),
        kind=chosen.kind,
        culprits=tuple(_culprit(case, rank, words.deeds.get(rank, "")) for rank in chosen.ranks),
        victims=tuple(_victims(case, chosen)) if chosen.hang else (),
        operation=chosen.operation or (case.operation_of(chosen.wait) if chosen.wait is not None else None),
        last_completed=_last_completed(case, chosen),
        link=chosen.link,
        first_reported=first,
        confidence=choice.confidence,
        confidence_rule=choice.rule,
        summary=words.summary,
        also_possible=tuple(verdict.AlsoPossible(o.kind, o.ranks, say(case, o).headline) for o in choice.also),
        why=(*chosen.findings, *shown(case, chosen)),
        ruled_out=_ruled_out(case, chosen),
        next_steps=steps(case, chosen, words),
        evidence=(*_remarks(case, chosen, first), *_sources(case)),
        gaps=job.gaps + case.vetted.gaps + _gaps(case, chosen),
        headline=words.headline,
        waiting_s=job.recovered_s or max(ages, default=None) if chosen.hang or job.recovered_s else None,
        lateness=case.stragglers.ranks[:_LATE_LISTED] if not chosen.hang else (),
        nodes=dict(job.nodes),
        completeness=_completeness(case),
        versions=dict(job.facts.versions),
        inputs=job.inputs,
    )


def _remarks(case: Case, chosen: Accusation, first: FirstReported | None) -> Iterator[Finding]:
    """What could lead a reader astray: who noticed first, and clocks that are off."""
    if first is not None and chosen.accused and first.rank not in chosen.ranks:
        text = f"the timeout was first reported by rank {first.rank}, a victim: it noticed first, it did not cause it"
        yield Finding(text)
    for node, off in sorted(case.vetted.clocks_off_s.items()):
        yield Finding(f"the clock of {node} is {duration(abs(off))} {'behind' if off < 0 else 'ahead of'} the others'")


def _outcome(case: Case, chosen: Accusation) -> str:
    if chosen.kind == "slow" or case.job.recovered_s is not None:
        return "slow" if chosen.kind == "slow" else "pause"
    if chosen.kind == "none" or (chosen.kind == "mismatch" and not chosen.hang and case.job.dumps):
        return "ok"
    stopped = isinstance(chosen.detail, Failure) and chosen.detail.kind == "launcher_kill"
    if chosen.basis is Basis.NOTHING_TO_TELL or stopped or not (chosen.accused or case.hang.age_known):
        return "unknown"
    waited = not all(w.in_flight for w in case.waits.all)
    # Under `run` an end is seen at once: whoever waits by then has only lost a peer, and Gloo says so in every log.
    ended = case.job.reason == "rank-exit" or (not waited and case.hang.says is not Says.YES)
    return "crash" if not chosen.hang or (chosen.kind == "dead" and ended) else "hang"


def _ages(case: Case) -> Iterator[float]:
    """How long each wait had lasted; by the time of the capture where dumps say none, as Gloo's (torch 2.8-2.15)."""
    job, created = case.job, case.job.ops.column("created_ns")
    at = job.captured_at_ns if job.under_run else None
    for wait in case.waits.all:
        begun = [int(created[u.row]) for u in wait.inside if u.row is not None and 0 < created[u.row] < (at or 0)]
        if wait.age_s is not None or (at and begun):
            yield wait.age_s if wait.age_s is not None else ((at or 0) - min(begun)) / 1e9


def _culprit(case: Case, rank: int, why: str) -> Culprit:
    process = case.job.processes.get(rank)
    of_process = (process.local_rank, process.gpu, process.pid) if process else (None, None, None)
    return Culprit(rank, case.job.nodes.get(rank), *of_process, why)


def _victims(case: Case, chosen: Accusation) -> Iterator[Victim]:
    """Who waits, in what and for which ranks."""
    tied = isinstance(chosen.detail, Sides) and chosen.detail.tied
    goals = set() if tied else set(chosen.ranks)
    ways = case.waits.reaches(goals) if goals else {}
    for rank, waits in sorted(case.waits.of.items()):
        if rank in chosen.ranks or not waits:
            continue
        # Of all that it is inside of, the operation that the verdict speaks of, else one that a culprit holds up.
        own = [w for w in waits if w is chosen.wait] or [w for w in waits if goals & w.blockers.keys()] or waits
        waits_for = case.waits.awaited(rank) or tuple(sorted(goals - {rank}))
        group, title = case.names.group(own[0].group), case.names.wait(own[0])
        yield Victim(rank, waits_for, group, title, ways.get(rank, ()))


# ---- the last operation that went well -------------------------------------------------------------------------------


def _last_transfer(case: Case, wait: Wait) -> LastCompleted | None:
    """The last transfer of the same pair that its receiver finished, where that came after its last collective."""
    ops, state = case.job.ops, case.job.ops.column("state")
    found: list[int] = []
    for row, other in wait.counterparts:
        sender, receiver = ops[row].source, ops[row].destination
        if (wait.blockers and other.peer not in wait.blockers) or sender is None or receiver is None:
            continue
        sent, received = (transfers(case.alignment, rank, row) for rank in (sender, receiver))
        done = received[state[received] == State.COMPLETED]
        if len(done) and np.any(state[sent] == State.COMPLETED):
            found.append(int(done[-1]))
    last, later = ops[max(found)] if found else None, completed_on_all(case.alignment, wait.group)
    if last is None or (later and np.any((ops.column("rank")[later[1]] == last.rank) & (later[1] > last.row))):
        return None
    return LastCompleted(case.names.group(wait.group), last.p2p_seq, last.title, last.frames, last.completed_ns)


def _last_completed(case: Case, chosen: Accusation) -> LastCompleted | None:
    wait, lanes = chosen.wait, case.alignment.lanes
    if wait is not None and wait.point_to_point and (transfer := _last_transfer(case, wait)) is not None:
        return transfer
    group = wait.group if wait is not None and wait.group not in case.progress.comm_inits else None
    if group is None and isinstance(chosen.detail, Divergence):
        group = chosen.detail.group
    elif group is None:
        group = max(lanes, key=lambda g: len(lanes[g].rows), default=None)
    if group is None:
        return None
    if group not in lanes:  # the counters in logs
        done = [mine.completed[group] for mine in case.progress.of.values() if group in mine.completed]
        last = min(done, default=-1)
        return LastCompleted(case.names.group(group), last, "collective", (), None) if last >= 0 else None
    found = completed_on_all(case.alignment, group)
    if found is None:
        return None
    sample, times = case.job.ops[int(found[1][0])], case.job.ops.column("completed_ns")[found[1]]
    at_ns = int(times.max()) if np.any(times > 0) else None
    return LastCompleted(case.names.group(group), found[0], sample.name, sample.frames, at_ns)


def _first_reported(case: Case) -> FirstReported | None:
    nodes = case.job.nodes
    lines = sorted(case.job.facts.watchdog, key=lambda r: (r.at_ns is None, r.at_ns or 0, r.rank))
    for r in (r for r in lines if r.kind in ("timeout", "async_error")):
        local = any(log.local_time for log in case.job.facts.logs if log.file == r.source.file)
        return FirstReported(r.rank, nodes.get(r.rank), r.at_ns, numbered(r.operation or "", r.seq) or None, local)
    # The others' logs name the rank that signalled it, even where its own log is missing.
    signals = [(r.signalled_by, r.at_ns) for r in lines if r.signalled_by is not None]
    return next((FirstReported(rank, nodes.get(rank), at_ns, None) for rank, at_ns in signals), None)


# ---- what was ruled out ----------------------------------------------------------------------------------------------


def _ruled_out(case: Case, chosen: Accusation) -> tuple[verdict.RuledOut, ...]:
    """The other kinds, where the evidence excludes them."""
    job, ranks, hang = case.job, case.job.ranks, chosen.hang
    # Every rank's own recording is there, whole and of this hang, and there is more than one.
    recorded = len(ranks) > 1 and all(case.progress.of[r].own_record for r in ranks)
    # Ranks that only logs mention are some of them, nobody knows how many there are.
    counted = len(ranks) > 1 and {*job.dumps, *job.processes}.issuperset(ranks)
    alive = counted and all(case.liveness.alive(r).says is Says.YES for r in ranks)
    logs = {c.rank for c in job.facts.communicators if c.rank is not None}
    quiet = bool(logs) and logs >= set(ranks) and not any(e.kind in NETWORK_EVENTS for e in job.facts.transport)
    timed = bool(job.dumps) and all(case.progress.of[r].timing for r in job.dumps if r in case.progress.of)
    has_dump = {r for r in job.dumps if any(d.role == "dump" for d in job.dumps[r])}
    agree = f"operations, sizes and types agree on all {len(has_dump)} ranks"
    out: dict[str, tuple[object, str]] = {
        # The last answer of a poll has counters, and no operations to compare.
        "mismatch": (recorded and len(has_dump) >= len(ranks) and not case.divergences, agree),
        "deadlock": (hang and recorded and not case.cycle, "no cycle of waits over the groups"),
        "dead": (hang and alive, f"all {len(ranks)} processes were alive"),
        "network": (hang and quiet, f"no transport error in NCCL's log of {len(logs)} ranks"),
    }
    if chosen.wait is not None:
        started = timed and all(u.state is State.STARTED for u in chosen.wait.inside)
        text = f"the kernel of every waiting rank started {case.names.wait(chosen.wait)}"
        out["gpu"] = (started and chosen.kind in ("absent", "dead", "frozen", "deadlock"), text)
        out["absent"] = (chosen.kind == "gpu" and chosen.accused[0].operation, "the rank launched the operation")
    return tuple(verdict.RuledOut(kind, why) for kind, (holds, why) in out.items() if holds and kind != chosen.kind)


# ---- what there was to read ------------------------------------------------------------------------------------------


def _sources(case: Case) -> Iterator[Finding]:
    """What was read, one line a kind of source."""
    job, facts = case.job, case.job.facts
    if job.dumps:
        versions = sorted({d.version for dumps in job.dumps.values() for d in dumps if d.version})
        text = f"flight recorder dumps of {ranks_text(job.dumps)}"
        yield Finding(f"{text}, format {', '.join(versions)}" if versions else text, case.source(min(job.dumps)))
    for text, found in (
        (f"watchdog lines of {_ranks(facts.watchdog)}", facts.watchdog),
        (f"NCCL logs of {_ranks(facts.communicators)}", facts.communicators),
        ("NCCL RAS answers", facts.ras),
        (f"stacks of {_ranks(facts.stacks)}", facts.stacks),
    ):
        if found:
            yield cited(text, found[0].source)


def _ranks(found: Iterable[WatchdogReport | Communicator | ThreadStack]) -> str:
    return ranks_text({f.rank for f in found if f.rank is not None})


def _gaps(case: Case, chosen: Accusation) -> tuple[Gap, ...]:
    gaps: list[Gap] = []
    for rank, mine in case.progress.of.items():
        if mine.scope in _NOT_ITS_LAST:
            gaps.append(Gap(f"what rank {rank} did last", _NOT_ITS_LAST[mine.scope], rank=rank))
        if mine.stale:
            why = "its record has operations as unfinished that its peers prove finished: its watchdog stopped noticing"
            gaps.append(Gap(f"what rank {rank} had finished", why, rank=rank))
    silent = [r for r, mine in case.progress.of.items() if not mine.known and case.stacks.main(r) is None]
    said = {g.rank for g in (*case.job.gaps, *case.vetted.gaps)}
    if chosen.hang and silent and not said.issuperset(silent):
        why = "neither a dump nor a watchdog line"
        gaps += [Gap(f"what rank {r} was doing", why, rank=r) for r in silent[:_SILENT_LISTED]]
    return tuple(gaps)


def _completeness(case: Case) -> Completeness:
    job, facts = case.job, case.job.facts
    nccl = {c.rank for c in facts.communicators if c.rank is not None}
    has_dump = {r for r in job.dumps if any(d.role == "dump" for d in job.dumps[r])}
    return Completeness(
        ranks=len(job.ranks),
        dumps=len(has_dump),
        stacks=len({s.rank for s in facts.stacks if s.rank is not None}),
        logs=len({r for r, _ in facts.log_ranks}),
        nccl_logs=len(nccl),
        missing_dumps=tuple(r for r in job.ranks if r not in has_dump),
        missing_nccl_logs=tuple(r for r in job.ranks if r not in nccl) if nccl else (),
        clock_skew_ms=clock_skew_ms(case.alignment) if len(job.ops) else None,
    )
