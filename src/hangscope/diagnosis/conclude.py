"""From the chosen accusation to the full verdict: everything that every verdict has, whatever its kind."""

import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import starmap
from typing import Any

from hangscope.diagnosis import stuck_link
from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.align.clocks import clock_skew_ms
from hangscope.diagnosis.at_work import is_at_work
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.culprit_place import culprit_places
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.evidence.code_lines import shown
from hangscope.diagnosis.findings import cited
from hangscope.diagnosis.last_completed import last_completed
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.quotes import log_facts, with_quotes
from hangscope.diagnosis.retry import retry_of
from hangscope.diagnosis.role_words import role_findings, roles_of, with_roles
from hangscope.diagnosis.ruled_out import ruled_out
from hangscope.diagnosis.say import next_steps, say
from hangscope.diagnosis.verdict import (
    AlsoPossible,
    CauseKind,
    Completeness,
    Culprit,
    Diagnosis,
    Finding,
    FirstReported,
    Link,
    OperationInFlight,
    Place,
    Victim,
)
from hangscope.diagnosis.waits.program_waits import who_may_wait
from hangscope.diagnosis.waits.progress import Scope
from hangscope.diagnosis.waits.wait_graph import IN_FLIGHT_S, Wait
from hangscope.diagnosis.weigh import LEAST, Choice
from hangscope.errors import LeftOut
from hangscope.model import Communicator, Facts, Gap, Job, ThreadStack, WatchdogReport
from hangscope.text import duration, numbered, sentence
from hangscope.verdict_words import Outcome

_NOT_ITS_LAST = {
    Scope.EARLIER: "its dump was taken before its peers'",
    Scope.DISPUTED: "the timestamps in its dump do not match the other ranks': another attempt, or a wrong clock",
}
_SILENT_LISTED = 64
_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
_LATE_LISTED = 8


def conclude(case: Case, choice: Choice, left_out: LeftOut | None = None) -> Diagnosis:
    """The verdict. A part of it that raises is left out, and said to be: `left_out` has what was before."""
    job = case.job
    chosen = choice.accusation
    left_out = left_out or LeftOut()
    part = left_out.part
    roles = roles_of(job)
    words = part("the verdict's words", _bare_words(chosen), lambda: with_roles(say(case, chosen), roles, chosen.ranks))
    gpus = left_out.several("what GPUs ran", lambda: _on_gpus(case, chosen, words))
    more_why = left_out.several("findings", lambda: (*_unrecorded(case, chosen), *stuck_link.shown(case, chosen)))
    why = (*words.why, *gpus, *more_why)
    unknown = Outcome.HANG if chosen.hang else Outcome.UNKNOWN
    first = left_out.one("who reported it first", lambda: _first_reported(case))
    verdict = Diagnosis(
        hang=chosen.hang and job.recovered_s is None,
        outcome=part("what became of the job", unknown, lambda: _outcome(case, chosen)),
        kind=chosen.kind,
        culprits=part("the culprits' places", _bare_culprits(job, chosen), lambda: _culprits(case, chosen, words)),
        victims=left_out.several("who waits", lambda: tuple(_victims(case, chosen)) if chosen.hang else ()),
        operation=left_out.one("the operation in flight", lambda: _operation(case, chosen)),
        last_completed=left_out.one("what completed last", lambda: last_completed(case, chosen)),
        link=left_out.one("the link", lambda: _link(case, chosen, words)),
        first_reported=first,
        confidence=choice.confidence,
        confidence_rule=choice.rule,
        summary=" ".join([words.summary, *(f"{sentence(finding.text)}." for finding in gpus)]),
        also_possible=left_out.several("what else is possible", lambda: _also_possible(case, choice)),
        why=part("quoted lines", tuple(why), lambda: with_quotes(why, job.facts)),
        ruled_out=left_out.several("what is ruled out", lambda: ruled_out(case, chosen)),
        next_steps=left_out.several("next steps", lambda: next_steps(case, chosen, words)),
        evidence=part(
            "what was read", (), lambda: (*_remarks(case, chosen, first), *role_findings(job), *_sources(case))
        ),
        gaps=job.gaps + case.vetted.gaps + left_out.several("gaps", lambda: _gaps(case, chosen)),
        headline=words.headline,
        waiting_s=(waited_s := left_out.one("how long it hung", lambda: _waiting_s(case, chosen))),
        waiting_is_least=_waiting_is_least(case, waited_s),
        lateness=left_out.several(
            "who is late", lambda: case.stragglers.ranks[:_LATE_LISTED] if not chosen.hang else ()
        ),
        nodes=dict(job.nodes),
        completeness=left_out.one("what there is of all ranks", lambda: _completeness(case)),
        versions=dict(job.facts.versions),
        inputs=job.inputs,
        facts=left_out.several("lines of logs", lambda: log_facts(why, job.facts)),
        kinds={accused.rank: accused.kind for accused in chosen.accused},
        gpu_cores=tuple(case.kernels.of[rank] for rank in sorted(case.kernels.of)),
        roles=roles,
        others=job.facts.others,
        actors=tuple(chosen.actors),
        program_waits=case.programs.of(who_may_wait(job, chosen.kind, chosen.ranks, hang=chosen.hang)),
        unranked=tuple(replace(one, why=one.why or words.headline) for one in chosen.unranked),
    )
    verdict = replace(verdict, retry=left_out.one("whether to retry", lambda: retry_of(job, verdict)))
    return replace(verdict, gaps=(*verdict.gaps, *starmap(Gap, left_out.reasons))) if left_out.reasons else verdict


def not_judged(job: Job, *reasons: str) -> Diagnosis:
    """The verdict where no cause, or nothing at all, could be judged: that, and what was read."""
    return Diagnosis(
        hang=False,
        outcome=Outcome.UNKNOWN,
        kind=CauseKind.UNKNOWN,
        culprits=(),
        victims=(),
        operation=None,
        last_completed=None,
        link=None,
        first_reported=None,
        confidence=LEAST,
        confidence_rule="unknown: the evidence was read and could not be judged",
        headline="not determined: the evidence could not be judged",
        summary="The evidence was read and could not be judged, because of a bug in hangscope.",
        why=(),
        ruled_out=(),
        next_steps=("report it, with `hangscope bundle` of this evidence where you may send it",),
        evidence=(),
        gaps=(*job.gaps, *(Gap("the judgement", why) for why in reasons)),
        nodes=dict(job.nodes),
        inputs=job.inputs,
    )


def _bare_words(chosen: Accusation[Any]) -> Words:
    """What is said of an accusation whose own words cannot be made."""
    text = f"{ranks_text(chosen.ranks)} accused: {chosen.kind}" if chosen.ranks else f"{chosen.kind}: no rank accused"
    return Words(text, f"{sentence(text)}.", ())


def _bare_culprits(job: Job, chosen: Accusation[Any]) -> tuple[Culprit, ...]:
    return tuple(Culprit(rank, job.nodes.get(rank), None, None, None, "") for rank in chosen.ranks)


def _what_was_read(case: Case, chosen: Accusation[Any], first: FirstReported | None) -> tuple[Finding, ...]:
    return (*_remarks(case, chosen, first), *role_findings(case.job), *_sources(case))


def _operation(case: Case, chosen: Accusation[Any]) -> OperationInFlight | None:
    return chosen.operation or (case.operation_of(chosen.wait) if chosen.wait is not None else None)


def _also_possible(case: Case, choice: Choice) -> tuple[AlsoPossible, ...]:
    """Each explanation once, however many causes come to it."""
    others = [AlsoPossible(other.kind, other.ranks, say(case, other).headline) for other in choice.also]
    return tuple(dict.fromkeys(others))


def _on_gpus(case: Case, chosen: Accusation[Any], words: Words) -> list[Finding]:
    """What the GPUs of the accused run, and those of the others, where the cause has not said so."""
    kernels = case.kernels
    if not chosen.hang or not kernels.of:
        return []
    said = kernels.said_of(chosen.ranks) if chosen.accused else kernels.said_of_all()
    if not said or said.lower() in words.summary.lower():
        return []
    return [Finding(said, kernels.sources([*chosen.ranks, *kernels.of]))]


def _unrecorded(case: Case, chosen: Accusation[Any]) -> Iterator[Finding]:
    """Accused ranks that may wait themselves, where no recorder looks."""
    for accused in chosen.accused:
        call = case.unrecorded_calls.get(accused.rank) if accused.kind is CauseKind.ABSENT else None
        stack = case.stacks.main(accused.rank)
        if call is not None and stack is not None:
            doubt = "what runs there is not recorded" if call.waits_for_gpu else "it may wait there for another rank"
            text = f"rank {accused.rank} is inside {call.what}, which the flight recorder does not see: {doubt}"
            yield Finding(text, (stack.source,), shown((call.frame,)))


def _link(case: Case, chosen: Accusation[Any], words: Words) -> Link | None:
    return stuck_link.make(case, chosen.way, words.link) if chosen.way is not None else None


def _remarks(case: Case, chosen: Accusation[Any], first: FirstReported | None) -> Iterator[Finding]:
    """What could mislead a reader: who noticed first, and clocks that are off."""
    if first is not None and chosen.accused and first.rank not in chosen.ranks:
        what = "timeout" if first.timeout else "failure"
        text = f"the {what} was first reported by rank {first.rank}, a victim: it noticed first but did not cause it"
        yield Finding(text)
    for node, off in sorted(case.vetted.clocks_off_s.items()):
        yield Finding(f"the clock of {node} is {duration(abs(off))} {'behind' if off < 0 else 'ahead of'} the others'")


# ---- what became of the job ------------------------------------------------------------------------------------------


def _outcome(case: Case, chosen: Accusation[Any]) -> Outcome:
    known = _known_outcome(case, chosen)
    if known is not None:
        return known
    if chosen.kind is CauseKind.NONE:
        return Outcome.OK
    if chosen.kind is CauseKind.MISMATCH and not chosen.hang and case.job.dumps:
        return Outcome.WRONG
    if not chosen.conclusive or not (chosen.names_somebody or case.hang.age_known):
        return Outcome.UNKNOWN
    if not chosen.hang or _is_crash(case, chosen.kind):
        return Outcome.CRASH
    return Outcome.WAIT if is_at_work(case, chosen) else Outcome.HANG


def _is_crash(case: Case, kind: CauseKind) -> bool:
    """Whether what others waited for is only that somebody had ended."""
    if _ended_at_once(case) or (kind is CauseKind.DEAD and _is_only_an_end(case)):
        return True
    return kind in (CauseKind.DEAD, CauseKind.UNKNOWN) and _only_lost_peers(case)


def _known_outcome(case: Case, chosen: Accusation[Any]) -> Outcome | None:
    """What the accusation itself, or that the job went on, says."""
    if chosen.kind is CauseKind.SLOW:
        return Outcome.SLOW
    if chosen.outcome is not None:
        return chosen.outcome
    return Outcome.PAUSE if case.job.recovered_s is not None else None


def _is_only_an_end(case: Case) -> bool:
    """Whether nobody waited for long when a rank ended.

    Under `run` an end is seen at once: whoever waits by then has only lost a peer, and Gloo says so in every log. What
    `run` called a crash in a log was one.
    """
    in_flight = all(wait.in_flight for wait in case.waits.all)
    printed = {verdict.outcome for verdict in case.job.facts.printed_verdicts}
    seen_by_run = case.job.reason == "rank-exit" or printed == {Outcome.CRASH}
    return seen_by_run or (in_flight and case.hang.says is not Says.YES)


def _ended_at_once(case: Case) -> bool:
    """Whether the first trouble under `run` was that a rank ended, when nobody had waited for more than a moment.

    Gloo ends a rank at once over a size that does not fit.
    """
    by_hand = any(process.exit_status in _INTERRUPTED for process in case.job.processes.values())
    if case.job.reason != "rank-exit" or _timed_out(case) or by_hand:
        return False
    waits = [wait for wait in case.waits.all if not wait.only_failed]
    ages = list(_ages(case, case.waits.all))
    return max(ages) < IN_FLIGHT_S if ages else not waits


def _only_lost_peers(case: Case) -> bool:
    """Whether nothing was captured and all that is known of who waits is that it lost somebody at once."""
    if case.job.reason is not None or not case.waits.all or _timed_out(case):
        return False
    hung = any(printed.outcome == Outcome.HANG for printed in case.job.facts.printed_verdicts)
    return not hung and all(wait.only_failed for wait in case.waits.all)


def _timed_out(case: Case) -> bool:
    return any(report.kind == "timeout" for report in case.job.facts.watchdog)


def _waiting_s(case: Case, chosen: Accusation[Any]) -> float | None:
    """How long the longest-waiting victim had waited; of a job that went on, how long it stood still."""
    if case.job.recovered_s:
        return case.job.recovered_s
    if not chosen.hang:
        return None
    accused = set(chosen.ranks)
    of_victims = [wait for wait in case.waits.all if not accused.issuperset(wait.waiters)]
    return max(_ages(case, of_victims or case.waits.all), default=None)


def _waiting_is_least(case: Case, waited_s: float | None) -> bool:
    """Whether nothing says when the wait began, and it only was seen for so long."""
    if waited_s is None or case.job.recovered_s:
        return False
    return any(wait.age_s == waited_s and wait.age_is_least for wait in case.waits.all)


def _ages(case: Case, waits: Iterable[Wait]) -> Iterator[float]:
    """How long each wait had lasted; by the time of the capture where dumps say none, as Gloo's (torch 2.8-2.15)."""
    captured_ns = case.job.captured_at_ns if case.job.under_run else None
    for wait in waits:
        if wait.age_s is not None:
            yield wait.age_s
        elif captured_ns is not None:
            begun = [at_ns for at_ns in _begun_ns(case, wait) if at_ns < captured_ns]
            if begun:
                yield (captured_ns - min(begun)) / 1e9


def _begun_ns(case: Case, wait: Wait) -> list[int]:
    created = case.job.ops.column("created_ns")
    return [int(created[unit.row]) for unit in wait.inside if unit.row is not None and created[unit.row] > 0]


# ---- who -------------------------------------------------------------------------------------------------------------


def _culprits(case: Case, chosen: Accusation[Any], words: Words) -> tuple[Culprit, ...]:
    places = culprit_places(case, chosen)
    return tuple(_culprit(case, rank, words.each.get(rank, ""), places.get(rank)) for rank in chosen.ranks)


def _culprit(case: Case, rank: int, why: str, where: Place | None) -> Culprit:
    node = case.job.nodes.get(rank)
    process = case.job.processes.get(rank)
    if process is None:
        return Culprit(rank, node, None, None, None, why, where)
    storage = case.storage.of(rank)
    return Culprit(rank, node, process.local_rank, process.gpu, process.pid, why, where, storage, process.role)


def _victims(case: Case, chosen: Accusation[Any]) -> Iterator[Victim]:
    """Who waits, in what and for which ranks."""
    accused = frozenset(chosen.ranks)
    goals = set() if chosen.all_sides else set(accused)
    goals_in_order = tuple(sorted(goals))
    ways = case.waits.reaches(goals) if goals else {}
    held_by_goals = {id(wait) for wait in case.waits.all if not goals.isdisjoint(wait.blockers)}
    for rank, waits in sorted(case.waits.of.items()):
        if rank in accused or not waits:
            continue
        # Of all that it is inside of, the operation that the verdict is about, else one that a culprit holds up.
        held_up = [wait for wait in waits if id(wait) in held_by_goals]
        own = next((wait for wait in waits if wait is chosen.wait), (held_up or waits)[0])
        waits_for = case.waits.awaited(rank) or goals_in_order
        yield Victim(rank, waits_for, case.names.group(own.group), case.names.wait_of(own, rank), ways.get(rank, ()))
    if not case.waits.all:
        yield from _victims_in_boxes(case, accused)


def _victims_in_boxes(case: Case, accused: frozenset[int]) -> Iterator[Victim]:
    """Who waits by the black boxes, where no recorder has an operation: a replayed graph, or NCCL called directly."""
    for rank, wait in case.box_waits.items():
        if rank not in accused:
            operation = wait.operation
            name = numbered(operation.func, operation.seq) or None
            yield Victim(rank, wait.peers, f"NCCL communicator {operation.comm}", name)


def _first_reported(case: Case) -> FirstReported | None:
    """Of several ranks that report it, the first is known only where the time of each report is."""
    nodes = case.job.nodes
    lines = case.job.facts.watchdog
    reports = [line for line in lines if line.kind in ("timeout", "async_error")]
    if reports:
        line = min(reports, key=lambda report: (report.at_ns or 0, report.rank))
        if any(other.at_ns is None for other in reports) and len({other.rank for other in reports}) > 1:
            return None
        local = any(log.local_time for log in case.job.facts.logs if log.file == line.source.file)
        operation = numbered(line.operation or "", line.seq) or None
        return FirstReported(line.rank, nodes.get(line.rank), line.at_ns, operation, local, line.kind == "timeout")
    # The others' logs name the rank that signalled it, even where its own log is missing.
    signalled = {line.signalled_by: line for line in reversed(lines) if line.signalled_by is not None}
    if len(signalled) != 1:
        return None
    rank, line = next(iter(signalled.items()))
    return FirstReported(rank, nodes.get(rank), line.at_ns, None)


# ---- what there was to read ------------------------------------------------------------------------------------------


def _sources(case: Case) -> Iterator[Finding]:
    """What was read, one line a kind of source."""
    job = case.job
    if case.dumped:
        versions = sorted({dump.version for dumps in job.dumps.values() for dump in dumps if dump.version})
        text = f"flight recorder dumps of {ranks_text(sorted(case.dumped))}"
        yield Finding(f"{text}, format {', '.join(versions)}" if versions else text, case.source(min(case.dumped)))
    polled = sorted(set(job.dumps) - case.dumped)
    if polled:
        yield Finding(f"the last answers of {ranks_text(polled)} while they ran", case.source(polled[0]))
    for text, found in (
        (f"watchdog lines of {_ranks(job.facts.watchdog)}", job.facts.watchdog),
        (f"NCCL logs of {_ranks(job.facts.communicators)}", job.facts.communicators),
        ("NCCL RAS answers", job.facts.ras),
        (f"stacks of {_ranks(job.facts.stacks)}", job.facts.stacks),
    ):
        if found:
            yield cited(text, found[0].source)


def _ranks(found: Iterable[WatchdogReport | Communicator | ThreadStack]) -> str:
    return ranks_text({one.rank for one in found if one.rank is not None})


def _gaps(case: Case, chosen: Accusation[Any]) -> tuple[Gap, ...]:
    gaps: list[Gap] = []
    for rank, mine in case.progress.of.items():
        if mine.scope in _NOT_ITS_LAST:
            gaps.append(Gap(f"what rank {rank} did last", _NOT_ITS_LAST[mine.scope], rank=rank))
        if mine.stale:
            why = "its dump lists operations as unfinished that its peers finished: its watchdog stopped updating it"
            gaps.append(Gap(f"what rank {rank} had finished", why, rank=rank))
    for group, count in case.waits.crowded.items():
        why = f"they are in {count:,} operations at once: each was compared only with the ranks furthest behind"
        gaps.append(Gap(f"which ranks of {case.names.group(group)} wait for which", why))
    if chosen.hang:
        gaps += _silent_ranks(case)
    return tuple(gaps)


def _silent_ranks(case: Case) -> list[Gap]:
    """Ranks of which nothing is known, unless a gap is noted of each already."""
    silent = [rank for rank, mine in case.progress.of.items() if not mine.known and case.stacks.main(rank) is None]
    noted = {gap.rank for gap in (*case.job.gaps, *case.vetted.gaps)}
    if noted.issuperset(silent):
        return []
    why = "neither a dump nor a watchdog line"
    return [Gap(f"what rank {rank} was doing", why, rank=rank) for rank in silent[:_SILENT_LISTED]]


def _logged_ranks(facts: Facts) -> set[int]:
    """Ranks of which a log of theirs, or a line of theirs in any log, was read.

    What a launcher says of how a rank ended is no line of that rank's.
    """
    ranks: set[int | None] = {rank for rank, _ in facts.log_ranks}
    ranks.update(report.rank for report in facts.watchdog)
    ranks.update(failure.rank for failure in facts.failures if failure.kind not in ("signal", "exit"))
    ranks.update(error.rank for error in facts.errors)
    return {rank for rank in ranks if rank is not None}


def _completeness(case: Case) -> Completeness:
    job = case.job
    nccl = {part.rank for part in job.facts.communicators if part.rank is not None}
    return Completeness(
        ranks=len(job.ranks),
        dumps=len(case.dumped),
        stacks=len({stack.rank for stack in job.facts.stacks if stack.rank is not None}),
        logs=len(_logged_ranks(job.facts)),
        nccl_logs=len(nccl),
        missing_dumps=tuple(rank for rank in job.ranks if rank not in case.dumped),
        missing_nccl_logs=tuple(rank for rank in job.ranks if rank not in nccl) if nccl else (),
        clock_skew_ms=clock_skew_ms(case.alignment) if len(job.ops) else None,
        gpu_cores=len(case.kernels.of),
    )
