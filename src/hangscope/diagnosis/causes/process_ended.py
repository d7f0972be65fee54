"""What the ends of processes say, where no recording shows who waits for them: dead, frozen, or a mismatch.

An end or a freeze that was seen; or Gloo ended a rank that got more bytes than its call asked for.
"""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.evidence.liveness import Is
from hangscope.diagnosis.verdict import Finding
from hangscope.model import GLOO_SIZE


def ended(case: Case) -> Iterator[Accusation]:
    """Ranks whose end or freeze was seen, where no recording shows an operation that waits for them."""
    hangs = case.hang.says is Says.YES
    seen = {
        rank: life
        for rank in sorted(set(case.job.ranks) - case.liveness.finished_cleanly)
        if (life := case.liveness.of(rank)).state in (Is.ENDED, Is.FROZEN) and life.seen
        # One that exited with status 0 did no harm, unless the others hang and it left nothing behind.
        if not life.clean or (hangs and rank not in case.job.dumps)
    }
    chosen = {rank: life for rank, life in seen.items() if life.state is Is.ENDED} or seen
    if not chosen:
        return
    kind, waits = chosen[min(chosen)].state.value, case.waits.all
    accused = [Accused(rank, kind, life=life) for rank, life in chosen.items()]
    findings = [finding for life in chosen.values() for finding in life.findings] or [Finding("its end was seen")]
    yield Accusation(Basis.END_SEEN, kind, accused, findings=findings, hang=hangs or bool(waits), explains=waits)


def gloo_size(case: Case) -> Iterator[Accusation]:
    """A rank that Gloo ended over a size. It is the odd one where all others recorded the same call there."""
    ended = {e.rank: e for e in case.job.facts.errors if e.type == GLOO_SIZE and e.rank is not None}
    if not ended:
        return
    waits = [w for rank in ended for w in case.waits.waits_on(rank)]
    wait = max(waits, key=lambda w: len(w.inside), default=None)
    # Had one of the others passed another size, their dumps would disagree; how it is split no dump of Gloo says.
    agreed = wait is not None and len(ended) == 1 and len(wait.inside) >= 2 and set(wait.blockers) == set(ended)
    agreed = agreed and wait is not None and "all_to_all" not in wait.name
    where = f" in {case.names.wait(wait)}" if wait is not None else ""
    # Of two sides nobody can say which one is wrong.
    other = wait.waiters if wait is not None and len(wait.inside) == 1 else ()
    accused, message = [Accused(r, "mismatch", where) for r in sorted({*ended, *other})], ended[min(ended)].message
    found = [Finding(f"rank {rank}: {e.message}", (e.source,)) for rank, e in sorted(ended.items())]
    doubts = () if agreed else [Doubt.OTHER_SIDE_NOT_SEEN]
    yield Accusation(Basis.REPORTED_SIZE, "mismatch", accused, wait, findings=found, doubts=doubts, detail=message)
