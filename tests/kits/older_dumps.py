"""Dumps of an older attempt of the same job, made from a rank's own dump of the present one.

What a restarted job finds in its folder is the dump that the attempt before left under the same name: the same program
on the same groups, minutes or hours earlier, that came less far, as far, or further, and was itself hung or not. The
file carries no word about its attempt, so all that can tell are its clock and what its peers recorded.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

Entry = dict[str, Any]
Dump = dict[str, Any]

MINUTE_NS = 60 * 10**9
TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def unpacked(data: bytes) -> tuple[Dump, bool]:
    """(a dump, whether it is JSON)."""
    if data[:1] == b"{":
        return json.loads(data), True
    return pickle.loads(data), False


def repacked(dump: Dump, as_json: bool) -> bytes:
    return json.dumps(dump, sort_keys=True).encode() if as_json else pickle.dumps(dump, protocol=2)


def pending(entry: Entry) -> bool:
    return entry["state"] != "completed" and not (entry["profiling_name"].startswith("gloo:") and entry["retired"])


def inside_a_batch(entries: list[Entry]) -> set[int]:
    """Positions of calls that a closing entry stands for: they read "scheduled" for ever, also when they finished."""
    keys = [(e["pg_id"], e["collective_seq_id"], e["p2p_seq_id"]) for e in entries]
    closed = {key: at for at, key in enumerate(keys) if entries[at]["profiling_name"].endswith("coalesced")}
    return {at for at, key in enumerate(keys) if closed.get(key, -1) > at}


def _finish(entries: list[Entry]) -> None:
    """Let everything complete 1 ms after it was launched, as far as this recorder writes such things."""
    inner = inside_a_batch(entries)
    timed = any(e["time_discovered_started_ns"] for e in entries)
    for at, entry in enumerate(entries):
        if at in inner or not pending(entry):
            continue
        entry["retired"] = True
        if not entry["profiling_name"].startswith("gloo:"):
            entry["state"] = "completed"
            entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 2_000_000
            if timed:
                entry["time_discovered_started_ns"] = entry["time_created_ns"] + 1_000_000


def _hang_in_the_last(entries: list[Entry]) -> None:
    """The last call (with all calls of its batch) never completes; everything before it has."""
    _finish(entries)
    if not entries:
        return
    last = entries[-1]
    last["retired"] = False
    last["time_discovered_completed_ns"] = None
    last.pop("duration_ms", None)
    if not last["profiling_name"].startswith("gloo:"):
        last["state"] = "started" if last["time_discovered_started_ns"] else "scheduled"


def _whole_batches(entries: list[Entry], keep: int) -> list[Entry]:
    """The first `keep` entries, and the rest of a batch that the cut would tear."""
    inner = inside_a_batch(entries)
    while 0 < keep < len(entries) and keep - 1 in inner:
        keep += 1
    return entries[: max(1, keep)]


def _advance(calls: list[Entry]) -> dict[str, int]:
    """By how much these calls of one group moved its counters."""
    pairs = [e["is_p2p"] or e["profiling_name"].endswith(":coalesced") for e in calls]
    return {
        "collective_seq_id": len({e["collective_seq_id"] for e, pair in zip(calls, pairs, strict=True) if not pair}),
        "p2p_seq_id": len({e["p2p_seq_id"] for e, pair in zip(calls, pairs, strict=True) if pair}),
        "op_id": len({e["op_id"] for e in calls}),
    }


def _longer(entries: list[Entry], tail: int) -> list[Entry]:
    """The last calls once more, behind themselves, with the numbers that they would have had."""
    made = list(entries)
    inner = inside_a_batch(entries)
    while len(entries) > tail and len(entries) - tail - 1 in inner:
        tail += 1  # a batch is repeated whole
    again = entries[-tail:]
    first, last = again[0], again[-1]
    steps = {group: _advance([e for e in again if e["pg_id"] == group]) for group in {e["pg_id"] for e in again}}
    pause = last["time_created_ns"] - first["time_created_ns"] + 50_000_000
    for number, entry in enumerate(copy.deepcopy(again), start=1):
        for name, step in steps[entry["pg_id"]].items():
            entry[name] += step
        entry["record_id"] = last["record_id"] + number
        for name in TIMES:
            entry[name] = entry[name] + pause if entry[name] else entry[name]
        made.append(entry)
    return made


def _count(dump: Dump, as_json: bool) -> None:
    """`pg_status` as this ring leaves it."""
    status: dict[str, dict[str, Any]] = {}
    inner = inside_a_batch(dump["entries"])
    for at, entry in enumerate(dump["entries"]):
        line = status.setdefault(
            str(entry["pg_id"]),
            {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
        )
        pair = entry["is_p2p"] or entry["profiling_name"].endswith(":coalesced")
        number = entry["p2p_seq_id"] if pair else entry["collective_seq_id"]
        line["last_enqueued_collective"] = number
        if at not in inner and entry["time_discovered_started_ns"]:
            line["last_started_collective"] = number
        if at not in inner and not pending(entry):
            line["last_completed_collective"] = number
    known = dump.get("pg_status", {})
    dump["pg_status"] = {
        number: {key: str(count) if as_json else count for key, count in line.items()}
        for number, line in status.items()
        if number in known
    }


def _moved(entries: list[Entry], back_ns: int) -> None:
    for entry in entries:
        for name in TIMES:
            entry[name] = entry[name] - back_ns if entry[name] else entry[name]
        if "thread_id" in entry:
            entry["thread_id"] = str(int(entry["thread_id"]) - 0x3000)


def _renumbered(dump: Dump) -> None:
    """Another creation order of groups: `pg_id` counts what one process made, and means nothing elsewhere."""
    for entry in dump["entries"]:
        entry["pg_id"] += 3
    dump["pg_status"] = {str(int(number) + 3): line for number, line in dump.get("pg_status", {}).items()}


def older(
    data: bytes,
    *,
    back_ns: int,
    keep: float = 1.0,
    ahead: int = 0,
    end: str = "same",
    stamped: bool = True,
    renumber: bool = False,
) -> bytes:
    """The dump that an attempt `back_ns` earlier left: the share `keep` of the ring, or `ahead` calls more than now.

    `end`: "same" as now, everything "done", or "hung" in its last call.
    """
    dump, as_json = unpacked(data)
    dump = copy.deepcopy(dump)
    entries: list[Entry] = dump.setdefault("entries", [])
    if entries:
        if keep < 1:
            entries = _whole_batches(entries, round(len(entries) * keep))
        if ahead:
            _finish(entries)
            entries = _longer(entries, min(ahead, len(entries)))
        if end == "done":
            _finish(entries)
        elif end == "hung":
            _hang_in_the_last(entries)
        dump["entries"] = entries
        if end != "same":
            _count(dump, as_json)
        _moved(entries, back_ns)
        if renumber:
            _renumbered(dump)
        if not stamped:
            _without_stamps(entries)
    return repacked(dump, as_json)


def _without_stamps(entries: list[Entry]) -> None:
    for entry in entries:
        entry["time_created_ns"] = 0
        entry["time_discovered_started_ns"] = None
        entry["time_discovered_completed_ns"] = None


def without_stamps(data: bytes) -> bytes:
    """The present dump, of which somebody took all times (a rewritten or redacted file)."""
    dump, as_json = unpacked(data)
    dump = copy.deepcopy(dump)
    _without_stamps(dump.get("entries", []))
    return repacked(dump, as_json)


def _variant(**how: Any) -> Callable[[bytes], bytes]:
    return lambda data: older(data, **how)


OLDER: dict[str, Callable[[bytes], bytes]] = {
    "old-same-10min": _variant(back_ns=10 * MINUTE_NS),
    "old-behind-hung-70s": _variant(back_ns=70 * 10**9, keep=0.6, end="hung"),
    "old-behind-done-10min": _variant(back_ns=10 * MINUTE_NS, keep=0.4, end="done"),
    "old-start-hung-5h": _variant(back_ns=300 * MINUTE_NS, keep=0.2, end="hung", renumber=True),
    "old-done-70s": _variant(back_ns=70 * 10**9, end="done"),
    "old-ahead-hung-70s": _variant(back_ns=70 * 10**9, ahead=6, end="hung"),
    "old-ahead-done-5h": _variant(back_ns=300 * MINUTE_NS, ahead=24, end="done"),
    "old-behind-unstamped": _variant(back_ns=10 * MINUTE_NS, keep=0.6, end="hung", stamped=False),
    "old-ahead-unstamped": _variant(back_ns=10 * MINUTE_NS, ahead=6, end="done", stamped=False),
}
"""How far the older attempt came, how it ended, and how long ago."""
