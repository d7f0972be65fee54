"""How far one rank is, from what it answers: its unfinished operations, how long they take usually, what is too long.

No I/O. The cheap answers come every second and can only raise a suspicion; a full answer confirms or clears it. For
NCCL the cheap answer lists the unfinished operations. Gloo and nccl2 give counters only, because their full answer
costs the rank some 20 microseconds an entry (torch 2.13: 35 ms for a ring of 2,000), and the counters are not exact:
two operations that finish out of order leave the lower number behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

BOX = "box"
"""The source of what a black box shows: NCCL's own, whoever called it."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One operation that a rank has launched and not finished."""

    source: str
    record: int
    pg: str
    group: str
    name: str
    seq: int
    created_ns: int

    def age_s(self, now_ns: int) -> float:
        return max(0.0, (now_ns - self.created_ns) / 1e9)

    @property
    def label(self) -> str:
        return f"{self.name} #{self.seq}"


@dataclass(slots=True)
class _Counter:
    """One group's counters, and since when they have stood still."""

    enqueued: int
    completed: int
    since: float
    open_since: float
    """Since when something is open of which nothing was completed: a GPU's rank launches on and on meanwhile."""
    checked: bool = False


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """What was known of a rank's progress at a moment of the wall clock, to compare with what is known later."""

    at_ns: int
    counters: Mapping[tuple[str, str], tuple[int, int]]
    unfinished: frozenset[tuple[str, int]]
    box: tuple[object, ...]


@dataclass(slots=True)
class RankProgress:
    """What is known of one rank. Times called `now` are monotonic seconds, `now_ns` is the wall clock."""

    counters: dict[tuple[str, str], _Counter] = field(default_factory=dict)
    unfinished: dict[str, list[Unfinished]] = field(default_factory=dict)
    slowest_s: float = 0.0
    counts_alone: bool = False
    """Nothing is known between two rings but the counters, of NCCL as well: they are read from outside."""
    box: tuple[object, ...] = ()
    """Changes whenever the process's black box shows it get anywhere."""
    _cleared: set[tuple[str, int]] = field(default_factory=set)

    # ---- cheap answers -----------------------------------------------------------------------------------------------

    def take_counters(self, source: str, status: Mapping[str, Any], now: float, now_ns: int) -> None:
        """pg_status of a recorder: per group the last operation enqueued and the last one completed."""
        for group, value in status.items():
            pair = _pair(value)
            if pair is None:
                continue
            key = (source, str(group))
            known = self.counters.get(key)
            if known is not None and (known.enqueued, known.completed) == pair:
                continue
            if known is not None and known.completed != pair[1] and (source != "nccl" or self.counts_alone):
                gone = [each for each in self.unfinished.get(source, ()) if each.pg == str(group)]
                self._replace(source, [each for each in self.unfinished.get(source, ()) if each not in gone], now_ns)
            still_open = known is not None and known.completed == pair[1] and known.enqueued > known.completed
            open_since = known.open_since if known is not None and still_open else now
            self.counters[key] = _Counter(*pair, since=now, open_since=open_since)

    def take_active(self, dump: Mapping[str, Any], now: float, now_ns: int) -> None:
        """NCCL's answer that lists the unfinished operations only."""
        self.take_counters("nccl", _mapping(dump.get("pg_status")), now, now_ns)
        waiting = [each for each in unfinished("nccl", dump) if ("nccl", each.record) not in self._cleared]
        self._replace("nccl", waiting, now_ns)

    def take_box(self, waiting: list[Unfinished], signature: tuple[object, ...], now_ns: int) -> None:
        """What the process's black box shows. Where NCCL's recorder has the wait itself, that one is kept alone."""
        self.box = signature
        recorded = any(self.unfinished.get(source) for source in ("nccl", "nccl2"))
        self._replace(BOX, [] if recorded else waiting, now_ns)
        if not self.unfinished[BOX]:
            del self.unfinished[BOX]

    # ---- full answers ------------------------------------------------------------------------------------------------

    def take_full(self, source: str, dump: Mapping[str, Any], now_ns: int) -> None:
        """The whole ring: says exactly what is unfinished, and clears what only looked so."""
        waiting = unfinished(source, dump)
        records = {each.record for each in waiting}
        for each in self.unfinished.get(source, ()):
            if each.record not in records:
                self._cleared.add((source, each.record))
        self._replace(source, waiting, now_ns)
        for (known, _), counter in self.counters.items():
            if known == source:
                counter.checked = True

    def take_ages(self, source: str, newest_ns: Mapping[str, int], now: float, now_ns: int) -> None:
        """When (wall clock) each group's last operation was launched or finished: its counters stand since then."""
        for group, at_ns in newest_ns.items():
            counter = self.counters.get((source, group))
            if counter is not None and at_ns:
                counter.since = min(counter.since, now - max(0.0, (now_ns - at_ns) / 1e9))
                counter.open_since = min(counter.open_since, counter.since)

    def _replace(self, source: str, waiting: list[Unfinished], now_ns: int) -> None:
        records = {each.record for each in waiting}
        for each in self.unfinished.get(source, ()):
            if each.record not in records and (source, each.record) not in self._cleared:
                self.slowest_s = max(self.slowest_s, each.age_s(now_ns))
        self.unfinished[source] = waiting

    # ---- judgement ---------------------------------------------------------------------------------------------------

    def doubtful(self, now: float, now_ns: int, threshold_s: float) -> tuple[set[str], set[str]]:
        """The recorders whose full answer is needed now, and those where it would be good to have some time.

        Now: something seems unfinished for longer than the threshold. Some time: a fifth of it has passed, which is
        how the slowest normal operation is learnt; or the counters stand still, which also hides an operation that a
        later one has overtaken.
        """
        now_sources: set[str] = set()
        some_time: set[str] = set()
        for (source, _), each in self.counters.items():
            still_s = now - each.since
            listed = source == "nccl" and not self.counts_alone
            urgent = each.enqueued > each.completed and now - each.open_since > threshold_s
            if listed or each.checked or (still_s <= threshold_s / 5 and not urgent):
                continue
            (now_sources if urgent else some_time).add(source)
        for source, waiting in self.unfinished.items():
            if source != BOX and any(each.age_s(now_ns) > threshold_s for each in waiting):
                now_sources.add(source)
        return now_sources, some_time - now_sources

    @property
    def ever(self) -> bool:
        """Whether the rank has ever completed a collective."""
        return any(counter.completed > 0 for counter in self.counters.values())

    def oldest(self) -> Unfinished | None:
        """The unfinished operation that was launched first."""
        every = [each for waiting in self.unfinished.values() for each in waiting]
        return min(every, key=lambda each: each.created_ns, default=None)

    def sample(self, now_ns: int) -> ProgressSample:
        return ProgressSample(
            now_ns,
            {key: (each.enqueued, each.completed) for key, each in self.counters.items()},
            frozenset(self._records()),
            self.box,
        )

    def moved_since(self, before: ProgressSample) -> bool:
        """Whether the rank got anywhere since a sample.

        That more is known of it by now is no move: a ring that was read in between shows operations that it had
        launched long before. Nor is it one to launch on and on behind an operation that does not end, as a GPU's rank
        does for a thousand operations.
        """
        sources = {source for source, _ in before.counters}
        waits = {source for source, _ in before.unfinished}
        for key, each in self.counters.items():
            known = before.counters.get(key)
            if known is None:
                if key[0] in sources:
                    return True
                continue
            enqueued, completed = known
            if each.completed != completed or (each.enqueued != enqueued and enqueued <= completed):
                return True
            waits |= {key[0]} if enqueued > completed else set()
        only_looked_so = {each for each in self._cleared if each[0] == "nccl" and not self.counts_alone}
        if before.unfinished - set(self._records()) - only_looked_so:
            return True
        launched = (
            each for waiting in self.unfinished.values() for each in waiting if each.source not in (BOX, *waits)
        )
        return any(each.created_ns > before.at_ns for each in launched) or (bool(before.box) and self.box != before.box)

    def only_ended_since(self, before: ProgressSample) -> bool:
        """Whether all that it had open at a sample has ended, and it has launched nothing since."""
        pairs = {key: (each.enqueued, each.completed) for key, each in self.counters.items()}
        was_open = any(enqueued > completed for enqueued, completed in before.counters.values())
        if not (was_open or before.unfinished) or self.box != before.box or any(self._records()):
            return False
        launched_none = {key: enqueued for key, (enqueued, _) in pairs.items()} == {
            key: enqueued for key, (enqueued, _) in before.counters.items()
        }
        return launched_none and all(enqueued <= completed for enqueued, completed in pairs.values())

    def _records(self) -> Iterator[tuple[str, int]]:
        for source, waiting in self.unfinished.items():
            if source != BOX:
                yield from ((source, each.record) for each in waiting)

    def signature(self) -> tuple[Any, ...]:
        """Changes whenever the rank gets anywhere, and also where more has become known of it."""
        return (
            tuple(sorted((key, each.enqueued, each.completed) for key, each in self.counters.items())),
            tuple(sorted(self._records())),
            self.box,
        )


def unfinished(source: str, dump: Mapping[str, Any]) -> list[Unfinished]:
    """The operations in `dump` that are not finished, oldest first, by the rules of the recorder that wrote it.

    Gloo leaves every state at "scheduled" and only sets `retired`. In NCCL the operations inside a coalesced batch stay
    "scheduled" for ever; the batch's closing entry alone has the state (torch 2.4 to 2.15).
    """
    entries = rows(dump)
    closing = {_batch(entry): entry for entry in entries if _is_closing(entry)}
    found = []
    for entry in entries:
        closed = closing.get(_batch(entry)) if source == "nccl" and entry.get("state") == "scheduled" else None
        judged = closed or entry
        if judged.get("retired") or judged.get("state") == "completed":
            continue
        found.append(
            Unfinished(
                source=source,
                record=_integer(entry.get("record_id")),
                pg=str(entry.get("pg_id")),
                group=_group(entry.get("process_group")),
                name=str(entry.get("profiling_name") or "").partition(":")[2] or str(entry.get("profiling_name") or ""),
                seq=_integer(entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")),
                created_ns=_integer(entry.get("time_created_ns")),
            )
        )
    return sorted(found, key=lambda each: each.record)


def rows(dump: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of a dump, as far as they are any."""
    entries = dump.get("entries")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _is_closing(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("profiling_name") or "").endswith("coalesced") and not entry.get("input_sizes")


def _batch(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    named = (entry.get(name) for name in ("pg_id", "collective_seq_id", "p2p_seq_id"))
    return tuple(value if isinstance(value, (int, str)) else None for value in named)


def _pair(value: object) -> tuple[int, int] | None:
    """(enqueued, completed); the JSON form has them as strings."""
    if not isinstance(value, dict):
        return None
    try:
        return int(value["last_enqueued_collective"]), int(value["last_completed_collective"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _group(names: object) -> str:
    """Its description where it has one, else its name."""
    if not isinstance(names, (list, tuple)) or len(names) != 2:
        return ""
    return str(names[1] if names[1] not in ("", "undefined") else names[0])


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def slowest(ranks: Iterable[RankProgress]) -> float:
    return max((each.slowest_s for each in ranks), default=0.0)
