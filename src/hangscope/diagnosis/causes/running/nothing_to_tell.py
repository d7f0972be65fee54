"""unknown: nothing hangs as far as can be seen, and not every rank was seen."""

from collections import Counter
from collections.abc import Iterator

from hangscope.diagnosis.accusation import LOW, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.advice import COLLECT, SWITCH_ON
from hangscope.diagnosis.causes.shared.progress_made import makes_progress
from hangscope.diagnosis.causes.shared.storage_words import mount_text, storage_findings, storage_step
from hangscope.diagnosis.evidence.code_lines import place
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Gap, Source
from hangscope.text import plural, sentence, short, verb

NOTHING_TO_TELL = Grounds(
    "nothing_to_tell",
    Layer.NO_CAUSE,
    LOW,
    "progress was not seen on every rank, so whether the job is healthy is unknown",
)

_SHOWN = 3


def propose(case: Case) -> Iterator[Accusation[None]]:
    """That nobody can tell, where there is anything at all to look at."""
    if _is_anything_recorded(case) or _is_anything_wrong(case):
        yield Accusation(NOTHING_TO_TELL, CauseKind.UNKNOWN, None, hang=False, conclusive=False)


def _is_anything_recorded(case: Case) -> bool:
    job = case.job
    named = job.dumps or job.facts.processes or job.facts.log_ranks or case.stacks.of_all(job.ranks)
    return bool(len(job.ops) or named or job.facts.gpu_cores)


def _is_anything_wrong(case: Case) -> bool:
    facts = case.job.facts
    return bool(case.job.gaps or facts.failures or facts.errors or facts.unknown_texts)


def words(case: Case, accusation: Accusation[None]) -> Words:
    del accusation  # it says nothing that the case does not
    text = _what(case)
    if case.job.facts.unknown_texts:
        return _nothing_known(case)
    step = storage_step(case, case.storage.ranks)
    return Words(
        headline=text,
        summary=f"{sentence(text)}.",
        why=[*storage_findings(case, case.storage.ranks), *_findings(case)],
        steps=[step] if step is not None else [COLLECT if case.job.dumps else SWITCH_ON],
    )


_LOOKED_FOR = (
    "looked for lines of PyTorch, NCCL, Gloo, JAX, Horovod, HCCL, oneCCL, Neuron, MPI, launchers, schedulers, engines, "
    "file systems and the kernel, and for lines that count steps"
)
_WOULD_HELP = "give the whole log of every rank and of the launcher, and dmesg of the nodes"


def _nothing_known(case: Case) -> Words:
    """Texts in which no line is known: what was looked for, and what would help."""
    texts = case.job.facts.unknown_texts
    lines = plural(sum(count for _, count in texts), "line")
    where = texts[0][0] if len(texts) == 1 else plural(len(texts), "file")
    text = f"cannot tell: nothing in the {lines} of {where} says what became of a job"
    findings = [Finding(_LOOKED_FOR, tuple(Source(file) for file, _ in texts[:_SHOWN]))]
    return Words(text, f"{sentence(text)}.", findings, steps=[_WOULD_HELP, SWITCH_ON])


def _what(case: Case) -> str:
    blocked = case.storage.ranks
    if blocked:
        wait = case.storage.of(blocked[0])
        where = f" on {mount_text(wait)}" if wait is not None and case.storage.same_mount(blocked) and wait.type else ""
        return f"cannot tell: {ranks_text(blocked)} {verb(blocked, 'is', 'are')} blocked on files{where}"
    without_dumps = None if case.job.dumps else _without_dumps(case)
    if without_dumps is not None:
        return without_dumps
    dumped = case.job.dumps
    unseen = sorted(set(case.job.ranks) - set(dumped))
    if unseen and dumped:
        return f"cannot tell: nothing hangs on {ranks_text(dumped)}, and there is no evidence from {ranks_text(unseen)}"
    if len(case.job.ops):
        return "cannot tell: no operation hangs, and progress was not seen on every rank"
    return "cannot tell: no recording and no line that says what the ranks were doing"


def _without_dumps(case: Case) -> str | None:
    """What there is instead of a recording, where that is of one sort."""
    facts = case.job.facts
    if case.stacks.of_all(case.job.ranks) and not facts.log_ranks:
        stacks = plural(len({stack.rank for stack in facts.stacks if stack.rank is not None}), "rank")
        return f"only stacks of {stacks} were found; no rank stands out"
    if facts.ras:
        return "cannot tell: NCCL's RAS points to no rank, and nothing was recorded"
    absent = {gap.node for gap in case.job.gaps if gap.node and _is_of_manifest(gap)}
    if absent and not facts.log_ranks:
        return f"cannot tell: nothing came from {plural(len(absent), 'node')}, and no rank was recorded elsewhere"
    unusable = [gap for gap in case.job.gaps if gap.source]
    if unusable and not facts.log_ranks:
        return f"cannot tell: {plural(len(unusable), 'file')} could not be used, and nothing else was found"
    return None


def _is_of_manifest(gap: Gap) -> bool:
    """Whether the list of an incident's nodes says it: of a node that gave nothing."""
    return gap.rank is None and gap.source is not None and gap.source.file.rpartition("/")[2] == "incident.json"


def _findings(case: Case) -> list[Finding]:
    job = case.job
    not_seen = case.once(makes_progress).limit
    findings = [Finding(not_seen)] if not_seen else []
    for error in job.facts.errors[:_SHOWN]:
        findings.append(Finding(f"rank {error.rank}: {error.type}: {short(error.message)}", (error.source,)))
    if len(job.ops):
        operations = plural(len(job.ops), "recorded operation")
        findings.append(Finding(f"nothing hangs in {operations} of {ranks_text(job.dumps)}"))
    else:
        findings += _where_threads_are(case)
    return findings


def _where_threads_are(case: Case) -> list[Finding]:
    stacks = case.stacks.of_all(case.job.ranks)
    if not stacks:
        return []
    places = Counter(place(stack.frames) for stack in stacks.values()).most_common(_SHOWN)
    where = "; ".join(f"{plural(count, 'rank')} at {name}" for name, count in places if name)
    return [Finding(f"main threads are at: {where}", (next(iter(stacks.values())).source,))]


CAUSE = Cause(propose, words, (NOTHING_TO_TELL,), Asked.OF_A_JOB_THAT_RUNS)
