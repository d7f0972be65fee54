"""What a dump says before its entries: who belongs to which group, and how far each group's counters got."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hangscope.model.numbers import integer
from hangscope.reader.dumps.raw_dump import Counters, Membership, Problem
from hangscope.safeio.limits import MOST_GROUPS

_RANKS = re.compile(r"\s*(\[?)\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)?\s*(\]?)\s*")
_NUMBER = re.compile(r"-?\d{1,18}")
_MOST_RANKS = 1_000_000
_HIGHEST_RANK = 999_999_999
_LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """What stands beside the entries of a dump."""

    version: str
    library_version: str
    own_rank: int | None
    memberships: tuple[Membership, ...]
    status: dict[int, Counters]
    problems: tuple[Problem, ...]


def read_header(top: dict[Any, Any], partial: frozenset[int]) -> Header:
    """The header in a dump's table; what the file broke off in (`partial`) is left out."""
    problems: list[Problem] = []
    if type(top.get("entries", [])) is not list:
        problems.append(Problem("entries", "is no list"))
    own = top.get("rank")
    return Header(
        version=text_of(top.get("version")),
        library_version=text_of(top.get("comm_lib_version", top.get("nccl_version"))),
        own_rank=own if type(own) is int and 0 <= own <= _HIGHEST_RANK else None,
        memberships=memberships(top.get("pg_config"), problems, partial),
        status=statuses(top.get("pg_status"), problems, partial),
        problems=tuple(problems),
    )


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
        if id(line) in partial:
            continue
        if listed > _MOST_RANKS:
            problems.append(Problem("pg_config", f"lists more than {_MOST_RANKS} members; the rest was left out"))
            break
        membership = None
        if type(line) is dict:
            membership = _named_group(key, line, problems)
        elif type(line) in (list, tuple) and _number(key) is not None:
            membership = _numbered_group(key, line, problems)
        else:
            problems.append(_problem_in_config(key, "says nothing about a group"))
        if membership is not None:
            found.append(membership)
            listed += membership.size or 0
    return tuple(found)


def _named_group(key: Any, line: dict[Any, Any], problems: list[Problem]) -> Membership | None:
    """A line of torch 2.4 and later; None where it says nothing."""
    ranks = line.get("ranks")
    known = _ranks(ranks)
    if known is None:
        problems.append(_problem_in_config(key, "`ranks` is no list of ranks" if "ranks" in line else "no `ranks`"))
    name = line.get("name", key)
    name = name if type(name) is str else str(key)
    desc = line.get("desc")
    desc = desc if type(desc) is str else ""
    if not name and not desc:
        return None
    # torchcomms before its 2026 releases writes 0,1,2 without brackets, counted within the group: a size only.
    counted = type(ranks) is str and "[" not in ranks
    return Membership(name, desc, known if known and not counted else None, size=len(known) if known else None)


def _numbered_group(key: Any, line: Any, problems: list[Problem]) -> Membership:
    """A line of torch 2.3."""
    known = _ranks(line)
    if known is None:
        problems.append(_problem_in_config(key, "is no list of ranks"))
    return Membership(None, "", known or None, pg_id=_number(key), size=len(known) if known else None)


def _problem_in_config(key: Any, text: str) -> Problem:
    return Problem(f"pg_config[{_short(key)}]", text)


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
    if not {int}.issuperset(map(type, value)) or not all(0 <= rank <= _HIGHEST_RANK for rank in value):
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
        return integer(value)
    return None


def _short(key: Any) -> str:
    text = key if type(key) is str else str(key) if type(key) is int and abs(key) < 1 << 62 else "?"
    return text if len(text) <= 40 else text[:39] + "…"
