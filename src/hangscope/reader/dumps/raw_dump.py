"""One dump as it was read, in columns, before it is joined with the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from hangscope.model import Frame, Shapes
from hangscope.model.profiling_names import Name

Columns = dict[str, npt.NDArray[Any]]
Counters = tuple["int | None", "int | None", "int | None"]
"""A group's last enqueued, started and completed collective."""


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """A group as one dump's entries name it. `name` is None in formats that have no names (torch 2.2, 2.3)."""

    pg_id: int | None
    name: str | None
    desc: str


@dataclass(frozen=True, slots=True)
class Membership:
    """One line of a dump's `pg_config`. `members` is None where the line says only how many there are, or nothing."""

    name: str | None
    desc: str
    members: tuple[int, ...] | None
    pg_id: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in one place of a dump: ``entries[17]`` and what is wrong there."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class RawDump:
    """One dump: columns whose ids point into this dump's own tables, and what its header says.

    `columns` has the columns of the model without `rank`, with `group`, `name`, `thread`, shapes, dtypes and stacks as
    local ids, and in place of `source` and `destination` the numbers `own` and `peer` within the group. `launches`
    is 1 where the entry took a new collective number (a send carries the number of the last collective).
    """

    file: str
    digest: str
    form: str
    """"pickle" or "json"."""
    version: str
    backend: str
    library_version: str
    columns: Columns
    names: tuple[Name, ...]
    threads: tuple[str, ...]
    shapes: tuple[Shapes, ...]
    dtypes: tuple[tuple[str, ...], ...]
    stacks: tuple[tuple[Frame, ...], ...]
    groups: tuple[LocalGroup, ...]
    memberships: tuple[Membership, ...]
    status: dict[int, Counters]
    records: int
    """Entries that were read; of a huge ring not all are kept."""
    first_record: int
    timing: bool
    has_stacks: bool
    hint_rank: int | None = None
    own_rank: int | None = None
    """The rank that the content itself claims: a key some tools add."""
    node: str | None = None
    role: str = "dump"
    complete: bool = True
    broke_at: int | None = None
    reason: str | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What the format cannot say, in sentences."""

    def __len__(self) -> int:
        return len(self.columns["seq"])
