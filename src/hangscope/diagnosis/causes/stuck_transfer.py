"""network, gpu, absent, frozen: what NCCL's own transfers wait for in the end, by the ranks' black boxes."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.hardware import stuck_link
from hangscope.diagnosis.hardware.nccl_rings import Way
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits.proxy_waits import AbsentRank, NotKnown, SilentRank, StuckGpu, StuckLink
from hangscope.text import numbered


def transfers(case: Case) -> Iterator[Accusation]:
    """The link on which nothing moves although both ends would have it move, or the rank that all others wait for."""
    found, link = case.transfers, None
    if isinstance(found, NotKnown):
        return
    ends = {found.sender, found.receiver} if isinstance(found, StuckLink) else {found.rank}
    waits = [w for w in case.waits.all if ends & {*w.waiters, *w.blockers}]
    wait = max(waits, key=lambda w: (w.age_s or 0.0, len(w.inside)), default=None)
    if isinstance(found, StuckLink):
        title = numbered(found.operation.func, found.operation.seq)
        where = f"channel {', '.join(map(str, found.channels))}, step {found.step} of {found.steps}"
        text = f"rank {found.sender} has data for rank {found.receiver} in {title} ({where}), and nothing moves"
        path, _ = case.ports.likeliest([Way(found.sender, found.receiver, channel) for channel in found.channels])
        link = stuck_link.make(case, path.way, f"black boxes: {text}") if path else None
        accused = [Accused(found.sender, "network", title), Accused(found.receiver, "network")]
    else:
        kind, what = _what(found)
        text = f"rank {found.rank} {what}, by its black box"
        text += f"; {ranks_text(found.waiting)} wait for it" if found.waiting else ""
        accused = [Accused(found.rank, kind, text=what)]
    basis = Basis.LINK_STUCK if link else Basis.TRANSFERS
    doubts = [Doubt.SHOWN_BY_OTHERS] if isinstance(found, StuckLink) and found.both_ran is not Says.YES else ()
    sources = tuple(box.source for box in case.job.facts.blackboxes if box.rank in ends)
    findings, behind = [Finding(text, sources)], case.waits.all
    yield Accusation(basis, accused[0].kind, accused, wait, None, link, findings, doubts, explains=behind)


def _what(found: StuckGpu | AbsentRank | SilentRank) -> tuple[str, str]:
    if isinstance(found, SilentRank):
        return "frozen", "was not scheduled any more: it ended or is stopped"
    title = numbered(found.operation.func, found.operation.seq)
    if isinstance(found, StuckGpu):
        return "gpu", f"has data and room for {title}, and its GPU does not go on"
    return "absent", f"never launched {title}"
