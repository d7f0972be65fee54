"""Whose dump is it? A manifest says so, or the file's name, or the content.

A dump holds no rank. PyTorch appends it to the file's name, and even that number is the rank in the first NCCL group of
the process, which is not the global rank where a job starts with Gloo and makes NCCL groups later (2.2 to 2.14).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from hangscope.model import UNKNOWN, Kind
from hangscope.model.ranks_in_paths import rank_of_dump
from hangscope.reader.dumps.raw_dump import Membership, RawDump


def lines_of(raw: RawDump) -> list[Membership | None]:
    """For each group of a dump's entries, the line of its own `pg_config` about it."""
    by_number = {line.pg_id: line for line in raw.memberships if line.name is None}
    by_name: dict[str, list[Membership]] = defaultdict(list)
    for line in raw.memberships:
        if line.name is not None:
            by_name[line.name].append(line)
    found: list[Membership | None] = []
    for group in raw.groups:
        if group.name is None:
            found.append(by_number.get(group.pg_id))
            continue
        lines = by_name.get(group.name, [])
        same = [line for line in lines if line.desc == group.desc]
        found.append(same[0] if same else lines[0] if len(lines) == 1 else None)
    return found


@dataclass(frozen=True, slots=True)
class Claim:
    """The rank that a dump is read as, and what speaks against it. `rank` is None where nothing tells."""

    rank: int | None
    conflict: str = ""


class Sets:
    """Members as sets, each made once: most dumps of a job list the same members, and as the same object."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, ...], frozenset[int]]] = {}

    def of(self, members: tuple[int, ...]) -> frozenset[int]:
        found = self._known.get(id(members))
        if found is None:
            found = self._known[id(members)] = members, frozenset(members)  # whose id it is must not go away
        return found[1]


def claim(raw: RawDump, sets: Sets) -> Claim:
    """Manifest, then file name, then content; a name that the content contradicts is never believed in silence."""
    if raw.hint_rank is not None:
        return Claim(raw.hint_rank)
    content = rank_from_content(raw, sets)
    named = rank_of_dump(raw.file)
    if named is None:
        return Claim(content)
    tables = _own_tables(raw)
    if content is not None and content != named:
        return Claim(content, f"conflict: the file's name says rank {named}, its content says rank {content}")
    if content is None and tables and not all(named in sets.of(members) for members in tables):
        first = _first_group(raw)
        if first is not None and named not in first and named < len(first):
            # The number is the rank within the first NCCL group of the process.
            return Claim(
                first[named],
                f"conflict: the file's name says rank {named}, but its first group has ranks {_some(first)}; "
                f"read as rank {first[named]}, number {named} of that group",
            )
        return Claim(
            None, f"conflict: the file's name says rank {named}, which is not in the dump's own groups; not used"
        )
    return Claim(named)


def rank_from_content(raw: RawDump, sets: Sets) -> int | None:
    """The rank that only one process can have: its own side of every send and receive, or the one member that all its
    groups share."""
    if raw.own_rank is not None:
        return raw.own_rank
    columns = raw.columns
    kind = columns["kind"]
    own: set[int] = set()
    calls = np.flatnonzero(((kind == Kind.SEND) | (kind == Kind.RECV)) & (columns["own"] != UNKNOWN))
    lines = lines_of(raw) if len(calls) else []
    for group, number in set(zip(columns["group"][calls].tolist(), columns["own"][calls].tolist(), strict=True)):
        line = lines[group]
        if line is not None and line.members is not None:
            own.add(line.members[number] if number < len(line.members) else UNKNOWN)
    if own:
        return own.pop() if len(own) == 1 and UNKNOWN not in own else None
    tables = sorted(map(sets.of, _own_tables(raw)), key=len)
    common = tables[0].intersection(*tables[1:]) if len(tables) > 1 else ()
    return next(iter(common)) if len(common) == 1 else None


def _own_tables(raw: RawDump) -> list[tuple[int, ...]]:
    """The members of every group in the dump's own table: a process lists only groups that it is in."""
    return [line.members for line in raw.memberships if line.members]


def _first_group(raw: RawDump) -> tuple[int, ...] | None:
    """Members of the group that the process made first, where that is certain."""
    tables = _own_tables(raw)
    if len(set(tables)) == 1:
        return tables[0]
    line = next((line for group, line in zip(raw.groups, lines_of(raw), strict=True) if group.pg_id == 0), None)
    return line.members if line is not None else None


def _some(ranks: tuple[int, ...]) -> str:
    text = ", ".join(map(str, ranks[:4]))
    return f"{text} … {ranks[-1]}" if len(ranks) > 5 else ", ".join(map(str, ranks))
