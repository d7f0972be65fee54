"""From one look at a server to the next: whether it moves, is idle, is stuck, or nobody can tell.

A replica is stuck where requests run, no counter has moved, and that was so at every look for the threshold. A look
that comes later than the threshold after the one before begins anew: what happened in between is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from hangscope.recorder.probe.server_metrics import Replica

TIMES_PREFILL = 4.0
"""While a request waits for its first token, so many thresholds."""
MOST_REPLICAS = 1024


class Says(IntEnum):
    """The exit status of `hangscope probe`."""

    MOVES = 0
    STUCK = 1
    CANNOT_TELL = 2


@dataclass(frozen=True, slots=True)
class Look:
    """The answer of one look, why, and what the next one needs to know."""

    says: Says
    why: str
    state: Mapping[str, Any]


def look(found: Mapping[str, Replica], before: Mapping[str, Any], now: float, threshold_s: float) -> Look:
    """Judge what a server says now by what was remembered of the looks before."""
    if not any(replica.running is not None for replica in found.values()):
        return Look(Says.CANNOT_TELL, "its metrics have no number of running requests", {})
    if not any(replica.moves_by for replica in found.values()):
        return Look(Says.CANNOT_TELL, "its metrics have no counter of tokens", {})
    remembered = _remembered(before, now, threshold_s)
    state: dict[str, Any] = {}
    stuck = []
    running = 0.0
    waiting = 0.0
    for name, replica in list(found.items())[:MOST_REPLICAS]:
        since = _still_since(replica, remembered.get(name), now)
        state[name] = {"counters": replica.moves_by, "since": since}
        running += replica.running or 0.0
        waiting += replica.waiting
        patience = threshold_s * (TIMES_PREFILL if replica.prefills else 1.0)
        if since is not None and now - since >= patience:
            stuck.append(_stuck(name, replica, now - since))
    kept = {"at": now, "replicas": state}
    if stuck:
        return Look(Says.STUCK, "; ".join(stuck), kept)
    if not running and not waiting:
        return Look(Says.MOVES, "no request runs: idle", kept)
    still = max((now - each["since"] for each in state.values() if each["since"] is not None), default=0.0)
    return Look(Says.MOVES, _moves(running, waiting, still, first=not remembered), kept)


def _moves(running: float, waiting: float, still_s: float, *, first: bool) -> str:
    requests = f"{running:.0f} running" + (f", {waiting:.0f} waiting" if not running else "")
    if first:
        return f"{requests}; the first look, or the one before is older than the threshold"
    return requests + (f", no new token for {still_s:.0f} s" if still_s else ", tokens come")


def _stuck(name: str, replica: Replica, seconds: float) -> str:
    of = f"replica {name}: " if name else ""
    waiting = f", {replica.waiting:.0f} waiting" if not replica.running else ""
    return f"{of}{replica.running or 0:.0f} running{waiting}, and no new token for {seconds:.0f} s"


def _remembered(before: Mapping[str, Any], now: float, threshold_s: float) -> Mapping[str, Any]:
    """What the last look saw, where it is of the same time: not too old, and not of a clock that was set back."""
    at = before.get("at")
    seen = before.get("replicas")
    if not isinstance(at, int | float) or not isinstance(seen, dict):
        return {}
    return seen if 0 <= now - at <= threshold_s else {}


def _still_since(replica: Replica, before: object, now: float) -> float | None:
    """Since when requests have run, or waited while none runs, and nothing has moved; None where there is none."""
    if not replica.running and not replica.waiting:
        return None
    if not isinstance(before, dict) or before.get("counters") != replica.moves_by:
        return now
    since = before.get("since")
    return float(since) if isinstance(since, int | float) and since <= now else now
