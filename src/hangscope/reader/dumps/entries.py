"""Entries of a dump, turned into columns a thousand at a time.

Each field is taken from all entries of a chunk at once and checked as a whole; only where that check fails is every
entry looked at by itself, so that a good file costs a few microseconds an entry and a bad entry is still named. Every
value is checked for its type before it is hashed or followed: what a file holds may be shared with itself a million
times over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from hangscope.errors import DamagedError
from hangscope.model import UNKNOWN, Frame, Shapes, State
from hangscope.model.numbers import integer, is_number
from hangscope.model.profiling_names import Name, parse, size_bytes
from hangscope.reader.dumps.raw_dump import Columns, LocalGroup, Problem
from hangscope.safeio.limits import MOST_GROUPS, Limits

CHUNK = 1024
_MISSING: Any = object()
_NONE = type(None)
_MAX_INT = (1 << 63) - 1
_SEQUENCES = frozenset((list, tuple))
_STATES = {"scheduled": State.SCHEDULED, "started": State.STARTED, "completed": State.COMPLETED}
_HOPELESS = 1000
"""Bad entries after which, where they are the majority, nobody looks at the others any more."""
_MAX_LINE = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """All entries of one dump in columns, whoever read them: `Entries` below, or the C decoder."""

    columns: Columns
    names: tuple[Name, ...]
    threads: tuple[str, ...]
    shapes: tuple[Shapes, ...]
    dtypes: tuple[tuple[str, ...], ...]
    stacks: tuple[tuple[Frame, ...], ...]
    groups: tuple[LocalGroup, ...]
    has_stacks: bool
    old_sequence: bool
    """Whether collectives and point-to-point calls share one counter, as before torch 2.4."""
    numbered: bool
    """Whether entries have a `record_id` (not in torch 2.2)."""
    left_out: int = 0
    unreported: int = 0
    problems: tuple[Problem, ...] = ()


class Entries:
    """Collects the entries of one dump. Give each to `add` with its index, then ask for them `in_columns()`."""

    def __init__(self, limits: Limits, size: int, file: str) -> None:
        self._file = file
        self._limits = limits
        self._visits = limits.visits + size
        self._indices: list[int] = []
        self._pending: list[dict[Any, Any]] = []
        self._chunks: list[Columns] = []
        self._expected: set[str] = set()
        self._seen: set[int] = set()
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[object, object], int] = {}
        self._groups: dict[tuple[int | None, str | None, str], int] = {}
        self._shapes: dict[Shapes, int] = {(): 0}
        self._dtypes: dict[tuple[str, ...], int] = {(): 0}
        self._stacks: dict[tuple[Frame, ...], int] = {(): 0}
        self._sizes: dict[tuple[int, int], int] = {}
        self.names: list[Name] = []
        self.threads: list[str] = [""]
        self.problems: list[Problem] = []
        self.left_out = 0
        self._kept = 0
        self.unreported = 0
        self.has_stacks = False
        self.old_sequence = False
        self.numbered = False

    @property
    def hopeless(self) -> bool:
        """Whether so many entries were bad that nobody looks at the others any more."""
        return self.left_out > _HOPELESS and self.left_out > self._kept

    def add(self, index: int, entry: Any) -> None:
        if self.hopeless:
            self.left_out += 1
            self.unreported += 1
            return
        if type(entry) is not dict:
            self._leave_out(index, f"is {_a(entry)}, not an entry")
            return
        if "profiling_name" not in entry:
            self._leave_out(index, "no `profiling_name`")
            return
        if id(entry) in self._seen:
            self._leave_out(index, "is the same entry as an earlier one")
            return
        self._kept += 1
        self._indices.append(index)
        self._pending.append(entry)
        self._seen.add(id(entry))
        if len(self._pending) >= CHUNK:
            self._flush()

    def in_columns(self) -> EntryColumns:
        """All entries that were whole enough, in the order they were added."""
        self._flush()
        if not self._chunks:
            self._chunks.append(self._chunk([], []))
        return EntryColumns(
            columns={name: np.concatenate([chunk[name] for chunk in self._chunks]) for name in self._chunks[0]},
            names=tuple(self.names),
            threads=tuple(self.threads),
            shapes=tuple(self._shapes),
            dtypes=tuple(self._dtypes),
            stacks=tuple(self._stacks),
            groups=tuple(LocalGroup(*key) for key in self._groups),
            has_stacks=self.has_stacks,
            old_sequence=self.old_sequence,
            numbered=self.numbered,
            left_out=self.left_out,
            unreported=self.unreported,
            problems=tuple(self.problems),
        )

    # ---- one chunk ---------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        indices = self._indices
        entries = self._pending
        self._indices = []
        self._pending = []
        # Ids say "the same entry" only while the entry lives, which is until the end of its chunk.
        self._seen = set()
        if entries:
            self._chunks.append(self._chunk(indices, entries))

    def _chunk(self, indices: list[int], entries: list[dict[Any, Any]]) -> Columns:
        bad: set[int] = set()
        names = self._name_column(indices, entries, bad)
        seq = self._sequence_column(indices, entries, bad)
        pg_ids, groups = self._group_columns(indices, entries, bad)
        states = self._state_column(indices, entries, bad)
        in_shapes = self._interned(indices, entries, "input_sizes", self._shapes, _is_shapes, _to_shapes)
        out_shapes = self._interned(indices, entries, "output_sizes", self._shapes, _is_shapes, _to_shapes)
        in_dtypes = self._interned(indices, entries, "input_dtypes", self._dtypes, _is_dtypes, tuple)
        out_dtypes = self._interned(indices, entries, "output_dtypes", self._dtypes, _is_dtypes, tuple)
        record_ids = self._ints(indices, entries, "record_id")
        self.numbered = self.numbered or any(value != UNKNOWN for value in record_ids)
        if self.numbered and UNKNOWN in record_ids:
            # One lost number does not hide where in the ring its entry was.
            known = record_ids
            record_ids = [_between(known, row) if value == UNKNOWN else value for row, value in enumerate(known)]
        columns: dict[str, Any] = {
            "index": indices,
            "record_id": record_ids,
            "pg_id": pg_ids,
            "group": groups,
            "name": names,
            "seq": seq,
            "p2p_seq": self._ints(indices, entries, "p2p_seq_id"),
            "op_id": self._ints(indices, entries, "op_id"),
            "state": states,
            "retired": self._flags(indices, entries, "retired"),
            "created_ns": self._created(indices, entries),
            "started_ns": self._ints(indices, entries, "time_discovered_started_ns", zero_is_none=True),
            "completed_ns": self._ints(indices, entries, "time_discovered_completed_ns", zero_is_none=True),
            "duration_ms": self._durations(indices, entries),
            "in_shapes": in_shapes,
            "out_shapes": out_shapes,
            "in_dtypes": in_dtypes,
            "out_dtypes": out_dtypes,
            "size_bytes": self._size_column(in_shapes, in_dtypes, out_shapes, out_dtypes),
            "stack": self._stack_column(indices, entries),
            "thread": self._thread_column(entries),
            "timeout_ms": self._ints(indices, entries, "timeout_ms"),
        }
        self.left_out += len(bad)
        self._kept -= len(bad)
        keep = np.array([row not in bad for row in range(len(entries))], dtype=bool)
        kinds = {"duration_ms": "f4"}
        with np.errstate(over="ignore"):  # a duration beyond what the column can hold is infinite
            return {name: np.array(values, dtype=kinds.get(name, "i8"))[keep] for name, values in columns.items()}

    def _column(self, entries: list[dict[Any, Any]], key: str) -> tuple[list[Any], bool]:
        """The field of every entry, and whether one that lacks it is to be reported: most of the others have it."""
        values = [entry.get(key, _MISSING) for entry in entries]
        if key not in self._expected:
            missing = sum(value is _MISSING for value in values)
            if missing * 2 > len(values):
                return values, False
            self._expected.add(key)
        return values, True

    # ---- fields without which an entry means nothing -----------------------------------------------------------------

    def _name_column(self, indices: list[int], entries: list[dict[Any, Any]], bad: set[int]) -> list[int]:
        values = [entry.get("profiling_name", _MISSING) for entry in entries]
        self._require(values, "profiling_name", str, "text", indices, bad, "")
        known = self._names
        for text in dict.fromkeys(values):
            if text not in known:
                known[text] = len(self.names)
                self.names.append(parse(text))
        return [known[text] for text in values]

    def _state_column(self, indices: list[int], entries: list[dict[Any, Any]], bad: set[int]) -> list[int]:
        values = [entry.get("state", _MISSING) for entry in entries]
        self._require(values, "state", str, "text", indices, bad, "")
        return [_STATES.get(value, State.UNKNOWN) for value in values]

    def _sequence_column(self, indices: list[int], entries: list[dict[Any, Any]], bad: set[int]) -> list[int]:
        key = "collective_seq_id"
        if "collective_seq_id" not in self._expected:
            newer = sum("collective_seq_id" in entry for entry in entries)
            older = sum("seq_id" in entry for entry in entries)
            if older > newer:
                key = "seq_id"
                self.old_sequence = True
            elif newer:
                self._expected.add(key)
        values = [entry.get(key, _MISSING) for entry in entries]
        self._require(values, key, int, "a whole number", indices, bad, UNKNOWN)
        return values

    def _group_columns(
        self, indices: list[int], entries: list[dict[Any, Any]], bad: set[int]
    ) -> tuple[list[int], list[int]]:
        pairs, named = self._column(entries, "process_group")
        pg_ids = self._ints(indices, entries, "pg_id")
        if not named and all(pair is _MISSING for pair in pairs):
            for row, pg_id in enumerate(pg_ids):
                if pg_id == UNKNOWN:
                    self._reject(row, indices, bad, "no `pg_id`")
            keys: Iterable[tuple[int | None, str | None, str]] = [(pg_id, None, "") for pg_id in pg_ids]
        else:
            for row, pair in enumerate(pairs):
                if not _is_pair(pair):
                    self._reject(row, indices, bad, _complaint(pair, "process_group", "a name and a description"))
                    pairs[row] = ("", "")
            keys = [(pg_id, pair[0], pair[1]) for pg_id, pair in zip(pg_ids, pairs, strict=True)]
        known = self._groups
        columns = []
        for row, key in enumerate(keys):
            found = known.get(key)
            if found is None:
                found = 0
                if row not in bad and len(known) >= MOST_GROUPS:
                    self._reject(row, indices, bad, f"belongs to one more than {MOST_GROUPS} groups")
                elif row not in bad:
                    found = known[key] = len(known)
            columns.append(found)
        return pg_ids, columns

    def _require(
        self,
        values: list[Any],
        key: str,
        kind: type[Any],
        article: str,
        indices: list[int],
        bad: set[int],
        default: Any,
    ) -> None:
        if {kind}.issuperset(map(type, values)) and (kind is not int or _fits(values)):
            return
        for row, value in enumerate(values):
            if type(value) is not kind or not (kind is str or _fits([value])):
                self._reject(row, indices, bad, _complaint(value, key, article))
                values[row] = default

    # ---- fields that may be missing ----------------------------------------------------------------------------------

    def _ints(
        self, indices: list[int], entries: list[dict[Any, Any]], key: str, *, zero_is_none: bool = False
    ) -> list[int]:
        values, expected = self._column(entries, key)
        kinds = set(map(type, values))
        if kinds <= {int, _NONE} and zero_is_none:
            # The JSON form writes 0 for None.
            values = [value or UNKNOWN for value in values]
            kinds = {int}
        if kinds != {int} or not _fits(values):
            for row, value in enumerate(values):
                if value is _MISSING:
                    values[row] = UNKNOWN
                    if expected and not zero_is_none:
                        self._report(indices[row], f"no `{key}`")
                elif zero_is_none and not value:
                    values[row] = UNKNOWN
                else:
                    values[row] = self._int(indices[row], key, value)
        return values

    def _int(self, index: int, key: str, value: Any) -> int:
        if type(value) is str and is_number(value):
            return integer(value)
        if type(value) is int and -1 <= value <= _MAX_INT:
            return value
        self._report(index, _complaint(value, key, "a whole number"))
        return UNKNOWN

    def _created(self, indices: list[int], entries: list[dict[Any, Any]]) -> list[int]:
        if any("time_created_ns" in entry for entry in entries) or "time_created_ns" in self._expected:
            return self._ints(indices, entries, "time_created_ns")
        # torch 2.2 wrote microseconds.
        micros = self._ints(indices, entries, "time_created_us")
        return [value * 1000 if 0 <= value <= _MAX_INT // 1000 else UNKNOWN for value in micros]

    def _flags(self, indices: list[int], entries: list[dict[Any, Any]], key: str) -> list[int]:
        values, expected = self._column(entries, key)
        for row, value in enumerate(values):
            if value is True or value is False:
                continue
            if value is _MISSING:
                if expected:
                    self._report(indices[row], f"no `{key}`")
            elif type(value) is int and value in (0, 1):
                continue
            else:
                self._report(indices[row], _complaint(value, key, "true or false"))
            values[row] = UNKNOWN
        return values

    def _durations(self, indices: list[int], entries: list[dict[Any, Any]]) -> list[float]:
        values: list[Any] = [entry.get("duration_ms") for entry in entries]
        for row, value in enumerate(values):
            if type(value) is float:
                continue
            if value is not None and (type(value) is not int or abs(value) > _MAX_INT):
                self._report(indices[row], _complaint(value, "duration_ms", "a number"))
                value = None
            values[row] = float("nan") if value is None else float(value)
        return values

    def _interned(
        self,
        indices: list[int],
        entries: list[dict[Any, Any]],
        key: str,
        table: dict[Any, int],
        check: Callable[[Any], bool],
        convert: Callable[[Any], Any],
    ) -> list[int]:
        """A field of small nested lists, as ids into a table: each distinct value is kept once."""
        values, expected = self._column(entries, key)
        if not _SEQUENCES.issuperset(map(type, values)) or not check(self._flatten(values)):
            for row, value in enumerate(values):
                if type(value) in _SEQUENCES and check(self._flatten([value])):
                    continue
                if value is not _MISSING or expected:
                    self._report(indices[row], _complaint(value, key, "a list of what it should hold"))
                values[row] = ()
        ids = []
        for value in values:
            found = convert(value)
            ids.append(table.setdefault(found, len(table)))
        return ids

    def _flatten(self, values: list[Any]) -> list[Any]:
        """The items of all these lists, and of the lists in them: counted before they are touched."""
        self._spend(sum(map(len, values)))
        items = list(chain.from_iterable(values))
        self._spend(sum(len(item) for item in items if type(item) in _SEQUENCES))
        return items

    def _spend(self, visits: int) -> None:
        self._visits -= visits
        if self._visits < 0:
            raise DamagedError(
                "lists that are shared so often that they cannot be real",
                file=self._file,
                hint="the flight recorder does not write such a file: get a fresh copy from the node",
            )

    def _size_column(self, *columns: list[int]) -> list[int]:
        """Bytes of the inputs; of the outputs where there is no input, as for a receive."""
        shapes = list(self._shapes)
        dtypes = list(self._dtypes)
        known = self._sizes
        sizes = []
        for shape, dtype, out_shape, out_dtype in zip(*columns, strict=True):
            key = (shape, dtype) if shape or dtype else (out_shape, out_dtype)
            found = known.get(key)
            if found is None:
                found = known[key] = size_bytes(shapes[key[0]], dtypes[key[1]])
            sizes.append(found)
        return sizes

    def _stack_column(self, indices: list[int], entries: list[dict[Any, Any]]) -> list[int]:
        """Frames are shared dicts in a real dump, so within a chunk a stack is known by its frames' identities."""
        values = [entry.get("frames", _MISSING) for entry in entries]
        known: dict[tuple[int, ...], int] = {}
        frames: dict[int, Frame] = {}
        column = []
        for row, value in enumerate(values):
            found = 0
            if type(value) is list:
                self.has_stacks = True
                self._spend(len(value))
                key = tuple(map(id, value))
                number = known.get(key)
                if number is None:
                    stack = tuple(_frame(item, frames) for item in value)
                    if None in stack:
                        self._report(indices[row], "`frames` holds something that is no frame")
                    whole = tuple(frame for frame in stack if frame is not None)
                    number = known[key] = self._stacks.setdefault(whole, len(self._stacks))
                found = number
            elif value is not _MISSING and value is not None:
                self._report(indices[row], _complaint(value, "frames", "a list of frames"))
            column.append(found)
        return column

    def _thread_column(self, entries: list[dict[Any, Any]]) -> list[int]:
        """``name id`` as one text (torch 2.8+)."""
        known = self._threads
        column = []
        for entry in entries:
            name = entry.get("thread_name")
            number = entry.get("thread_id")
            if type(name) is not str:
                name = ""
            if type(number) is not str and type(number) is not int:
                number = ""
            found = known.get((name, number))
            if found is None:
                text = f"{name} {number}".strip()
                found = known[name, number] = len(self.threads) if text else 0
                if text:
                    self.threads.append(text)
            column.append(found)
        return column

    # ---- complaints --------------------------------------------------------------------------------------------------

    def _leave_out(self, index: int, text: str) -> None:
        self.left_out += 1
        self._report(index, text)

    def _reject(self, row: int, indices: list[int], bad: set[int], text: str) -> None:
        bad.add(row)
        self._report(indices[row], text)

    def _report(self, index: int, text: str) -> None:
        if len(self.problems) < self._limits.problems:
            self.problems.append(Problem(f"entries[{index}]", text))
        else:
            self.unreported += 1


def _fits(values: list[int]) -> bool:
    return not values or (min(values) >= UNKNOWN and max(values) <= _MAX_INT)


def _between(record_ids: list[int], row: int) -> int:
    """The number of an entry that lost it, counted from the nearest one before it, or after."""
    for other in chain(range(row - 1, -1, -1), range(row + 1, len(record_ids))):
        if record_ids[other] != UNKNOWN:
            return max(record_ids[other] + row - other, 0)
    return UNKNOWN


def _is_pair(value: Any) -> bool:
    return type(value) in _SEQUENCES and len(value) == 2 and type(value[0]) is str and type(value[1]) is str


def _is_shapes(items: list[Any]) -> bool:
    if not _SEQUENCES.issuperset(map(type, items)):
        return False
    lengths = list(chain.from_iterable(items))
    return {int}.issuperset(map(type, lengths)) and _within(lengths)


def _within(lengths: list[int]) -> bool:
    return not lengths or (min(lengths) >= -_MAX_INT and max(lengths) <= _MAX_INT)


def _to_shapes(value: Any) -> Shapes:
    return tuple(map(tuple, value))


def _is_dtypes(items: list[Any]) -> bool:
    return {str}.issuperset(map(type, items))


def _frame(item: Any, known: dict[int, Frame]) -> Frame | None:
    found = known.get(id(item))
    if found is None:
        if type(item) is not dict:
            return None
        name = item.get("name", "")
        filename = item.get("filename", "")
        line = item.get("line", 0)
        if type(name) is not str or type(filename) is not str or type(line) is not int:
            return None
        found = known[id(item)] = Frame(name, filename, line if 0 <= line <= _MAX_LINE else 0)
    return found


def _complaint(value: Any, key: str, wanted: str) -> str:
    return f"no `{key}`" if value is _MISSING else f"`{key}` is {_a(value)}, not {wanted}"


_KINDS = {dict: "a dict", list: "a list", tuple: "a tuple", str: "text", int: "a whole number", float: "a number"}


def _a(value: Any) -> str:
    if value is None:
        return "None"
    if type(value) is int:
        return "a number out of range" if not -1 <= value <= _MAX_INT else "a whole number"
    return _KINDS.get(type(value), "true or false" if isinstance(value, bool) else "something else")
