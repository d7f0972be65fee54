"""Joins the dumps of all ranks into one set of operations, whatever order they were read in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hangscope.model import UNKNOWN, ClaimedGroup, Dump, Gap, Group, GroupStatus, Operations, Source
from hangscope.model.numbers import MOST_DIGITS, integer
from hangscope.reader.dumps.normalise import COUNT_OP_IDS
from hangscope.reader.dumps.raw_dump import RawDump
from hangscope.reader.join.join_columns import join_columns
from hangscope.reader.join.pick_dumps import Owned, choose
from hangscope.reader.join.same_groups import Joined, join

NOTHING_KEPT = 1 << 62
"""In `first_kept`: the ring wrapped and holds no collective of this group at all."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """All dumps of a job as one.

    `ranks` is every rank that owns a dump or belongs to a group. `first_kept` says, for each rank and group of which
    older entries were lost, the smallest collective number that is still there: below it, a missing entry says nothing.
    `duplicates` names files that hold the same recording as another one (the second is the one that was used).
    """

    ops: Operations
    groups: tuple[Group, ...]
    dumps: Mapping[int, tuple[Dump, ...]]
    status: Mapping[tuple[int, int], GroupStatus]
    gaps: tuple[Gap, ...]
    ranks: tuple[int, ...]
    first_kept: Mapping[tuple[int, int], int]
    claimed: tuple[ClaimedGroup, ...] = ()
    duplicates: tuple[tuple[str, str], ...] = ()


def assemble(
    raws: Sequence[RawDump], *, expected_ranks: Iterable[int] | None = None, consume: bool = False
) -> Assembled:
    """Every dump given to its rank, groups joined, group-local numbers turned into global ranks, tables interned.

    `expected_ranks` are ranks that something else says exist. `consume` lets the dumps' own columns go on the way.
    """
    raws = sorted(raws, key=_order)
    gaps: list[Gap] = []
    expected = set() if expected_ranks is None else set(expected_ranks)
    used, duplicates = choose(raws, gaps)
    world = _world(used, expected)
    joined = join(used, world)
    gaps += joined.gaps
    gaps += [gap for rank, raw in used for gap in _problems(rank, raw)]
    gaps += _notes(used)
    dumps: dict[int, tuple[Dump, ...]] = {}
    status: dict[tuple[int, int], GroupStatus] = {}
    for index, (rank, raw) in enumerate(used):
        dumps[rank] = (*dumps.get(rank, ()), _dump(rank, raw))
        for pg_id, counters in raw.status.items():
            group = joined.by_pg_id[index].get(pg_id)
            if group is not None:
                status[rank, group] = GroupStatus(*counters, counts_op_ids=raw.backend in COUNT_OP_IDS)
    first_kept = _first_kept(used, joined)
    columns, tables = join_columns(used, joined, gaps, consume=consume)
    members = {rank for group in joined.groups for rank in group.members or ()}
    return Assembled(
        ops=Operations(columns, tables, joined.groups),
        groups=joined.groups,
        dumps=dumps,
        status=dict(sorted(status.items())),
        gaps=tuple(sorted(gaps, key=_gap_order)),
        ranks=tuple(sorted(members.union(dumps, expected))),
        first_kept=first_kept,
        claimed=_claimed(used),
        duplicates=tuple(sorted(duplicates)),
    )


def _order(raw: RawDump) -> tuple[str, ...]:
    return (raw.file, raw.digest, raw.role, str(raw.hint_rank), str(raw.node))


_MOST_FILLED = 100_000


def _world(used: Sequence[Owned], expected: set[int]) -> tuple[int, ...]:
    """Every rank of the job. Ranks are numbered from 0 without holes, so a rank 7 means that 0 to 6 exist."""
    known = expected.union(rank for rank, _ in used)
    lists = {id(line.members): line.members for _, raw in used for line in raw.memberships if line.members}
    known.update(*lists.values())
    if known and max(known) < _MOST_FILLED:
        known.update(range(max(known)))
    return tuple(sorted(known))


def _first_kept(used: Sequence[Owned], joined: Joined) -> dict[tuple[int, int], int]:
    kept: dict[tuple[int, int], int] = {}
    memberships: dict[tuple[str, int], list[int]] = {}
    for entry in joined.groups:
        for member in entry.members or ():
            memberships.setdefault((entry.backend, member), []).append(entry.index)
    for index, (rank, raw) in enumerate(used):
        lost = raw.first_record > 0 or raw.role == "poll"
        group, seq, launches = (raw.columns[name] for name in ("group", "seq", "launches"))
        oldest = np.full(len(joined.local[index]), NOTHING_KEPT)
        # A send carries the number of the collective before it, which itself may be gone.
        np.minimum.at(oldest, group, np.where(seq == UNKNOWN, NOTHING_KEPT, seq + (launches != 1)))
        for target, first in zip(joined.local[index], oldest.tolist(), strict=True):
            if first < NOTHING_KEPT and (lost or first > 1):
                kept[rank, target] = min(first, kept.get((rank, target), first))
        if lost:
            for target in memberships.get((raw.backend, rank), ()):
                kept.setdefault((rank, target), NOTHING_KEPT)
    return dict(sorted(kept.items()))


def _claimed(used: Sequence[Owned]) -> tuple[ClaimedGroup, ...]:
    """Which ranks list which members for a group of one name."""
    sources: dict[tuple[str, tuple[int, ...]], Source] = {}
    ranks: dict[tuple[str, tuple[int, ...]], set[int]] = {}
    for rank, raw in used:
        for line in raw.memberships:
            if line.name is not None and line.members:
                claim = line.name, line.members
                ranks.setdefault(claim, set()).add(rank)
                sources.setdefault(claim, Source(raw.file, f"pg_config[{line.name}]"))
    return tuple(ClaimedGroup(*claim, tuple(sorted(ranks[claim])), sources[claim]) for claim in sorted(ranks))


def _dump(rank: int, raw: RawDump) -> Dump:
    return Dump(
        rank=rank,
        file=raw.file,
        version=raw.version,
        backend=raw.backend,
        library_version=raw.library_version,
        records=raw.records,
        first_record=raw.first_record,
        timing=raw.timing,
        has_stacks=raw.has_stacks,
        complete=raw.complete,
        node=raw.node,
        role=raw.role,
    )


def _problems(rank: int, raw: RawDump) -> list[Gap]:
    gaps = [
        Gap(f"rank {rank} {problem.place}: {problem.text}", "", rank, raw.node, Source(raw.file, problem.place))
        for problem in raw.problems
    ]
    if not raw.complete:
        gaps.append(
            Gap(
                f"rank {rank}: the dump is truncated; the {len(raw)} entries before that were kept",
                raw.reason or "",
                rank,
                raw.node,
                Source(raw.file, f"byte {raw.broke_at}"),
            )
        )
    elif not len(raw) and raw.role != "poll":
        why = "the recorder was off, or nothing was launched; torch 2.7 to 2.10 writes such files unless a ring is set"
        gaps.append(Gap(f"rank {rank}: the dump has no entries", why, rank, raw.node, Source(raw.file)))
    return gaps


def _notes(used: Sequence[Owned]) -> list[Gap]:
    """What formats cannot say, once for all dumps that have it."""
    ranks_by_note: dict[str, list[int]] = {}
    for rank, raw in used:
        for note in raw.notes:
            ranks_by_note.setdefault(note, []).append(rank)
    return [
        Gap(f"sequence numbers of rank {ranks[0]}" + (f" and {len(ranks) - 1} others" if len(ranks) > 1 else ""), note)
        for note, ranks in ranks_by_note.items()
    ]


def _gap_order(gap: Gap) -> tuple[Any, ...]:
    source = gap.source or Source("")
    digits = re.sub(r"[^0-9]", "", source.place)[:MOST_DIGITS]
    return (
        gap.rank is None,
        gap.rank if gap.rank is not None else UNKNOWN,
        source.file,
        integer(digits) if digits else UNKNOWN,
        gap.what,
        gap.why,
    )
