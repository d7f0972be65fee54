"""Which groups are the same on different ranks.

Identity is the name and the member set: `split_group` gives one name to disjoint groups, and the number a process gives
its groups (`pg_id`) means nothing on another rank. Where a dump does not say who belongs to a group (Gloo; torch 2.2; a
table that is filled only when a communicator is made), another rank's table that lists this rank is used, and only then
the ranks that recorded the group; those that left no dump may belong to it too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from hangscope.model import UNKNOWN, Gap, Group
from hangscope.model.numbers import integer, is_number
from hangscope.reader.dumps.raw_dump import LocalGroup, Membership, RawDump
from hangscope.reader.join.dump_owner import Sets, lines_of

Members = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Joined:
    """The groups of the job, and for each dump which of them its own are."""

    groups: tuple[Group, ...]
    local: tuple[tuple[int, ...], ...]
    """For each dump: local group → index into `groups`."""
    orders: tuple[tuple[Members | None, ...], ...]
    """For each dump: local group → global ranks by their number within the group, None where that is not known."""
    by_pg_id: tuple[Mapping[int, int], ...]
    """For each dump: the process's own number of a group → index into `groups`."""
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class _Key:
    """What makes a group one group."""

    backend: str
    """Gloo's and NCCL's halves of one process group count apart, so they are two groups here."""
    name: str | None
    members: frozenset[int] | None
    serial: int = 0
    """Groups of one name and set in one process: 0 is the newest. Without names: the order in which they were made."""
    pool: str = ""
    """Tells groups without any table apart: by their description, or by their number where they have no name."""


@dataclass(slots=True)
class _Found:
    """Everything that the dumps say about one group."""

    members: Members | None = None
    first_rank: int = UNKNOWN
    members_seen: bool = False
    name: str = ""
    desc: str = ""
    ranks: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    open: Members = ()
    several: bool = False
    """Whether two ranks have one number within it, so that it is more than one group."""


@dataclass(frozen=True, slots=True)
class _Mention:
    """One group in one dump, by its entries (`slot` is its local index) or by the table alone."""

    dump: int
    rank: int
    backend: str
    slot: int | None
    name: str | None
    desc: str
    pg_id: int | None
    serial: int
    line: Membership | None

    @property
    def is_default(self) -> bool:
        if self.name is None:
            return self.pg_id == 0
        return self.desc == "default_pg" or (self.name == "0" and self.desc in ("", "undefined"))


def join(dumps: Sequence[tuple[int, RawDump]], world: Members) -> Joined:
    """Joins the groups of all dumps, which come sorted by rank. `world` is every rank of the job."""
    mentions = [mention for index, (rank, raw) in enumerate(dumps) for mention in _mentions(index, rank, raw)]
    keys, found = _keys(mentions)
    _count_own_numbers(dumps, mentions, keys, found)
    defaults = {key for mention, key in zip(mentions, keys, strict=True) if mention.is_default}
    gaps = [*_infer_members(found, defaults, world), *_disagreements(found)]
    _add_ranks_without_dump(found, defaults, set(world) - {mention.rank for mention in mentions})
    groups, position = _in_order(found)

    local: list[dict[int, int]] = [{} for _ in dumps]
    orders: list[dict[int, Members | None]] = [{} for _ in dumps]
    named: list[list[tuple[_Mention, int]]] = [[] for _ in dumps]
    for mention, key in zip(mentions, keys, strict=True):
        index = position[key]
        named[mention.dump].append((mention, index))
        if mention.slot is not None:
            local[mention.dump][mention.slot] = index
            orders[mention.dump][mention.slot] = _order(mention, groups[index], world)
    return Joined(
        groups=groups,
        local=tuple(map(_by_slot, local)),
        orders=tuple(map(_by_slot, orders)),
        by_pg_id=tuple(_by_pg_id(raw, mentioned) for (_, raw), mentioned in zip(dumps, named, strict=True)),
        gaps=tuple(gaps),
    )


def _by_slot(values: Mapping[int, T]) -> tuple[T, ...]:
    return tuple(values[slot] for slot in range(len(values)))


def _in_order(found: Mapping[_Key, _Found]) -> tuple[tuple[Group, ...], dict[_Key, int]]:
    """(the groups in the order in which they are shown, the place of each among them)."""
    same = _without_backend(found)
    order = sorted((key for key in found if key not in same), key=lambda key: _sort_key(key, found[key]))
    position = {key: index for index, key in enumerate(order)}
    position.update((key, position[target]) for key, target in same.items())
    return tuple(_group(index, key, found[key]) for index, key in enumerate(order)), position


def _mentions(index: int, rank: int, raw: RawDump) -> list[_Mention]:
    described = zip(raw.groups, lines_of(raw), _serials(raw.groups), strict=True)
    mentions = [
        _Mention(index, rank, raw.backend, slot, group.name, group.desc, group.pg_id, serial, line)
        for slot, (group, line, serial) in enumerate(described)
    ]
    used = {id(mention.line) for mention in mentions}
    for line in raw.memberships:
        if id(line) not in used:
            mentions.append(_Mention(index, rank, raw.backend, None, line.name, line.desc, line.pg_id, 0, line))
    if any(line.name is None for line in raw.memberships):
        mentions = _number_unnamed(mentions)
    return mentions


def _serials(groups: Sequence[LocalGroup]) -> list[int]:
    """0 for the newest group of a name in a process, 1 for the one before: a restart in the process reuses names."""
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for group in groups:
        if group.name is not None and group.pg_id is not None and group.pg_id >= 0:
            numbers[group.name, group.desc].add(group.pg_id)
    order: dict[tuple[object, ...], int] = {
        (*named, pg_id): serial
        for named, pg_ids in numbers.items()
        for serial, pg_id in enumerate(sorted(pg_ids, reverse=True))
    }
    return [order.get((group.name, group.desc, group.pg_id), 0) for group in groups]


def _number_unnamed(mentions: list[_Mention]) -> list[_Mention]:
    """torch 2.3 has no names: groups of the same members are numbered in the order in which they were made, which is
    the same on all of them."""
    made: dict[frozenset[int], int] = defaultdict(int)
    serials: dict[int, int] = {}
    lines = [mention.line for mention in mentions if mention.line is not None and mention.line.members]
    for line in sorted(lines, key=lambda line: line.pg_id or 0):
        members = frozenset(line.members or ())
        serials[id(line)] = made[members]
        made[members] += 1
    return [replace(mention, serial=serials.get(id(mention.line), mention.serial)) for mention in mentions]


def _keys(mentions: Sequence[_Mention]) -> tuple[list[_Key], dict[_Key, _Found]]:
    """Gives every mention its group: first those with a table, because the others may lean on them."""
    found: dict[_Key, _Found] = {}
    sets = Sets()
    by_table = [_key_by_table(mention, sets, found) for mention in mentions]
    lenders = _lenders(found, {m.name or "" for m, key in zip(mentions, by_table, strict=True) if key is None})
    keys: list[_Key] = []
    for mention, key in zip(mentions, by_table, strict=True):
        keys.append(_key_without_table(mention, lenders, found) if key is None else key)
    return keys, found


def _key_by_table(mention: _Mention, sets: Sets, found: dict[_Key, _Found]) -> _Key | None:
    members = mention.line.members if mention.line is not None else None
    if not members:
        return None
    key = _Key(mention.backend, mention.name, sets.of(members), mention.serial)
    _note(found, key, mention, members)
    return key


def _lenders(found: Mapping[_Key, _Found], names: set[str]) -> dict[tuple[str, int], list[_Key]]:
    """(name, rank) → groups of that name whose table lists the rank."""
    lenders: dict[tuple[str, int], list[_Key]] = defaultdict(list)
    for key in found:
        if key.name is not None and key.name in names:
            for rank in key.members or ():
                lenders[key.name, rank].append(key)
    return lenders


def _key_without_table(
    mention: _Mention, lenders: Mapping[tuple[str, int], Sequence[_Key]], found: dict[_Key, _Found]
) -> _Key:
    lender = _lender(mention, lenders.get((mention.name or "", mention.rank), ()), found)
    if lender is not None:
        key = _Key(mention.backend, mention.name, lender.members, mention.serial)
        _note(found, key, mention, found[lender].members)
    else:
        pool = f"number {mention.pg_id}" if mention.name is None else mention.desc
        key = _Key(mention.backend, mention.name, None, mention.serial, pool)
        _note(found, key, mention, None)
    return key


def _note(found: dict[_Key, _Found], key: _Key, mention: _Mention, members: Members | None) -> None:
    entry = found.setdefault(key, _Found())
    if members and entry.members is None:
        entry.members = members
        entry.first_rank = min(members)
    elif members and mention.rank == entry.first_rank:
        entry.members = members
    if not entry.ranks:
        entry.name = mention.name if mention.name is not None else str(mention.pg_id)
    if mention.desc and entry.desc in ("", "undefined"):
        entry.desc = mention.desc
    entry.ranks.add(mention.rank)
    if mention.line is not None and mention.line.size:
        entry.sizes.add(mention.line.size)


def _lender(mention: _Mention, candidates: Sequence[_Key], found: Mapping[_Key, _Found]) -> _Key | None:
    """Of other ranks' (or backends') groups of the same name whose table lists this rank, the one that fits."""
    size = mention.line.size if mention.line is not None else None
    fitting = [key for key in candidates if key.serial == mention.serial and size in (None, len(key.members or ()))]
    same_backend = [key for key in fitting if key.backend == mention.backend]
    same_desc = [key for key in fitting if found[key].desc == mention.desc]
    for narrower in (same_backend, same_desc, fitting):
        if len({key.members for key in narrower}) == 1:
            return narrower[0]
    return None


def _count_own_numbers(
    dumps: Sequence[tuple[int, RawDump]], mentions: Sequence[_Mention], keys: Sequence[_Key], found: dict[_Key, _Found]
) -> None:
    """Groups without names are pooled by their number; the sides of their sends show where that joins several."""
    owners: dict[tuple[_Key, int], int] = {}
    for mention, key in zip(mentions, keys, strict=True):
        if key.name is None and key.members is None and mention.slot is not None:
            columns = dumps[mention.dump][1].columns
            for own in np.unique(columns["own"][columns["group"] == mention.slot]).tolist():
                if own != UNKNOWN and owners.setdefault((key, own), mention.rank) != mention.rank:
                    found[key].several = True


def _infer_members(found: Mapping[_Key, _Found], defaults: set[_Key], world: Members) -> list[Gap]:
    """Members of groups without a table: the whole job for the default group, otherwise the ranks that recorded it."""
    gaps = []
    inferred: dict[str, list[str]] = defaultdict(list)
    for key, entry in found.items():
        if key.members is not None:
            continue
        label = entry.desc if entry.desc not in ("", "undefined") else f"group {entry.name}"
        doubt = _doubt(entry, world)
        if doubt:
            gaps.append(Gap(f"members of {label}", doubt))
            continue
        entry.members_seen = True
        if entry.sizes == {len(world)} or (key in defaults and not entry.sizes):
            entry.members = world
        else:
            entry.members = tuple(sorted(entry.ranks))
            if not entry.sizes:
                inferred["unnamed" if key.name is None else key.backend].append(label)
    return [*gaps, *(_inferred_gap(kind, labels) for kind, labels in sorted(inferred.items()))]


def _doubt(entry: _Found, world: Members) -> str:
    """Why the members of a group without a table cannot be known; nothing where they can."""
    if entry.sizes:
        # A table that only counts: certain where the count fits, otherwise not known.
        if entry.sizes in ({len(world)}, {len(entry.ranks)}):
            return ""
        sizes = " or ".join(map(str, sorted(entry.sizes)))
        return f"its table says only that there are {sizes}; {len(entry.ranks)} recorded it"
    return "several groups have this number, and nothing else tells them apart" if entry.several else ""


def _inferred_gap(kind: str, labels: Sequence[str]) -> Gap:
    distinct = sorted(set(labels))
    some = ", ".join(distinct[:5]) + (" …" if len(distinct) > 5 else "")
    if kind == "unnamed":
        why = (
            "this version (torch 2.2) neither names groups nor lists members; groups of one number are taken as "
            "one, which is wrong where ranks made different groups"
        )
    else:
        why = f"{kind or 'the'} dumps do not list members; taken to be the ranks that recorded the group"
    return Gap(f"members of {some}", why)


def _add_ranks_without_dump(found: Mapping[_Key, _Found], defaults: set[_Key], silent: set[int]) -> None:
    """A rank without a dump recorded nothing, and yet belongs to groups: without it nobody would be missing there.

    The groups of one description are cut from one mesh, so that one that lacks members is a copy of a whole one, moved
    by a few ranks. Where that does not tell, every silent rank that no such group has may belong to it.
    """
    if not silent:
        return
    families: dict[tuple[str, str, int], list[_Found]] = defaultdict(list)
    for key, entry in found.items():
        without_table = key.members is None and key.name is not None and key not in defaults
        if without_table and entry.members_seen and entry.members:
            families[key.backend, entry.desc, key.serial].append(entry)
    for siblings in families.values():
        _complete_copies(siblings, silent)
        open_ranks = silent - {rank for entry in siblings for rank in entry.members or ()}
        for entry in siblings:
            entry.open = tuple(sorted(open_ranks))


def _complete_copies(siblings: Sequence[_Found], silent: set[int]) -> None:
    """Adds silent ranks to the groups that lack members, where all whole ones have one shape."""
    size = max(len(entry.members or ()) for entry in siblings)
    shapes = {_shape(entry.members or ()) for entry in siblings if len(entry.members or ()) == size}
    if len(shapes) > 1 or len(siblings) == 1:
        return
    shape = shapes.pop()
    for entry in siblings:
        members = entry.members or ()
        if len(members) < size:
            entry.members = _completed(members, shape, silent)


def _completed(members: Members, shape: Members, silent: set[int]) -> Members:
    """The only place of a shape at which it covers the members and otherwise silent ranks; else the members alone."""
    here = set(members)
    copies = [{min(here) - back + step for step in shape} for back in shape]
    fitting = [copy for copy in copies if here <= copy <= here | silent]
    return tuple(sorted(fitting[0])) if len(fitting) == 1 else members


def _shape(members: Members) -> Members:
    """Members as distances from the first."""
    return tuple(rank - members[0] for rank in members)


def _disagreements(found: Mapping[_Key, _Found]) -> list[Gap]:
    """Tables of one name that overlap without being equal."""
    by_name: dict[tuple[str, str, int], list[_Key]] = defaultdict(list)
    for key in found:
        if key.members is not None and key.name is not None:
            by_name[key.backend, key.name, key.serial].append(key)
    gaps = []
    for (_, name, _), keys in sorted(by_name.items()):
        if len(keys) == 1:
            continue
        counts = Counter(rank for key in keys for rank in key.members or ())
        shared = sorted(rank for rank, times in counts.items() if times > 1)
        if shared:
            who = ", ".join(map(str, shared[:8])) + (" …" if len(shared) > 8 else "")
            why = f"tables of different ranks overlap without being equal, at ranks {who}"
            gaps.append(Gap(f"conflict: members of group {name}", why))
    return gaps


def _without_backend(found: Mapping[_Key, _Found]) -> dict[_Key, _Key]:
    """A dump without entries names no backend: its groups are the ones that others recorded."""
    known: dict[tuple[str | None, frozenset[int] | None, int], list[_Key]] = defaultdict(list)
    for key in found:
        if key.backend:
            known[key.name, key.members, key.serial].append(key)
    same = {}
    for key in found:
        others = known.get((key.name, key.members, key.serial), []) if not key.backend else []
        if others:
            same[key] = min(others, key=lambda other: other.backend)
    return same


def _sort_key(key: _Key, entry: _Found) -> tuple[object, ...]:
    number = integer(entry.name) if is_number(entry.name) else -1
    return (number < 0, number, entry.name, key.serial, entry.desc, entry.members or (), key.backend, key.pool)


def _group(index: int, key: _Key, entry: _Found) -> Group:
    desc = entry.desc
    if key.serial and key.name is not None:
        desc = f"{desc or key.name} (made before, {key.serial})"
    return Group(index, entry.name, desc, entry.members, key.backend, entry.members_seen, entry.open, key.name is None)


def _order(mention: _Mention, group: Group, world: Members) -> Members | None:
    """Global ranks by their number in the group: the dump's own table first."""
    if mention.line is not None and mention.line.members:
        return mention.line.members
    if group.members is None or (group.members_seen and not mention.is_default):
        return None
    return world if group.members_seen else group.members


def _by_pg_id(raw: RawDump, mentioned: Sequence[tuple[_Mention, int]]) -> dict[int, int]:
    """The group behind each number of `pg_status`, which is the process's own count of its groups.

    Entries carry both. A group without entries is matched only where there is no choice: one number and one group are
    left, or all names are numbers that grow with the order in which the groups were made.
    """
    known = {m.pg_id: index for m, index in mentioned if m.slot is not None and m.pg_id is not None and m.pg_id >= 0}
    numbered = {m.pg_id: index for m, index in mentioned if m.slot is None and m.pg_id is not None}
    known = {**numbered, **known}
    open_numbers = sorted(set(raw.status) - set(known))
    rest = [(m, index) for m, index in mentioned if m.slot is None and m.pg_id is None]
    if len(open_numbers) == len(rest) == 1:
        known[open_numbers[0]] = rest[0][1]
    elif open_numbers and len(open_numbers) == len(rest):
        known = _numbered_as_named(known, open_numbers, mentioned)
    return known


def _numbered_as_named(
    known: dict[int, int], open_numbers: Sequence[int], mentioned: Sequence[tuple[_Mention, int]]
) -> dict[int, int]:
    names = [(m.name or "", index) for m, index in mentioned]
    if len({name for name, _ in names}) < len(names) or not all(is_number(name) for name, _ in names):
        return known
    made = [index for _, index in sorted(names, key=lambda pair: integer(pair[0]))]
    guess = dict(zip(sorted({*known, *open_numbers}), made, strict=False))
    return guess if all(guess.get(number) == index for number, index in known.items()) else known
