"""mismatch, as Gloo says it: a rank got more bytes than its call asked for, and Gloo ended the process."""

from __future__ import annotations

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import ranks_text, sentence
from hangscope.model import GLOO_SIZE


def other_size(case: Case) -> Draft | None:
    """A rank that Gloo ended over a size. It is the odd one where all others recorded the same call there."""
    ended = {e.rank: e for e in case.job.facts.errors if e.type == GLOO_SIZE and e.rank is not None}
    if not ended:
        return None
    waits = [w for rank in ended for w in case.waits.waits_on(rank)]
    wait = max(waits, key=lambda w: len(w.inside), default=None)
    # Had one of the others passed another size, their dumps would disagree, and an earlier rule would have said so.
    agreed = wait is not None and len(ended) == 1 and len(wait.inside) >= 2 and set(wait.blockers) == set(ended)
    names = ranks_text(ended)
    where = f" in {case.title(wait)}" if wait is not None else ""
    what = f"expected another size than it was sent{where}"
    return Draft(
        kind="mismatch",
        headline=f"{names} {what}",
        summary=f"{sentence(names)} {what}: {next(iter(ended.values())).message}. Gloo ends a process over that, and "
        "its peers lose their connection.",
        confidence="medium" if agreed else "low",
        rule="mismatch: Gloo ended the rank over a size, and all others recorded the same call"
        if agreed
        else "mismatch: Gloo ended the rank over a size; whether it or its peer passed the wrong one is not recorded",
        culprits=dict.fromkeys(sorted(ended), what),
        wait=wait,
        why=[Finding(f"rank {rank}: {error.message}", (error.source,)) for rank, error in sorted(ended.items())],
        next_steps=[f"code: compare the sizes and types that {names} and the others pass{where or ' to the call'}"],
    )
