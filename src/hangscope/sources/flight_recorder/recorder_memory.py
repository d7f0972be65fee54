"""One flight recorder of another process: read, proven, and put in the form of torch's own dump.

Nothing in the process is locked while it is read. So the ring is read until two readings agree, and what changed
between the first and the last look (an entry that was overwritten meanwhile) is left out. What cannot be proven raises:
a recorder is believed only where its sizes divide, its records' numbers rise by one and stand where they belong in the
ring, its operations are named, its groups exist, and its shapes and types count the same.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hangscope.sources.cannot_read import CannotRead, Torn
from hangscope.sources.flight_recorder import containers
from hangscope.sources.flight_recorder.layout import ABSENT, Layout
from hangscope.sources.process_memory import ProcessMemory

MOST_ENTRIES = 100_000
MOST_SIZES = 1 << 16
MOST_FRAMES = 4096
_LONGEST_RING = 10_000_000
_OPERATION = re.compile(r"[a-zA-Z0-9_]{1,32}:[\x20-\x7e]{1,400}")
_EARLIEST_NS = 1_500_000_000 * 10**9
_DAY_NS = 86400 * 10**9
_MUTEX_KIND = 16
"""Where glibc keeps what kind of mutex it is: std::mutex is the plain one."""
_TRIES = 40
Row = dict[str, Any]
Frames = Callable[[int], list[Row]]
"""The frames of the traceback at an address."""


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a recorder that say where its ring is, and where in it comes what next."""

    enabled: bool
    locked: bool
    begin: int
    size: int
    most: int
    next: int
    count: int
    epoch: int
    epochs: int

    @property
    def indexes(self) -> list[int]:
        """The places of the ring, oldest first."""
        if self.size < self.most:
            return list(range(self.size))
        return [*range(self.next, self.size), *range(self.next)]


class RecorderMemory:
    """The recorder at an address, by one layout."""

    def __init__(self, memory: ProcessMemory, layout: Layout, address: int) -> None:
        self.memory = memory
        self.layout = layout
        self.address = address

    # ---- the recorder itself -----------------------------------------------------------------------------------------

    def header(self) -> Header:
        """Raises Torn where this is no recorder of this layout."""
        at = self.layout.recorder
        raw = self.memory.read(self.address, at["size"])
        item = self.layout.entry["size"]
        most, place, count = (struct.unpack_from("<Q", raw, at[name])[0] for name in ("most", "next", "count"))
        epoch = _optional_word(raw, at["epoch"])
        begin, size = containers.bounds_of(raw[at["entries"] :], item, _LONGEST_RING)
        epochs = 1
        if at["epoch_starts"] != ABSENT:
            epochs = containers.hash_size(self.memory, self.address + at["epoch_starts"])
        # the byte after `enabled_` is `capture_cpp_stack_`, and what follows up to the lock is padding
        if raw[at["enabled"]] > 1 or raw[at["enabled"] + 1] > 1 or size > most or most > _LONGEST_RING:
            raise Torn("this is no recorder of a known layout")
        if (size == most and place >= max(most, 1)) or (size < most and place != size):
            raise Torn("the ring's next place is outside of it")
        if (epoch == 0 and min(count, most) != size) or epochs != epoch + 1:
            raise Torn("the ring has another size than the records that it counts")
        locked, taken = struct.unpack_from("<iI", raw, at["mutex"])
        kind = struct.unpack_from("<i", raw, at["mutex"] + _MUTEX_KIND)[0]
        if not 0 <= locked <= 2 or taken or kind:
            raise Torn("this is no lock")
        if bool(raw[at["enabled"]]) != bool(most):
            raise Torn("a recorder that records nothing, and has room for it")
        return Header(bool(raw[at["enabled"]]), bool(locked), begin, size, most, place, count, epoch, epochs)

    def statuses(self) -> dict[int, tuple[int, int, int]]:
        """By the group's number in this process: what was enqueued, started and completed last."""
        found = {}
        at = self.layout.status
        for pair in containers.map_values(self.memory, self.address + self.layout.recorder["statuses"]):
            number, status = self.memory.words(pair, 2)
            raw = self.memory.read(status, max(at.values()) + 8)
            counters = [struct.unpack_from("<q", raw, at[name])[0] for name in ("enqueued", "started", "completed")]
            if min(counters) < -1 or max(counters) > 1 << 48:
                raise Torn("counters of a group that are none")
            found[number] = (counters[0], counters[1], counters[2])
        return found

    def groups(self) -> dict[str, dict[str, str]]:
        """The groups as the dump's pg_config has them; of two with one name the first counts, as in torch's own."""
        found: dict[str, dict[str, str]] = {}
        for pair in containers.map_values(self.memory, self.address + self.layout.recorder["groups"]):
            # std::tuple keeps its members backwards: the description comes before the name
            desc = containers.string(self.memory, pair)
            name = containers.string(self.memory, pair + containers.STRING)
            begin, count = containers.bounds(self.memory, pair + 2 * containers.STRING, 8, containers.MOST_RANKS)
            ranks = self.memory.words(begin, count) if count else ()
            if any(rank > containers.MOST_RANKS for rank in ranks):
                raise Torn("a group of ranks that are none")
            listed = ", ".join(map(str, ranks))
            found.setdefault(name, {"name": name, "desc": desc, "ranks": f"[{listed}]"})
        return found

    def library_version(self) -> str:
        at = self.layout.recorder["library_version"]
        return "" if at == ABSENT else containers.string(self.memory, self.address + at)

    # ---- the ring ----------------------------------------------------------------------------------------------------

    def dump(self, frames: Frames | None) -> Row:
        """All that torch's own dump would have. Raises Torn, or CannotRead where it is too much."""
        statuses = self.statuses()
        rows = self.entries(frames, statuses)
        config = self.groups()
        return {
            "version": self.layout.dump_version,
            "pg_config": config,
            "comm_lib_version": self.library_version(),
            "pg_status": {
                str(number): {
                    "last_enqueued_collective": enqueued,
                    "last_started_collective": started,
                    "last_completed_collective": completed,
                }
                for number, (enqueued, started, completed) in statuses.items()
            },
            "entries": rows,
        }

    def entries(self, frames: Frames | None, statuses: dict[int, tuple[int, int, int]]) -> list[Row]:
        header, ring = self._stable_ring()
        if header.size > MOST_ENTRIES:
            raise CannotRead(f"its ring has {header.size} entries, more than are read from outside")
        size = self.layout.entry["size"]
        rows: list[tuple[int, Row]] = []
        for index in header.indexes:
            raw = ring[index * size : (index + 1) * size]
            if _word(raw, self.layout.entry["epoch"], 0) == header.epoch:
                rows.append((index, self._entry(header.begin + index * size, raw)))
        if frames is not None:
            for index, row in rows:
                row["frames"] = self._frames(ring[index * size : (index + 1) * size], frames)
        kept = self._unchanged(header, rows)
        known = statuses.keys() | self.statuses().keys()
        self._prove(header, kept, known)
        return [_in_torchs_order(row) for _, row in kept]

    def _frames(self, raw: bytes, frames: Frames) -> list[Row]:
        traceback = struct.unpack_from("<Q", raw, self.layout.entry["traceback"])[0]
        try:
            return frames(traceback) if traceback else []
        except Torn:
            return []  # overwritten meanwhile: `_unchanged` leaves the entry out; else its stack alone is missing

    def _stable_ring(self) -> tuple[Header, bytes]:
        """The ring as two readings of it agree on, between two looks at a recorder that is not at work on it."""
        for attempt in range(_TRIES):
            before = self.header()
            if before.size > MOST_ENTRIES:
                return before, b""
            length = before.size * self.layout.entry["size"]
            first = self.memory.read(before.begin, length)
            second = self.memory.read(before.begin, length)
            after = self.header()
            if before == after and (not before.locked or attempt > _TRIES // 2):
                if first == second:
                    return before, first
                reread = self._reread_changed(before, first, second)
                if reread is not None:
                    return before, reread
            time.sleep(0.0002 * min(attempt, 10))
        raise Torn("the ring changed each time that it was read")

    def _reread_changed(self, header: Header, first: bytes, second: bytes) -> bytes | None:
        """The ring where single entries differ between two readings (an operation ended): each is read until it
        does not."""
        size = self.layout.entry["size"]
        ring = bytearray(second)
        for index in range(header.size):
            place = slice(index * size, (index + 1) * size)
            if first[place] == second[place]:
                continue
            now = second[place]
            for _ in range(8):
                again = self.memory.read(header.begin + index * size, size)
                if again == now:
                    break
                now = again
            else:
                return None
            ring[place] = now
        return bytes(ring)

    def _unchanged(self, header: Header, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
        """The rows whose entries are still those that they were read from: what an entry points to may be gone when
        it was overwritten. Raises Torn where the ring moved, or was reset."""
        now = self.header()
        size = self.layout.entry["size"]
        if (now.begin, now.most, now.epoch) != (header.begin, header.most, header.epoch):
            raise Torn("the ring moved while it was read")
        if now.count == header.count:
            return rows
        later = self.memory.read(header.begin, header.size * size)
        at = self.layout.entry["id"]
        kept = [
            (index, row)
            for index, row in rows
            if struct.unpack_from("<Q", later, index * size + at)[0] == row["record_id"]
        ]
        overwritten = now.count - header.count
        if len(rows) - len(kept) > overwritten:
            raise Torn("more of the ring was overwritten than recorded")
        return kept

    # ---- one entry ---------------------------------------------------------------------------------------------------

    def _entry(self, base: int, raw: bytes) -> Row:
        at = self.layout.entry
        memory = self.memory

        def text(offset: int) -> str:
            return containers.string(memory, base + offset, raw[offset : offset + containers.STRING])

        dims = {
            name: containers.small_numbers(memory, base + at[name], raw[at[name] :], 4)
            for name in ("input_dims", "output_dims")
        }
        sizes = containers.small_numbers(memory, base + at["sizes"], raw[at["sizes"] :], 8)
        inputs, outputs = _shapes(sizes, dims["input_dims"], dims["output_dims"])
        started = _optional_time(raw, at["started"])
        completed = _optional_time(raw, at["completed"])
        if raw[at["is_p2p"]] > 1 or raw[at["retired"]] > 1:
            raise Torn("a flag of an entry that is none")
        row: Row = {
            "record_id": _word(raw, at["id"], 0),
            "pg_id": _word(raw, at["pg_id"], 0),
            "process_group": (text(at["pg_name"] + containers.STRING), text(at["pg_name"])),
        }
        if at["thread_name"] != ABSENT:
            row["thread_name"] = text(at["thread_name"])
            row["thread_id"] = str(_word(raw, at["thread_id"], 0))
        row |= {
            "collective_seq_id": _word(raw, at["collective_seq_id"], 0),
            "p2p_seq_id": _word(raw, at["p2p_seq_id"], 0),
            "op_id": _word(raw, at["op_id"], 0),
            "profiling_name": text(at["profiling_name"]),
            "time_created_ns": struct.unpack_from("<q", raw, at["time_created"])[0],
        }
        if raw[at["duration"] + 4] > 1:
            raise Torn("a duration of an entry that is none")
        if raw[at["duration"] + 4]:
            row["duration_ms"] = struct.unpack_from("<f", raw, at["duration"])[0]
        state = "completed" if completed is not None else "started" if started is not None else "scheduled"
        return row | {
            "input_sizes": inputs,
            "input_dtypes": self._dtypes(raw, at["input_dtypes"], len(inputs)),
            "output_sizes": outputs,
            "output_dtypes": self._dtypes(raw, at["output_dtypes"], len(outputs)),
            "state": state,
            "time_discovered_started_ns": started,
            "time_discovered_completed_ns": completed,
            "retired": bool(raw[at["retired"]]),
            "timeout_ms": struct.unpack_from("<q", raw, at["timeout_ms"])[0],
            "is_p2p": bool(raw[at["is_p2p"]]),
        }

    def _dtypes(self, raw: bytes, offset: int, wanted: int) -> list[str]:
        begin, count = containers.bounds_of(raw[offset : offset + 24], 1, containers.MOST_NUMBERS)
        if count != wanted:
            raise Torn("an entry with more types than shapes")
        names = self.layout.dtypes
        numbers = self.memory.read(begin, count)
        # What this release does not name, another might: torch itself says so of a type that it does not know.
        return [names[number] if number < len(names) else "UNKNOWN_SCALAR" for number in numbers]

    # ---- whether it can be true --------------------------------------------------------------------------------------

    def _prove(self, header: Header, rows: Sequence[tuple[int, Row]], groups: set[int]) -> None:
        last = time.time_ns() + _DAY_NS
        before: int | None = None
        for index, row in rows:
            number = row["record_id"]
            if before is not None and number != before + 1:
                raise Torn(f"record {number} comes after {before}")
            before = number
            if header.epoch == 0 and header.most and number % header.most != index:
                raise Torn(f"record {number} is not where it belongs in the ring")
            if not _OPERATION.fullmatch(row["profiling_name"]):
                raise Torn("an operation without a name")
            if row["pg_id"] not in groups:
                raise Torn(f"an operation of group {row['pg_id']}, which there is not")
            if not _EARLIEST_NS < row["time_created_ns"] < last or not 0 <= row["timeout_ms"] < 1 << 53:
                raise Torn("an operation at a time that cannot be")
            if max(row["collective_seq_id"], row["p2p_seq_id"], row["op_id"]) > 1 << 48:
                raise Torn("a sequence number that cannot be")
        if before is not None and before != header.count - 1:
            raise Torn(f"the last record is {before}, of {header.count}")


def _in_torchs_order(row: Row) -> Row:
    """The fields as torch's own dump lists them: frames first."""
    return {"frames": row["frames"], **row} if "frames" in row else row


def _word(raw: bytes, offset: int, default: int) -> int:
    """A field, or `default` where this release has none."""
    return default if offset == ABSENT else int(struct.unpack_from("<Q", raw, offset)[0])


def _optional_word(raw: bytes, offset: int) -> int:
    return _word(raw, offset, 0)


def _optional_time(raw: bytes, offset: int) -> int | None:
    """A std::optional of nanoseconds."""
    there = raw[offset + 8]
    if there > 1:
        raise Torn("a time of an entry that is none")
    return int(struct.unpack_from("<q", raw, offset)[0]) if there else None


def _shapes(
    sizes: tuple[int, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> tuple[list[list[int]], list[list[int]]]:
    """The shapes of the tensors, whose sizes are kept in one row: as many as their dimensions say."""
    if any(not 0 <= each <= 64 for each in (*inputs, *outputs)) or sum(inputs) + sum(outputs) != len(sizes):
        raise Torn("an entry whose shapes do not count the same as its sizes")
    if len(sizes) > MOST_SIZES or any(size < 0 for size in sizes):
        raise Torn("an entry with a size that is none")
    place = iter(sizes)
    shapes = [[[next(place) for _ in range(each)] for each in dims] for dims in (inputs, outputs)]
    return shapes[0], shapes[1]
