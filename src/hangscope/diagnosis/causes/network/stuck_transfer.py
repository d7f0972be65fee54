"""network: by the black boxes of both ends, the sender has data that the receiver waits for, and nothing moves."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.black_boxes import boxes_of, oldest_wait_of
from hangscope.diagnosis.causes.shared.port_steps import link_steps, ports_step
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.hardware.nccl_rings import Way
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.proxy_waits import StuckLink
from hangscope.text import numbered, sentence

LINK_STUCK = Grounds(
    "link_stuck",
    Layer.MISSED_RANKS,
    HIGH,
    "the black boxes of both ends show data that the sender has and the receiver is waiting for",
)


def propose(case: Case) -> Iterator[Accusation[StuckLink]]:
    """The link on which nothing moves although both ends would have it move."""
    found = case.transfers
    if not isinstance(found, StuckLink):
        return
    ends = (found.sender, found.receiver)
    path, _ = case.ports.likeliest([Way(*ends, channel) for channel in found.channels])
    yield Accusation(
        LINK_STUCK,
        CauseKind.NETWORK,
        found,
        [Accused(rank, CauseKind.NETWORK) for rank in ends],
        oldest_wait_of(case, ends),
        way=path.way if path is not None else Way(*ends),
        doubts=() if found.both_ran is Says.YES else [Doubt.SHOWN_BY_OTHERS],
        explains=case.waits.all,
    )


def words(case: Case, accusation: Accusation[StuckLink]) -> Words:
    found = accusation.facts
    way = accusation.way
    title = numbered(found.operation.func, found.operation.seq)
    where = f"channel {', '.join(map(str, found.channels))}, step {found.step} of {found.steps}"
    shows = f"rank {found.sender} has data for rank {found.receiver} in {title} ({where}), and nothing moves"
    text = f"data from rank {found.sender} never reaches rank {found.receiver}"
    return Words(
        headline=text,
        summary=f"{sentence(text)}: {shows}.",
        why=[Finding(shows, boxes_of(case, accusation.ranks))],
        each={found.sender: f"sends {title}, which never arrives", found.receiver: "waits for it"},
        steps=link_steps(case, way) or [ports_step(case, accusation.ranks)],
        link=f"black boxes: {shows}",
    )


CAUSE = Cause(propose, words, (LINK_STUCK,))
