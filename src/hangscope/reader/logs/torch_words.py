"""The words PyTorch uses for one thing in different places: operations in the watchdog, the recorder and the API."""

from __future__ import annotations

import difflib
import re

from hangscope.model.numbers import integer
from hangscope.model.times import Clock

OP_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "_ALLREDUCE_SPARSE": "all_reduce_sparse",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "RECVANYSOURCE": "recv",
}
"""The watchdog's OpType → the flight recorder's name, where lower case alone does not do it."""

FINGERPRINTS = {
    # "Watchdog caught": its line in ProcessGroupNCCL.cpp of the x86-64 wheels
    "caught": {
        523: "2.2",
        563: "2.3",
        607: "2.4",
        616: "2.5",
        629: "2.6",
        632: "2.7",
        685: "2.8",
        683: "2.9",
        688: "2.10",
        689: "2.11",
        757: "2.12",
        730: "2.13",
        741: "2.14",
        738: "2.15",
    },
    "stack": {664: "2.6", 667: "2.7", 729: "2.8", 727: "2.9", 732: "2.10", 733: "2.11", 801: "2.12", 774: "2.13"}
    | {785: "2.14", 782: "2.15"},
    "no stack": {667: "2.6", 670: "2.7", 732: "2.8", 730: "2.9", 735: "2.10", 736: "2.11", 804: "2.12", 777: "2.13"}
    | {788: "2.14", 785: "2.15"},
    "first": {2106: "2.7", 2584: "2.8", 2573: "2.9", 2610: "2.10", 2636: "2.11", 2714: "2.13", 2739: "2.15"},
}
"""Message → line number → PyTorch version. Vendors' own builds differ, so this is a hint."""

_GLOO_TIMEOUT = re.compile(r"Timed out waiting (\d{1,15}) ?ms for (?:(\w+) )?operation", re.ASCII)


_OP_TYPES = frozenset(
    (
        *OP_NAMES,
        *("BROADCAST", "REDUCE", "GATHER", "SCATTER", "SEND", "RECV", "BARRIER", "COALESCED", "UNKNOWN"),
        *("REDUCE_SCATTER_TENSOR_COALESCED", "ALLGATHER_INTO_TENSOR_COALESCED"),
    )
)
"""c10d's OpType, torch 1.9 to 2.15."""
_ALIKE = 0.75


def op_name(op_type: str | None) -> str | None:
    """The flight recorder's name of a watchdog OpType; None for one that was damaged on its way into a paste, so that
    no other operation is made of it."""
    if op_type is None or (op_type not in _OP_TYPES and difflib.get_close_matches(op_type, _OP_TYPES, 1, _ALIKE)):
        return None
    return OP_NAMES.get(op_type, op_type.lower())


def gloo_timeout(message: str) -> int | None:
    """The time limit in ms where a message is Gloo's word for a collective that timed out."""
    match = _GLOO_TIMEOUT.search(message)
    return integer(match[1]) if match else None


def called_as(operation: str | None, function: str) -> bool:
    """Whether a Python function of torch.distributed ends in that operation."""
    if operation is None:
        return False
    plain = operation.strip("_").replace("_base", "")
    return (
        function.lstrip("i_").startswith(plain)
        or {
            "_all_gather_base": "all_gather_into_tensor",
            "_reduce_scatter_base": "reduce_scatter_tensor",
            "all_to_all": "all_to_all_single",
            "coalesced": "_coalescing_manager",
            "all_reduce": "barrier",
        }.get(operation)
        == function
    )


GLOG_HEAD = re.compile(
    r"\[?(?P<severity>[EWIF])"
    r"(?:(?P<date>\d{3,4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\.(?P<fraction>\d{1,9})(?: +\d+)?)? "
    r"(?P<file>[\w./-]+\.(?:cpp|hpp|h|cc|cu)):(?P<line>\d+)\] ?",
    re.ASCII,
)
"""What c10 puts in front of a message: ``[E1115 02:30:11.204000000 ProcessGroupNCCL.cpp:685] ``."""
PG_HEAD = re.compile(
    r"\[PG (?:(?:ID \d+ PG )?GUID )?(?P<name>[^\s(\]]*) ?(?:\((?P<desc>.{0,200}?)\))? ?Rank (?P<rank>\d{1,6})\]",
    re.ASCII,
)
"""The group of a message, and the rank *within that group*."""
_BARE_RANK = re.compile(r"\[Rank (\d{1,6})\]", re.ASCII)


def clock_of(text: str) -> Clock | None:
    """The time of day in a c10 message."""
    head = GLOG_HEAD.search(text)
    return head_clock(head) if head is not None else None


def head_clock(head: re.Match[str]) -> Clock | None:
    if head["date"] is None:
        return None
    month, day = divmod(integer(head["date"]), 100)
    seconds = integer(head["h"]) * 3600 + integer(head["m"]) * 60 + integer(head["s"])
    return Clock(month, day, seconds * 1_000_000_000 + integer(head["fraction"].ljust(9, "0")))


def default_rank(text: str) -> int | None:
    """The rank that a message names within the default group, or within a group that it does not name.

    The latter is a guess: ``[Rank 3] Watchdog caught`` counts within the operation's own group. None where the message
    names another group.
    """
    if group := PG_HEAD.search(text):
        return integer(group["rank"]) if is_default(group["name"], group["desc"]) else None
    bare = _BARE_RANK.search(text)
    return integer(bare[1]) if bare else None


def is_default(name: str | None, desc: str | None) -> bool:
    return desc == "default_pg" or (name == "0" and desc in {None, "", "undefined"})
