"""Which evidence to give up first when a bundle may not be larger than so much.

What the verdict rests on is never given up: the evidence of the ranks that are involved, the nodes' own descriptions,
and not all of the dumps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from hangscope.incident.stale_files import dump_rank
from hangscope.safeio.file_magic import is_gzip
from hangscope.sources import slices

HEAD_BYTES = 64 << 10
TAIL_BYTES = 192 << 10
"""What is kept of a log that is shortened: how it began, and more of how it ended."""


@dataclass(frozen=True, slots=True)
class Involved:
    """Whose evidence a verdict rests on: culprits, the rank that reported first, both ends of a link."""

    ranks: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()
    files: frozenset[str] = frozenset()
    """Paths inside the incident that the verdict quotes, or that are known to belong to those ranks."""


@dataclass(frozen=True, slots=True)
class Item:
    """One file: what it is, and how much it may take in the bundle."""

    name: str
    size: int
    kind: str
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    sample: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The files to shorten and the files to leave out, each with the reason."""

    shorten: Mapping[str, str] = field(default_factory=dict)
    drop: Mapping[str, str] = field(default_factory=dict)


_NODE = re.compile(r"(?:^|/)nodes/([^/]+)/")
_RANK = re.compile(r"rank[_-]?(\d+)(?=[._/-]|$)")
_NCCL_LOG = re.compile(r"(?:^|/)nccl[._-].*?[._-](?P<pid>\d+)(?:\.\w+)*$")
_STACK = re.compile(r"(?:^|/)stacks/rank_\d+\.(\d+)\.|(?:^|/)(?:py-?spy|stack)s?[^/]*$")
_SAMPLE = re.compile(r"\.(\d+)\.\w+$")


def item(name: str, size: int, head: bytes = b"") -> Item:
    """What a file is, by the layout of an incident, else by the names that people use, else by how it begins."""
    node = _NODE.search(name)
    rank = _RANK.search(name)
    nccl = _NCCL_LOG.search(name)
    dump = dump_rank(name)
    kind, sample = _kind(name, head)
    number = int(rank[1]) if rank else (dump[1] if dump is not None else None)
    return Item(name, size, kind, number, node[1] if node else None, int(nccl["pid"]) if nccl else None, sample)


def _kind(name: str, head: bytes) -> tuple[str, int]:
    """What a file is, and of which sample."""
    if name.endswith("node.json"):
        return "node", 1
    folders = {schema.FOLDER: schema.KIND for schema in slices.found("schema", "FOLDER")}
    folder = next((part for part in name.split("/")[:-1] if part in folders), None)
    if folder is not None:
        numbered = _SAMPLE.search(name)
        return folders[folder], int(numbered[1]) if numbered else 1
    if head[:1] == b"\x80" or dump_rank(name) is not None:
        return "dump", 1
    if stack := _STACK.search(name):
        return "stack", int(stack[1] or 1)
    if _NCCL_LOG.search(name) or b"NCCL INFO" in head:
        return "NCCL log", 1
    if _RANK.search(name) or name.endswith((".log", ".out", ".err", ".txt")):
        return "log", 1
    return "other", 1


def involves(one: Item, involved: Involved) -> bool:
    """Whether a file is evidence of a rank, or of a node as a whole, that the verdict names."""
    if one.kind == "node" or one.name in involved.files:
        return True
    if one.rank is not None:
        return one.rank in involved.ranks
    if one.pid is not None:
        return one.pid in involved.pids
    return one.node is not None and one.node in involved.nodes


_REST = "of ranks that are not involved"
_STEPS: tuple[tuple[str, str, int, str], ...] = (
    # (what, which kind, from which sample on, shorten or drop)
    ("GPU and kernel text of nodes that are not involved", "gpu", 1, "drop"),
    ("GPU and kernel text of nodes that are not involved", "kernel", 1, "drop"),
    ("counters of nodes that are not involved", "counters", 1, "drop"),
    (f"NCCL logs {_REST}", "NCCL log", 1, "drop"),
    (f"second stack samples {_REST}", "stack", 2, "drop"),
    ("second RAS answers", "ras", 2, "drop"),
    (f"the middle of logs {_REST}", "log", 1, "shorten"),
    (f"black boxes {_REST}", "black box", 1, "drop"),
    (f"unrecognised files {_REST}", "other", 1, "drop"),
    (f"stacks {_REST}", "stack", 1, "drop"),
    (f"logs {_REST}", "log", 1, "drop"),
    ("RAS answers", "ras", 1, "drop"),
    (f"dumps {_REST}", "dump", 1, "drop"),
)
"""The order in which evidence is given up. docs/bundle.md shows it."""


def shrink(
    items: Sequence[Item], packed: Mapping[str, float], excess: float, involved: Involved, plan: Plan
) -> Plan | None:
    """A plan that saves `excess` more packed bytes than `plan`, or all it can; None where nothing more can go.

    `packed` is about how much each file takes in the bundle.
    """
    shorten = dict(plan.shorten)
    drop = dict(plan.drop)
    saved = 0.0
    for what, kind, sample, action in _STEPS:
        left = [one for one in items if one.kind == kind and one.name not in drop]
        found = _not_involved(left, sample, involved)
        found.sort(key=lambda one: (-packed.get(one.name, 0.0), one.name))
        if action == "shorten":
            found = _long_ones(found, shorten)
        if kind == "dump":
            found = _but_some(found, left)
        for one in found:
            if saved >= excess:
                break
            share = packed.get(one.name, 0.0)
            if action == "shorten":
                shorten[one.name] = what
                saved += share * (1 - (HEAD_BYTES + TAIL_BYTES) / one.size)
            else:
                if one.name in shorten:
                    share *= (HEAD_BYTES + TAIL_BYTES) / one.size
                    del shorten[one.name]
                drop[one.name] = what
                saved += share
        if saved >= excess:
            break
    return Plan(shorten, drop) if saved > 0 else None


def _not_involved(left: list[Item], sample: int, involved: Involved) -> list[Item]:
    return [one for one in left if one.sample >= sample and not involves(one, involved)]


def _long_ones(found: list[Item], shorten: Mapping[str, str]) -> list[Item]:
    """Those that are worth shortening, and are not shortened yet."""
    return [one for one in found if one.name not in shorten and one.size > HEAD_BYTES + TAIL_BYTES]


def _but_some(found: list[Item], all_dumps: list[Item]) -> list[Item]:
    """The dumps that may go: all that are not involved, but never the last one that is left."""
    if len(found) < len(all_dumps):
        return found
    return found[:-1]


def shorten(source: IO[bytes], out: IO[bytes]) -> bool:
    """Write the beginning and the end of a text, in whole lines; False, and nothing, where that saves nothing."""
    size = source.seek(0, 2)
    source.seek(0)
    if size <= HEAD_BYTES + TAIL_BYTES:
        return False
    head = source.read(HEAD_BYTES)
    if is_gzip(head):
        return False
    head = head[: head.rfind(b"\n") + 1] or head
    source.seek(-TAIL_BYTES, 2)
    tail = source.read(TAIL_BYTES)
    tail = tail[tail.find(b"\n") + 1 :]
    out.write(head)
    out.write(b"[hangscope: %d bytes left out here to keep the bundle small]\n" % (size - len(head) - len(tail)))
    out.write(tail)
    return True
