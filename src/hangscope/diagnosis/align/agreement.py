"""What PyTorch's operations ask of the members of a group: what must agree, and who may leave early.

The engine accuses by these facts, and the page and the trace draw by them; nobody else keeps a list of operations.
"""

import re
from functools import cache

import numpy as np

from hangscope.diagnosis.align.column_tools import Ints, ids
from hangscope.model import Group, Operation, Operations

_FREE_SIZES = ("all_to_all", "all_to_all_single", "all_to_allv", "alltoall", "alltoall_base", "all_gather_v")
# Operations whose sizes may differ between members by design, and the sides that may not.
_AGREED_SIDES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_FREE_SIZES, "reduce_scatter_v", "split", "new_window"), ()),
    # NCCL's recorder has the two sides of a scatter the other way round (torch 2.11), and only the root has a list.
    "scatter": (),
    "gather": ("in",),
    "all_gather": ("out",),
    "reduce_scatter": ("in",),
}
_BOTH_SIDES = ("in", "out")
_SYMMETRIC = re.compile(r"all_?reduce|all_?gather|reduce_scatter|barrier", re.IGNORECASE)
ROOTED = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter")
"""Calls with a root, which no recorder says (torch 2.2-2.15)."""
PEER_CALLS = frozenset(("send", "recv", "coalesced"))
"""Calls between peers, which have no position in their group: their numbers count on a scale of their own.

A batch of collectives carries the collective's name; "coalesced" are those with peers in them (torch 2.2-2.15).
"""


@cache
def is_symmetric(name: str) -> bool:
    """Whether nobody finishes the operation before everybody has joined it (NCCL and Gloo), coalesced or not.

    An all_to_all is none: a rank may leave it as soon as its own pieces are exchanged.
    """
    return _SYMMETRIC.search(name) is not None


@cache
def is_exchange(name: str) -> bool:
    """An all_to_all: sizes may differ, but what all members send must be what all expect."""
    return name.startswith(("all_to_all", "alltoall"))


def members_not_recorded(group: Group) -> bool:
    """A group that is known by a local number alone (torch 2.2): different groups may hide behind it."""
    return group.members_seen and not group.desc and group.name not in ("", "0")


def signatures(ops: Operations) -> Ints:
    """Per row an id of what every member must agree on: name, element count and type, where the operation needs it."""
    columns = [ops.column(name) for name in ("name", "in_shapes", "out_shapes", "in_dtypes", "out_dtypes")]
    distinct = ids(*columns)
    a_row = np.empty(int(distinct.max(initial=-1)) + 1, dtype=np.int64)
    a_row[distinct] = np.arange(len(distinct))
    known: dict[object, int] = {}
    of_distinct = [known.setdefault(_agreed(ops[row]), len(known) + 1) for row in a_row.tolist()]
    found: Ints = np.asarray(of_distinct, dtype=np.int64)[distinct]
    return found


def agreed_sides(name: str) -> tuple[str, ...]:
    """What of a call all members must have alike: "in", its inputs, and "out", its outputs."""
    return _AGREED_SIDES.get(name, _BOTH_SIDES)


def _agreed(call: Operation) -> object:
    """What every other member must have alike. Where sizes are free, still the type."""
    sides = {
        "in": (elements(call.input_shapes), call.input_dtypes),
        "out": (elements(call.output_shapes), call.output_dtypes),
    }
    agreed = tuple(sides[side] for side in agreed_sides(call.name))
    return call.name, agreed or (call.input_dtypes or call.output_dtypes)[:1]


def elements(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Element counts: NCCL does not see shapes, so [4, 4] and [16] agree."""
    return tuple(int(np.prod(shape, dtype=np.int64)) for shape in shapes)
