"""Groups, dumps and the operations in them.

The operations are columns (`Operations`), because a large job has tens of millions of them; `job.ops[i]` gives one as
a small typed object for people who script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hangscope.model.basics import UNKNOWN, Frame, Ints


class State(IntEnum):
    """How far one rank got with one operation it launched, normalised over backends by the reader."""

    UNKNOWN = 0
    SCHEDULED = 1
    STARTED = 2
    COMPLETED = 3


class Kind(IntEnum):
    """What an entry is. BATCH closes a coalesced batch; the entries inside share its `batch` number."""

    COLLECTIVE = 0
    SEND = 1
    RECV = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. Identity is name and member set; `members` is None where no file says who belongs to it.

    `members` is in group order: position is the group-local rank. `members_seen` marks members learnt from other ranks'
    entries and not from a table of members.
    """

    index: int
    name: str
    desc: str
    members: tuple[int, ...] | None
    backend: str = ""
    members_seen: bool = False
    open: tuple[int, ...] = ()
    """Ranks without a dump that may belong to it as well, where members were learnt from the dumps."""
    numbered: bool = False
    """Whether the dumps name no groups (torch 2.2, 2.3), so that `name` is only a process's own count of its groups."""

    def is_called(self, name: str | None) -> bool:
        """Whether a log that says `name` means this group. Only the default group's number is everywhere the same."""
        return self.name == name and (name == "0" or not self.numbered)

    @property
    def label(self) -> str:
        """The name people know: the description where there is one, otherwise the name."""
        if self.desc and self.desc != "undefined":
            return self.desc
        return f"group {self.name}" if self.name else "default group"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One rank's own counters for one group (`pg_status`). -1 = none yet; None = not said.

    They count collectives and point-to-point batches on one scale for NCCL, and op ids for nccl2 (`counts_op_ids`), so
    they support a conclusion but never carry one.
    """

    last_enqueued: int | None
    last_started: int | None
    last_completed: int | None
    counts_op_ids: bool = False


@dataclass(frozen=True, slots=True)
class Dump:
    """One flight recorder dump as it was read.

    `records` entries were read; `first_record` > 0 means that the ring wrapped, or was too large to keep, and older
    history is gone.
    `timing` says whether the state STARTED can be seen at all. `complete` is False for a truncated or damaged file.
    `has_stacks` is False where the writer left the frames out.
    """

    rank: int
    file: str
    version: str
    backend: str
    library_version: str
    records: int
    first_record: int
    timing: bool
    has_stacks: bool
    complete: bool = True
    node: str | None = None
    role: str = "dump"
    """"dump", or "poll" for the last answer of a live poll, which lists unfinished operations only."""

    @property
    def wrapped(self) -> bool:
        return self.first_record > 0


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of `Operations`, for people."""

    row: int
    rank: int
    group: Group
    kind: Kind
    name: str
    seq: int
    p2p_seq: int
    op_id: int
    record_id: int
    state: State
    retired: bool | None
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    duration_ms: float | None
    size_bytes: int | None
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    frames: tuple[Frame, ...]
    thread: str
    timeout_ms: int | None
    source: int | None
    destination: int | None
    batch: int | None

    @property
    def title(self) -> str:
        """As people say it: ``all_reduce #16``, ``send 0->1``."""
        return _title(self.kind, self.name, self.seq, self.source, self.destination)


def _title(kind: int, name: str, seq: int, source: int | None, destination: int | None) -> str:
    if kind == Kind.SEND:
        return f"send {_or(source)}->{_or(destination)}"
    if kind == Kind.RECV:
        return f"recv {_or(destination)}<-{_or(source)}"
    return f"{name} #{seq}"


def _or(rank: int | None) -> str:
    return "?" if rank is None or rank == UNKNOWN else str(rank)


Shapes = tuple[tuple[int, ...], ...]


COLUMNS: Mapping[str, str] = {
    "rank": "i4",
    "group": "i4",  # index into Job.groups
    "kind": "i1",  # Kind
    "name": "i4",  # id in Tables.names; without the library's prefix ("nccl:") and without peers
    "seq": "i8",  # collective sequence number of the group at that moment
    "p2p_seq": "i8",
    "op_id": "i8",
    "record_id": "i8",  # counts over all groups of one process: never comparable across ranks
    "state": "i1",  # State
    "retired": "i1",  # 1, 0, -1 unknown
    "created_ns": "i8",
    "started_ns": "i8",
    "completed_ns": "i8",
    "duration_ms": "f4",  # NaN unknown
    "size_bytes": "i8",  # of the inputs; of the outputs where there is no input
    "in_shapes": "i4",  # id in Tables.shapes
    "out_shapes": "i4",
    "in_dtypes": "i4",  # id in Tables.dtypes
    "out_dtypes": "i4",
    "stack": "i4",  # id in Tables.stacks; 0 is the empty stack
    "thread": "i4",  # id in Tables.names
    "timeout_ms": "i8",
    "source": "i4",  # point-to-point only: global rank of the sender, -1 unknown or any
    "destination": "i4",
    "batch": "i4",  # number of the coalesced batch within the rank, -1 outside any
}
"""Every column with its numpy type: 118 bytes an operation, so 33 million operations are about 4 GB."""


class Table:
    """Interned values: each distinct value once, named by a small id. Id 0 is the empty value given at the start."""

    __slots__ = ("_ids", "values")

    def __init__(self, empty: object) -> None:
        self.values: list[object] = [empty]
        self._ids: dict[object, int] = {empty: 0}

    def add(self, value: object) -> int:
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self.values)
            self.values.append(value)
        return found

    def __len__(self) -> int:
        return len(self.values)


class Tables:
    """The interned values that the columns point into."""

    __slots__ = ("_dtypes", "_names", "_shapes", "_stacks")

    def __init__(self) -> None:
        self._names = Table("")
        self._shapes = Table(())
        self._dtypes = Table(())
        self._stacks = Table(())

    def add_name(self, value: str) -> int:
        return self._names.add(value)

    def add_shapes(self, value: Shapes) -> int:
        return self._shapes.add(value)

    def add_dtypes(self, value: tuple[str, ...]) -> int:
        return self._dtypes.add(value)

    def add_stack(self, value: tuple[Frame, ...]) -> int:
        return self._stacks.add(value)

    def name(self, index: int) -> str:
        return self._names.values[index]  # type: ignore[return-value]  # one Table class serves four value types

    def shapes(self, index: int) -> Shapes:
        return self._shapes.values[index]  # type: ignore[return-value]

    def dtypes(self, index: int) -> tuple[str, ...]:
        return self._dtypes.values[index]  # type: ignore[return-value]

    def stack(self, index: int) -> tuple[Frame, ...]:
        return self._stacks.values[index]  # type: ignore[return-value]

    @property
    def names(self) -> Sequence[str]:
        return self._names.values  # type: ignore[return-value]

    @property
    def stacks(self) -> Sequence[tuple[Frame, ...]]:
        return self._stacks.values  # type: ignore[return-value]


class Operations:
    """All operations of all ranks as numpy columns, ordered by rank and, within a rank, as they were recorded."""

    __slots__ = ("_groups", "_spans", "columns", "tables")

    def __init__(
        self,
        columns: Mapping[str, npt.NDArray[np.generic]],
        tables: Tables,
        groups: Sequence[Group],
    ) -> None:
        self.columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.asarray(columns[name], dtype=kind) for name, kind in COLUMNS.items()
        }
        self.tables = tables
        self._groups = groups
        rank = self.columns["rank"]
        starts = np.flatnonzero(np.concatenate([[len(self) > 0], rank[1:] != rank[:-1]])[: len(self)])
        ends = [*starts[1:].tolist(), len(self)] if len(starts) else []
        self._spans = {r: slice(a, b) for r, a, b in zip(rank[starts].tolist(), starts.tolist(), ends, strict=True)}

    @classmethod
    def empty(cls) -> Operations:
        return cls({name: np.empty(0, dtype=kind) for name, kind in COLUMNS.items()}, Tables(), ())

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def __iter__(self) -> Iterator[Operation]:
        return (self[row] for row in range(len(self)))

    def column(self, name: str) -> Ints:
        """One column, as stored. All but `duration_ms` are integers."""
        return self.columns[name]  # type: ignore[return-value]  # narrower integers behave alike

    def title(self, row: int) -> str:
        """As people say one operation, without all else that is known of it."""
        kind, name, *numbers = (int(self.columns[c][row]) for c in ("kind", "name", "seq", "source", "destination"))
        return _title(kind, self.tables.name(name), *numbers)

    def span(self, rank: int) -> slice:
        """Where one rank's rows are; empty for a rank without any."""
        return self._spans.get(rank, slice(0, 0))

    def rows(
        self, *, rank: int | None = None, group: int | None = None, kind: Kind | None = None, name: str | None = None
    ) -> Ints:
        """The row numbers that match all the given conditions, in recorded order."""
        if rank is not None and group is None and kind is None and name is None:
            part = self.span(rank)
            return np.arange(part.start, part.stop)
        mask = np.ones(len(self), dtype=bool)
        if rank is not None:
            mask &= self.columns["rank"] == rank
        if group is not None:
            mask &= self.columns["group"] == group
        if kind is not None:
            mask &= self.columns["kind"] == kind
        if name is not None:
            wanted = [i for i, value in enumerate(self.tables.names) if value == name]
            mask &= np.isin(self.columns["name"], wanted)
        return np.flatnonzero(mask)

    def __getitem__(self, row: int) -> Operation:
        c = self.columns
        t = self.tables
        row = int(row)

        def known(name: str) -> int | None:
            value = int(c[name][row])
            return None if value == UNKNOWN else value

        def number(name: str) -> int:
            return int(c[name][row])

        duration = float(c["duration_ms"][row])
        retired = number("retired")
        return Operation(
            row=row,
            rank=number("rank"),
            group=self._groups[number("group")],
            kind=Kind(number("kind")),
            name=t.name(number("name")),
            seq=number("seq"),
            p2p_seq=number("p2p_seq"),
            op_id=number("op_id"),
            record_id=number("record_id"),
            state=State(number("state")),
            retired=None if retired == UNKNOWN else bool(retired),
            created_ns=known("created_ns"),
            started_ns=known("started_ns"),
            completed_ns=known("completed_ns"),
            duration_ms=None if duration != duration else duration,
            size_bytes=known("size_bytes"),
            input_shapes=t.shapes(number("in_shapes")),
            output_shapes=t.shapes(number("out_shapes")),
            input_dtypes=t.dtypes(number("in_dtypes")),
            output_dtypes=t.dtypes(number("out_dtypes")),
            frames=t.stack(number("stack")),
            thread=t.name(number("thread")),
            timeout_ms=known("timeout_ms"),
            source=known("source"),
            destination=known("destination"),
            batch=known("batch"),
        )
