"""What the other side of a send or receive is doing about it: joined, queued behind something, or never launched."""

from dataclasses import dataclass

from hangscope.diagnosis.align.p2p_matching import other_side
from hangscope.diagnosis.waits.progress import Place, Progress, Scope, Unit
from hangscope.model import UNKNOWN, Kind, State


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The other side of one send or receive, with the peer's `row` where it recorded one.

    `common_start`: whether both sides could be counted from the same point.
    """

    peer: int
    place: Place
    row: int | None = None
    common_start: bool = True


def counterparts(unit: Unit, progress: Progress) -> list[tuple[int, Counterpart]]:
    """For every send and receive inside `unit` (by row): its counterpart. A receive from any source has none."""
    ops = progress.job.ops
    rows = list(unit.rows)
    kinds, destinations, sources = (ops.column(name)[rows].tolist() for name in ("kind", "destination", "source"))
    found: list[tuple[int, Counterpart]] = []
    for row, kind, destination, source in zip(rows, kinds, destinations, sources, strict=True):
        peer = {Kind.SEND.value: destination, Kind.RECV.value: source}.get(kind, UNKNOWN)
        if peer != UNKNOWN:
            found.append((row, counterpart_of(row, unit.rank, peer, progress)))
    return found


def counterpart_of(row: int, rank: int, peer: int, progress: Progress) -> Counterpart:
    """The other side of one send or receive, finished or not."""
    other = progress.of.get(peer)
    if other is None or other.source != "dump" or other.scope is Scope.CUT:
        return Counterpart(peer, Place.NOT_KNOWN, common_start=False)
    found = other_side(progress.alignment, row, rank, peer)
    if found.row is None:
        missing = Place.NOT_LAUNCHED if other.scope is Scope.WHOLE else Place.NOT_KNOWN
        return Counterpart(peer, missing, common_start=found.common_start)
    if progress.alignment.unlaunched[found.row]:
        return Counterpart(peer, Place.NOT_LAUNCHED, common_start=found.common_start)
    if progress.job.ops.column("state")[found.row] == State.COMPLETED:
        return Counterpart(peer, Place.COMPLETED, found.row, found.common_start)
    inside = any(found.row in unit.rows for unit in other.inside)
    return Counterpart(peer, Place.INSIDE if inside else Place.QUEUED, found.row, found.common_start)
