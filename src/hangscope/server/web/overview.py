"""How the fleet is doing: what hung lately and by kind, what waited, what is open, who is suspect, what hangs now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, cast, exists, func, select

from hangscope.server.store.tables import INCIDENTS, ISSUES, JOBS
from hangscope.server.web import lists
from hangscope.verdict_words import NO_TROUBLE

DAYS = 30
_DAY_S = 86400.0
_NOW_S = 6 * 3600.0
"""A job whose end nobody saw, and that hung so lately, counts as one that hangs now."""
WIDTH = 1000
HEIGHT = 130
_BASE = 126
KINDS = ("gpu", "network", "dead", "frozen", "resources", "absent", "mismatch", "deadlock", "shift", "slow", "unknown")


def overview(connection: Connection, project_id: int, now: float) -> dict[str, Any]:
    mine = INCIDENTS.c.project_id == project_id
    trouble = and_(mine, INCIDENTS.c.outcome.is_not(None), INCIDENTS.c.outcome.not_in(NO_TROUBLE))
    first = (now // _DAY_S - DAYS + 1) * _DAY_S
    day = cast(INCIDENTS.c.happened_at - first, BigInteger) // int(_DAY_S)
    counted = connection.execute(
        select(day.label("day"), INCIDENTS.c.kind, func.count().label("number"))
        .where(trouble, INCIDENTS.c.happened_at >= first)
        .group_by(day, INCIDENTS.c.kind)
    )
    by_day: Counter[tuple[int, str]] = Counter()
    for row in counted:
        by_day[min(max(row.day, 0), DAYS - 1), row.kind if row.kind in KINDS else "unknown"] += row.number
    waited = connection.execute(
        select(func.sum(INCIDENTS.c.waited_s * JOBS.c.world_size))
        .join(JOBS, JOBS.c.id == INCIDENTS.c.job_id)
        .where(trouble, INCIDENTS.c.happened_at >= first)
    ).scalar()
    is_open = (ISSUES.c.project_id == project_id, ISSUES.c.merged_into.is_(None), ISSUES.c.state == "open")
    return {
        "chart": chart(by_day, first) if by_day else None,
        "days": DAYS,
        "incidents": sum(by_day.values()),
        "gpu_hours": None if waited is None else float(waited) / 3600,
        "open_issues": connection.execute(select(func.count()).select_from(ISSUES).where(*is_open)).scalar_one(),
        "issues": lists.issues(connection, project_id, "open", most=5),
        "hanging": _hanging(connection, project_id, now),
        "recent": lists.incidents(connection, project_id, lists.Filters(), 8),
        "has_jobs": connection.execute(select(exists().where(JOBS.c.project_id == project_id))).scalar_one(),
    }


def _hanging(connection: Connection, project_id: int, now: float) -> list[dict[str, Any]]:
    """Jobs that hung lately and of which no end is known, each with its newest incident."""
    found = lists.incidents(connection, project_id, lists.Filters(outcome="hang", happened_after=now - _NOW_S))
    numbers = {each["job_id"] for each in found if each["job_id"] is not None}
    ended = set(
        connection.execute(select(JOBS.c.id).where(JOBS.c.id.in_(numbers), JOBS.c.ended_at.is_not(None))).scalars()
    )
    newest = {each["job_id"]: each for each in reversed(found) if each["job_id"] in numbers - ended}
    return sorted(newest.values(), key=lambda each: -each["happened_at"])


def chart(by_day: Mapping[tuple[int, str], int], first: float) -> dict[str, Any]:
    """A column a day, of a part for each kind; what is drawn is decided here."""
    totals: Counter[int] = Counter()
    for (day, _), count in by_day.items():
        totals[day] += count
    most = max(totals.values())
    step = WIDTH / DAYS
    bars = []
    for day in range(DAYS):
        top = float(_BASE)
        for kind in KINDS:
            count = by_day.get((day, kind), 0)
            if not count:
                continue
            height = count / most * (_BASE - 14)
            top -= height
            date = _date(first + day * _DAY_S)
            place = {"x": round(day * step + 2, 1), "y": round(top, 1)}
            size = {"width": round(step - 4, 1), "height": round(max(1.0, height), 1)}
            bars.append({**place, **size, "kind": kind, "name": f"{date}: {count} {kind}"})
    kinds = [kind for kind in KINDS if any(each == kind for _, each in by_day)]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "base": _BASE,
        "most": most,
        "bars": bars,
        "kinds": [(kind, sum(count for (_, each), count in by_day.items() if each == kind)) for kind in kinds],
        "first": _date(first),
        "last": _date(first + (DAYS - 1) * _DAY_S),
    }


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d")
