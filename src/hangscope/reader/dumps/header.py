"""What a dump says before its entries: who belongs to which group, and how far each group's counters got."""

from __future__ import annotations

import re
from typing import Any

from hangscope.reader.dumps.raw_dump import Membership, Problem
from hangscope.safeio.limits import MOST_GROUPS

Counters = tuple["int | None", "int | None", "int | None"]

_RANKS = re.compile(r"\s*(\[?)\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)?\s*(\]?)\s*")
_NUMBER = re.compile(r"-?\d{1,18}")
_MOST_RANKS = 1_000_000
_LONGEST = 1 << 20


def text_of(value: Any) -> str:
    """A version as text, whatever a tool made of it."""
    if type(value) is str:
        return value[:100]
    return str(value) if type(value) in (int, float) and abs(value) < 1e9 else ""


def memberships(config: Any, problems: list[Problem], partial: frozenset[int] = frozenset()) -> tuple[Membership, ...]:
    """The lines of `pg_config`, as any version writes them.

    2.4+: name → {name, desc, ranks}, ranks a text like ``[0, 1]``. 2.3: number → [ranks]. A line that says nothing
    (Gloo: no name, no ranks) is left out.
    """
    if config is None:
        return ()
    if type(config) is not dict:
        problems.append(Problem("pg_config", "is no table of groups"))
        return ()
    found: list[Membership] = []
    listed = 0
    for key, line in list(config.items())[:MOST_GROUPS]:
        listed += found[-1].size or 0 if found else 0
        if id(line) in partial:
            continue
        if listed > _MOST_RANKS:
            problems.append(Problem("pg_config", f"lists more than {_MOST_RANKS} members; the rest was left out"))
            break
        place = f"pg_config[{_short(key)}]"
        if type(line) is dict:
            ranks, known = line.get("ranks"), _ranks(line.get("ranks"))
            name = line.get("name", key)
            name = name if type(name) is str else str(key)
            desc = line.get("desc")
            desc = desc if type(desc) is str else ""
            if known is None:
                problems.append(Problem(place, "`ranks` is no list of ranks" if "ranks" in line else "no `ranks`"))
            if not name and not desc:
                continue
            # torchcomms before its 2026 releases writes 0,1,2 without brackets, counted within the group: a size only.
            counted = type(ranks) is str and known is not None and "[" not in ranks
            members = known if known and not counted else None
            found.append(Membership(name, desc, members, size=len(known) if known else None))
        elif type(line) in (list, tuple) and _number(key) is not None:
            known = _ranks(line)
            if known is None:
                problems.append(Problem(place, "is no list of ranks"))
            found.append(Membership(None, "", known or None, pg_id=_number(key), size=len(known) if known else None))
        else:
            problems.append(Problem(place, "says nothing about a group"))
    return tuple(found)


def statuses(status: Any, problems: list[Problem], partial: frozenset[int] = frozenset()) -> dict[int, Counters]:
    """The lines of `pg_status`: last enqueued, started and completed, by the process's own number of the group."""
    if status is None:
        return {}
    if type(status) is not dict:
        problems.append(Problem("pg_status", "is no table of counters"))
        return {}
    found = {}
    for key, line in list(status.items())[:MOST_GROUPS]:
        pg_id = _number(key)
        if id(line) in partial:
            continue
        if pg_id is None or pg_id < 0 or type(line) is not dict:
            problems.append(Problem(f"pg_status[{_short(key)}]", "is no group with counters"))
            continue
        found[pg_id] = (
            _number(line.get("last_enqueued_collective")),
            _number(line.get("last_started_collective")),
            _number(line.get("last_completed_collective")),
        )
    return found


def _ranks(value: Any) -> tuple[int, ...] | None:
    """The ranks that a text or a list gives, in its order; None where it is neither, or names a rank twice."""
    if type(value) is str:
        return _parse(value)
    if type(value) not in (list, tuple) or len(value) > _MOST_RANKS:
        return None
    if not {int}.issuperset(map(type, value)) or not all(0 <= rank < 1_000_000_000 for rank in value):
        return None
    return _keep(tuple(value), tuple(value)) if len(set(value)) == len(value) else None


def _parse(text: str) -> tuple[int, ...] | None:
    known = _known.get(text)
    if known is not None:
        return known
    found = _RANKS.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None or bool(found[1]) != bool(found[3]):
        return None
    ranks = tuple(map(int, found[2].split(","))) if found[2] else ()
    if len(set(ranks)) != len(ranks):
        return None
    return _keep(text, ranks)


_known: dict[object, tuple[int, ...]] = {}
_kept = 0


def _keep(key: object, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Every rank of a job writes the same few lists: one of ten thousand ranks then exists once, not ten thousand
    times. What is kept is bounded."""
    global _kept
    if _kept > _MOST_RANKS or len(_known) > 10_000:
        _known.clear()
        _kept = 0
    known = _known.setdefault(key, ranks)
    _kept += len(ranks) if known is ranks else 0
    return known


def _number(value: Any) -> int | None:
    if type(value) is int:
        return value if abs(value) < 1 << 62 else None
    if type(value) is str and _NUMBER.fullmatch(value):
        return int(value)
    return None


def _short(key: Any) -> str:
    text = key if type(key) is str else str(key) if type(key) is int and abs(key) < 1 << 62 else "?"
    return text if len(text) <= 40 else text[:39] + "…"
