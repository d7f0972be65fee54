"""What pages show of time: moments in words, and jobs and incidents on one axis, as SVG."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

WIDTH = 1000
_LANES = 12
_EDGE = 6
"""So that a mark at either end is whole."""
_DAY = 86400.0


def moment(at: float | None) -> str:
    """A time as people read it, in UTC; a dash where there is none."""
    if at is None:
        return "–"
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(at: float | None) -> str:
    """How long ago, roughly."""
    if at is None:
        return "–"
    seconds = max(0.0, time.time() - at)
    for size, name in ((_DAY, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return f"{seconds:.0f} s ago"


def time_axis(
    jobs: Sequence[tuple[float, float | None, str, str]],
    incidents: Sequence[tuple[float, str, str]],
    notes: Sequence[tuple[float, str]] = (),
) -> dict[str, Any] | None:
    """Jobs as bars and incidents as marks on one axis, from the first to the last of them; None where there are none.

    A job is (start, end, address, name), an incident (time, address, what it says), a note (time, what): as a line.
    """
    now = time.time()
    times = [job[0] for job in jobs] + [job[1] or now for job in jobs] + [incident[0] for incident in incidents]
    if not times:
        return None
    first = min(times)
    span = max(max(times) - first, 60.0)

    def place(at: float) -> float:
        return round(_EDGE + (at - first) / span * (WIDTH - 2 * _EDGE), 1)

    bars = [
        {
            "x": place(start),
            "width": max(2.0, round(place(end or now) - place(start), 1)),
            "y": 20 + number % _LANES * 8,
            "link": link,
            "name": name,
        }
        for number, (start, end, link, name) in enumerate(sorted(jobs, key=lambda job: job[0]))
    ]
    marks = [{"x": place(at), "link": link, "name": f"{moment(at)}: {said}"} for at, link, said in incidents]
    return {
        "width": WIDTH,
        "height": 20 + (_LANES * 8 if bars else 0) + 18,
        "bars": bars,
        "notes": [
            {"x": place(at), "name": f"{moment(at)}: {what}"} for at, what in notes if first <= at <= first + span
        ],
        "marks": marks,
        "first": moment(first),
        "last": moment(first + span),
    }
