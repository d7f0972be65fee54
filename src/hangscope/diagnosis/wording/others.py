"""What the other modules of the wording share, and the verdicts that accuse nobody or nobody of a hang."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes.advice import ANNOUNCE, BY_CALL, COLLECT, SWITCH_ON
from hangscope.diagnosis.evidence.code_lines import function_line
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.wording.lines import led
from hangscope.text import duration, plural, sentence, verb


@dataclass(frozen=True, slots=True)
class Words:
    """`deeds` says what each accused did: ``never launched all_reduce #7``."""

    headline: str
    summary: str
    deeds: Mapping[int, str] = field(default_factory=dict)
    steps: Iterable[str] = ()


def did(case: Case, a: Accusation, what: str, rest: str, *steps: str, deeds: str | dict[int, str] = "") -> Words:
    """Who did what, and what came of it: the shape of most verdicts. `deeds` where each rank's is said otherwise."""
    summary = f"{sentence(case.names.ranks(a.ranks))} {what}{rest}"
    each = deeds if isinstance(deeds, dict) else dict.fromkeys(a.ranks, deeds or what)
    return Words(f"{ranks_text(a.ranks)} {led(case, a, what)}", summary, each, steps)


def recorder_step(case: Case) -> list[str]:
    """Where a log says that the recorder was off, that is the one thing to change."""
    return [SWITCH_ON] if case.job.facts.recorder_off and not case.job.dumps else []


def hang_unexplained(case: Case, a: Accusation) -> Words:
    job, wait = case.job, a.wait
    reported = {r.rank for r in job.facts.watchdog}
    what = case.names.wait(wait) if wait is not None else str(a.detail or "a collective")
    # Calls that no recorder has are one wait a rank.
    alike = [w for w in case.waits.all if w is wait or (wait and wait.seq is None and w.name == wait.name)]
    waiters = sorted({r for w in alike for r in w.waiters} if alike else reported)
    unseen = sorted(set(job.ranks) - set(job.dumps) - reported - {r for r, waits in case.waits.of.items() if waits})
    age = f" for {duration(wait.age_s)}" if wait is not None and wait.age_s is not None else ""
    who = f"{case.names.ranks(waiters)} {verb(waiters, 'waits', 'wait')} in" if waiters else "the job hangs in"
    rest = "the cause is not determined" if case.hang.age_known else "nothing says for how long"
    if unseen or (not job.dumps and not waiters):
        rest = f"nothing is known of {ranks_text(unseen) if unseen else 'the other ranks'}"
    return Words(
        f"{who} {what}{age}; {rest}",
        f"{sentence(who)} {what}{age}, and {rest}: the evidence does not name the cause.",
        steps=[BY_CALL.get(what, COLLECT if job.dumps or unseen else SWITCH_ON)] if not recorder_step(case) else [],
    )


def recovered(case: Case, a: Accusation) -> Words:
    """The same stall of a job that went on by itself: who held it up, where and for how long."""
    for_s, inside = duration(case.job.recovered_s or 0.0), f" in {case.names.wait(a.wait)}" if a.wait else ""
    held = f"{ranks_text(a.ranks)} held the job up" if a.ranks and a.hang else "the job stood still"
    where = case.stacks.where(a.ranks[0]) if a.hang and len(a.ranks) == 1 else None
    text = f"{held} for {for_s}{f' in {function_line(where.frame)}' if where is not None else inside}, then it went on"
    return Words(text, f"{sentence(text)}.", dict.fromkeys(a.ranks, f"held the others up for {for_s}"), [ANNOUNCE])


def progress_seen(_: Case, a: Accusation) -> Words:
    return Words("no hang found", f"No hang: {a.detail}.")


def nothing_to_tell(case: Case, a: Accusation) -> Words:
    job = case.job
    unseen = sorted(set(job.ranks) - set(job.dumps))
    text = "cannot tell: no recording and no line that says what the ranks were doing"
    if a.detail is not None:
        stacks = plural(len({s.rank for s in job.facts.stacks if s.rank is not None}), "rank")
        text = f"only stacks of {stacks} were found; nobody stands apart"
    elif job.facts.ras and not job.dumps:
        text = "cannot tell: what NCCL's RAS answers names nobody, and nothing was recorded"
    elif not job.dumps and (files := [gap for gap in job.gaps if gap.source]) and not job.facts.log_ranks:
        text = f"cannot tell: {plural(len(files), 'file')} could not be used, and nothing else was found"
    elif unseen and job.dumps:
        text = f"cannot tell: nothing hangs on {ranks_text(job.dumps)}, and nothing is known of {ranks_text(unseen)}"
    elif len(job.ops):
        text = "cannot tell: no operation hangs, and progress was not seen on every rank"
    return Words(text, f"{sentence(text)}.", steps=[COLLECT if job.dumps else SWITCH_ON])


def apart(case: Case, a: Accusation) -> Words:
    here = a.accused[0].text
    what = f"{verb(a.ranks, 'stands', 'stand')} at {here}, {a.detail}"
    rest = f": probably they wait for {verb(a.ranks, 'it', 'them')}. Only stacks were found, and they show no waits."
    step = f"code: see what {ranks_text(a.ranks)} {verb(a.ranks, 'does', 'do')} at {here}"
    return did(case, a, what, rest, step, SWITCH_ON, deeds="stands elsewhere than the other ranks")


def odd_in_ras(case: Case, a: Accusation) -> Words:
    rest = ": probably the others wait for it, if the job stands still. Nothing else was recorded."
    return did(case, a, a.accused[0].text, rest, "ask RAS again: what stays as it is in two answers hangs", SWITCH_ON)


def slow(case: Case, a: Accusation) -> Words:
    what = f"{verb(a.ranks, 'keeps', 'keep')} the others waiting: {a.detail} of the time"
    work = f"profile what {ranks_text(a.ranks)} {verb(a.ranks, 'does', 'do')} between collectives"
    nodes = dict.fromkeys(case.job.nodes[rank] for rank in a.ranks[:2] if rank in case.job.nodes)
    look = [f"node: compare {n} with the others: clocks, temperature, nvidia-smi -q -d PERFORMANCE" for n in nodes]
    steps = [f"{work} (data loading, garbage collection, a throttled GPU or CPU)", *look]
    return did(case, a, what, "; nothing hangs.", *steps, deeds={x.rank: x.text for x in a.accused})
